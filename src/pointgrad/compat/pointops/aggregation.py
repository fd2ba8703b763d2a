"""`pointops.aggregation`, as in an installed pointops, whose modules are those of `functions`."""

from .functions.aggregation import *  # noqa: F403
from .functions.aggregation import __all__ as __all__

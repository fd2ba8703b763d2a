"""`pointops.grouping`, as in an installed pointops, whose modules are those of `functions`."""

from .functions.grouping import *  # noqa: F403
from .functions.grouping import __all__ as __all__

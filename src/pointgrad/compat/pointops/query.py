"""`pointops.query`, as in an installed pointops, whose modules are those of `functions`."""

from .functions.query import *  # noqa: F403
from .functions.query import __all__ as __all__

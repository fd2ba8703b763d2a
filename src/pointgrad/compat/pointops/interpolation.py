"""`pointops.interpolation`, as in an installed pointops, whose modules are those of `functions`."""

from .functions.interpolation import *  # noqa: F403
from .functions.interpolation import __all__ as __all__

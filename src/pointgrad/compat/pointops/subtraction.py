"""`pointops.subtraction`, as in an installed pointops, whose modules are those of `functions`."""

from .functions.subtraction import *  # noqa: F403
from .functions.subtraction import __all__ as __all__

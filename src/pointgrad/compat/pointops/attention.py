"""`pointops.attention`, as in an installed pointops, whose modules are those of `functions`."""

from .functions.attention import *  # noqa: F403
from .functions.attention import __all__ as __all__

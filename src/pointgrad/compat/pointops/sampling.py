"""`pointops.sampling`, as in an installed pointops, whose modules are those of `functions`."""

from .functions.sampling import *  # noqa: F403
from .functions.sampling import __all__ as __all__

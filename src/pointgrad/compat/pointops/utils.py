"""`pointops.utils`, as in an installed pointops, whose modules are those of `functions`."""

from .functions.utils import *  # noqa: F403
from .functions.utils import __all__ as __all__

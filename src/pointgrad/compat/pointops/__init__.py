"""The interface of Pointcept's pointops 1.0 and of older generations; see README.md."""

from .functions import *  # noqa: F403
from .functions import __all__ as __all__

__version__ = "1.0"

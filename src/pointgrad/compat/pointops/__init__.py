"""The interface of Pointcept's pointops 1.0 and of older generations; see README.md."""

from . import _C, aggregation, attention, grouping, interpolation, query, sampling, subtraction, utils  # noqa: F401
from .functions import *  # noqa: F403 (after the modules: some functions have the name of their module)
from .functions import __all__ as __all__

__version__ = "1.0"

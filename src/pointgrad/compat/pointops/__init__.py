"""The interface of Pointcept's pointops 1.0 and of older generations; see README.md."""

import importlib

# Before the functions, some of which have the name of their module.
for _name in ("aggregation", "attention", "grouping", "interpolation", "query", "sampling", "subtraction", "utils"):
    importlib.import_module(f"{__name__}.{_name}")

from .functions import *  # noqa: E402, F403
from .functions import __all__ as __all__  # noqa: E402

__version__ = "1.0"

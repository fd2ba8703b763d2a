"""Pointcept's pointops 1.0, and the generations before it, on pointgrad's operators: see README.md."""

from .functions import *  # noqa: F403
from .functions import __all__ as __all__

__version__ = "1.0"

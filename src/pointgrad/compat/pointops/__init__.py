"""Pointcept's pointops 1.0, and the generations before it, on pointgrad's operators: see README.md."""

from .functions import *  # noqa: F403

__version__ = "1.0"

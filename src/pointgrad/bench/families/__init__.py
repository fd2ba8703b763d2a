"""Rows of the benchmark, one module per family, each with a function `rows(setup)`.

The first line of a module's docstring describes the family in `pointgrad bench --list`.
"""

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType
from typing import cast

from ..comparison import Row, Setup

SLOW = ("scaling",)  # only run if requested by name
NAMES = tuple(sorted(family.name for family in pkgutil.iter_modules(__path__)))
DEFAULT = tuple(name for name in NAMES if name not in SLOW)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")


def rows(name: str, setup: Setup) -> list[Row]:
    """The rows of one family. Their inputs are not allocated yet."""
    return list(cast(Iterable[Row], _module(name).rows(setup)))


def describe(name: str) -> str:
    """One-line description of a family."""
    return (_module(name).__doc__ or "").splitlines()[0]

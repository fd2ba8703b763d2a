"""The work that is measured, one file per suite: `rows(setup)`; the first line of its docstring describes it."""

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType
from typing import cast

from ..contest import Row, Setup

SLOW = ("scaling",)  # run only when named
NAMES = tuple(sorted(suite.name for suite in pkgutil.iter_modules(__path__)))
DEFAULT = tuple(name for name in NAMES if name not in SLOW)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")


def rows(name: str, setup: Setup) -> list[Row]:
    """Of one suite; nothing is allocated yet."""
    return list(cast(Iterable[Row], _module(name).rows(setup)))


def describe(name: str) -> str:
    """In one line."""
    return (_module(name).__doc__ or "").splitlines()[0]

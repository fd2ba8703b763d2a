"""Families of the benchmark: those of the catalogue, and the modules of this folder, each with `rows(setup)`.

Modules of this folder hold rows that need more than a `Benchmark` of the catalogue. The first line of a module's
docstring describes the family in `pointgrad bench --list`.
"""

import importlib
import pkgutil
from types import ModuleType

from pointgrad import catalog

from .. import operators
from ..comparison import Row, Setup

SLOW = ("scaling",)  # only run if requested by name
_MODULES = {module.name for module in pkgutil.iter_modules(__path__)}
NAMES = tuple(sorted(_MODULES.union(operators.NAMES)))
DEFAULT = tuple(name for name in NAMES if name not in SLOW)


def _module(name: str) -> ModuleType:
    package = __name__ if name in _MODULES else catalog.__name__
    return importlib.import_module(f"{package}.{name}")


def rows(name: str, setup: Setup) -> list[Row]:
    """The rows of one family. Their inputs are not allocated yet."""
    found = list(operators.rows(name, setup)) if name in operators.NAMES else []
    return [*found, *_module(name).rows(setup)] if name in _MODULES else found


def describe(name: str) -> str:
    """Return the one-line description of a family.

    Args:
        name: Name of the family.
    """
    return (_module(name).__doc__ or "").splitlines()[0]

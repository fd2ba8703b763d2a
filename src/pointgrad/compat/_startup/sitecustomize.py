"""For every Python that a program under `python -m pointgrad.compat run` starts: workers, launchers, scripts.

The command puts this folder on PYTHONPATH, and Python imports a module of this name when it starts. It must cost
nothing there: pointgrad is imported when a library that it stands in for is.
"""

from __future__ import annotations  # whatever Python it is

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))  # where pointgrad lies


class _Late:
    """Installs the libraries when the first of them is imported."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.names:
            return None
        with contextlib.suppress(ValueError):  # another thread was faster
            sys.meta_path.remove(self)
        if _ROOT not in sys.path:
            sys.path.append(_ROOT)
        try:
            import pointgrad.compat
        except ImportError:  # another Python, without torch
            return None
        pointgrad.compat.install(*self.names)
        return importlib.util.spec_from_loader(fullname, _Installed(sys.modules[fullname]))


class _Installed(Loader):
    """A module that is there already."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # which the import has just replaced


def _run_the_next() -> None:
    """The environment's own sitecustomize, which this one stands before."""
    own = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError:
        sys.modules[__name__] = own


sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
_names = os.environ.get("POINTGRAD_COMPAT", "")
if _names:
    sys.meta_path.insert(0, _Late(_names.split(",")))
_run_the_next()

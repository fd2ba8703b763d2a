"""Startup code of every Python process that a program under `python -m pointgrad.compat run` starts.

The command adds this folder to PYTHONPATH, and Python imports a module of this name at startup. To keep startup fast,
pointgrad is imported only when one of the libraries is.
"""

from __future__ import annotations  # the process may run another Python version

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
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))  # the folder that contains pointgrad


class _LazyInstaller:
    """Installs the libraries when the first of them is imported."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parts = fullname.split(".")
        if parts[0] == "pointgrad" or not any(name in parts for name in self.names):
            return None
        with contextlib.suppress(ValueError):  # another thread may have removed it
            sys.meta_path.remove(self)
        if _ROOT not in sys.path:
            sys.path.append(_ROOT)
        try:
            import pointgrad.compat
        except ImportError:  # another Python environment, without torch
            return None
        pointgrad.compat.install(*self.names)
        return sys.meta_path[0].find_spec(fullname, path)


class _LazyRedirect:
    """Redirects CUDA to the CPU when torch is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        with contextlib.suppress(ValueError):  # another thread may have removed it
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Redirecting(spec.loader)
        return spec


class _Redirecting(Loader):
    """Loader of torch."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        if _ROOT not in sys.path:
            sys.path.append(_ROOT)
        with contextlib.suppress(ModuleNotFoundError):  # another Python environment
            importlib.import_module("pointgrad.compat._cpu").redirect()


def _run_next_sitecustomize() -> None:
    """Import the environment's own sitecustomize, which this module shadows."""
    own = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError:
        sys.modules[__name__] = own


sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
_names = os.environ.get("POINTGRAD_COMPAT", "")
if _names:
    sys.meta_path.insert(0, _LazyInstaller(_names.split(",")))
if os.environ.get("POINTGRAD_COMPAT_CPU"):
    sys.meta_path.insert(0, _LazyRedirect())
_run_next_sitecustomize()

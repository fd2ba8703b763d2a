"""Finder for Python's import system: which module an import receives, and versions of the libraries.

There are two kinds of packages. One with a `__version__` is a released library: it takes precedence over an installed
one. One without is a module that repositories compile from their own copy of the source: a Python file of the program
takes precedence, and only compiled and missing modules are replaced. In both cases, modules and attributes that
pointgrad.compat does not have come from the original, if it is installed and the package does not define
`HIDES_ORIGINAL`.
"""

import importlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import Loader
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

_HERE = __name__.rpartition(".")[0]


class Provided(ModuleType):
    """A module of pointgrad.compat after `install`: attributes that it does not have come from the original."""

    def __getattr__(self, name: str) -> Any:
        finder = Finder.current()
        if finder is not None and not name.startswith("__"):
            own = _without_prefix(self.__name__)
            original = finder.original(own)
            if original is not None and hasattr(original, name):
                return getattr(original, name)
            if f"{own}.{name}" in sys.modules and not finder.failed(own):
                return sys.modules[f"{own}.{name}"]
        return ModuleType.__getattribute__(self, name)  # raises the usual error

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system sets submodules of the original too. They must not hide a function of the same name.
        if (
            not isinstance(value, ModuleType)
            or sys.modules.get(f"{_without_prefix(self.__name__)}.{name}") is not value
        ):
            super().__setattr__(name, value)


class Finder(DistributionFinder):
    """Finder that precedes all others."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._modules: dict[str, tuple[ModuleType, ModuleSpec | None]] = {}  # by the name without prefix
        self._copied: set[str] = set()  # modules that repositories compile from their own copy
        self._originals: dict[str, ModuleType | None] = {}
        self._failures: dict[str, Exception] = {}

    @staticmethod
    def current() -> "Finder | None":
        """The finder that is in use."""
        return next((found for found in sys.meta_path if isinstance(found, Finder)), None)

    @classmethod
    def serve(cls, modules: Mapping[str, ModuleType]) -> None:
        """Handle these packages and their submodules from now on, before any other finder."""
        finder = cls.current()
        if finder is None:
            finder = cls()
            sys.meta_path.insert(0, finder)
        for name, module in modules.items():
            module.__class__ = Provided
            finder._modules[name] = module, module.__spec__
            if not is_library(modules[name.partition(".")[0]]):
                finder._copied.add(name)
        finder.names.update(name.partition(".")[0] for name in modules)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of pointgrad.compat, or one of the original if pointgrad.compat does not have it.

        `from pytorch3d import renderer` requests `pointgrad.compat.pytorch3d.renderer`, because the parent module has
        this `__name__`.
        """
        requested = _without_prefix(fullname)
        name, dot, _ = requested.partition(".")
        if requested != fullname:
            if not dot or name not in self.names or PathFinder.find_spec(fullname, path) is not None:
                return None  # a reload
            if self.failed(requested.rpartition(".")[0]):
                raise self._missing(requested)
            module = importlib.import_module(requested)
            return spec_from_loader(fullname, _Alias(module, module.__spec__))
        if copied := self._copied_module(fullname):
            theirs = self._original_spec(fullname)
            # A folder without `__init__.py` stays, but does not hide a module of this very name, as in Python itself.
            keep_folder = copied != fullname or self._is_package(copied)
            if theirs is not None and (_is_source(theirs) or (keep_folder and _is_folder(theirs))):
                return theirs
            return self._alias(fullname, copied)
        if name not in self.names:
            return None
        if requested in self._modules:
            return self._alias(fullname, requested)
        if not isinstance(sys.modules.get(requested.rpartition(".")[0]), Provided):
            return None  # a module of the original, which the next finder loads
        theirs = self._original_spec(requested)
        if theirs is not None:
            return theirs
        raise self._missing(requested)

    def original(self, requested: str) -> ModuleType | None:
        """Load the original of a module that pointgrad.compat replaces, without entering it in `sys.modules`."""
        if requested not in self._originals:
            spec = self._original_spec(requested)
            if spec is None or spec.loader is None or not spec.has_location:
                return None  # not kept: the program may still extend `sys.path`
            module = self._originals[requested] = module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except Exception as error:  # such as a library that was compiled for another version of torch
                self._originals[requested] = None
                self._failures[requested] = error
        return self._originals[requested]

    def failed(self, requested: str) -> bool:
        """Whether the original of a module is installed but cannot be imported."""
        return requested in self._failures

    def find_distributions(self, context: Any = None) -> Iterator["_Version"]:
        """Support `importlib.metadata.version("torch_scatter")`, which programs use to detect a library."""
        requested = getattr(context, "name", None)
        for name in sorted(self.names):
            if requested is None or re.sub(r"[-_.]+", "_", requested).lower() == name.lower():
                version = getattr(importlib.import_module(f"{_HERE}.{name}"), "__version__", None)
                if version is not None:
                    yield _Version(name, version)

    def _copied_module(self, fullname: str) -> str | None:
        """Name of the module to use for `fullname`, such as pointnet2._ext for lib.pointnet2._ext."""
        if fullname in self._copied:
            return fullname
        below = fullname
        while "." in below:
            below = below.partition(".")[2]
            if below in self._copied and not self._is_package(below):
                return below
        return None

    def _original_spec(self, requested: str) -> ModuleSpec | None:
        """Spec of the module that would be imported without pointgrad.compat."""
        package = self._modules.get(requested.partition(".")[0])
        if package is not None and "HIDES_ORIGINAL" in vars(package[0]):
            return None
        parent, dot, _ = requested.rpartition(".")
        path: Sequence[str] | None = None
        if dot:
            module = sys.modules.get(parent)
            if module is None or isinstance(module, Provided):
                above = self._original_spec(parent)
                path = None if above is None else above.submodule_search_locations
            else:
                path = getattr(module, "__path__", None)
            if path is None:
                return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(requested, path)
                if spec is not None:
                    return spec
        return None

    def _is_package(self, requested: str) -> bool:
        return hasattr(self._modules[requested][0], "__path__")

    def _alias(self, fullname: str, requested: str) -> ModuleSpec | None:
        # Programs detect installed packages by the origin.
        return spec_from_loader(
            fullname, _Alias(*self._modules[requested]), origin=self._modules[requested][0].__file__
        )

    def _missing(self, requested: str) -> ModuleNotFoundError:
        name = requested.partition(".")[0]
        reason = ""
        for failed, error in self._failures.items():
            if failed.partition(".")[0] == name:
                reason = f", and importing the installed {failed} failed with {type(error).__name__}: {error}"
        # Without `name=`: otherwise `from ... import` would replace this message.
        return ModuleNotFoundError(
            f"pointgrad.compat replaces {name} but does not provide {requested}{reason}; "
            "`python -m pointgrad.compat list` prints what is provided"
        )


class _Alias(Loader):
    """Loader of a module that is already imported under another name."""

    def __init__(self, module: ModuleType, spec: ModuleSpec | None) -> None:
        self.module, self.spec = module, spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has replaced it


class _Version(Distribution):
    """Metadata with the name and the version whose interface the package has."""

    def __init__(self, name: str, version: str) -> None:
        self._metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        return self._metadata if filename == "METADATA" else None

    def locate_file(self, path: object) -> Path:
        return Path(__file__).parent / str(path)


def is_library(package: ModuleType) -> bool:
    """Whether this package has the interface of a released library, which it replaces even where it is installed."""
    return "__version__" in vars(package)


def _is_source(spec: ModuleSpec) -> bool:
    """Whether this module is a Python file, and neither compiled nor a folder without `__init__.py`."""
    return spec.has_location and not isinstance(spec.loader, ExtensionFileLoader)


def _is_folder(spec: ModuleSpec) -> bool:
    """Whether this module is a folder without `__init__.py`."""
    return not spec.has_location and spec.submodule_search_locations is not None


def _without_prefix(fullname: str) -> str:
    return fullname.removeprefix(f"{_HERE}.")

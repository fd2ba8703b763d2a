"""Finder for Python's import system: messages for missing modules, and versions of the libraries."""

import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_HERE = __name__.rpartition(".")[0]


class Finder(DistributionFinder):
    """Finder for modules that are not in `sys.modules`, which contains all modules that are provided."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    @classmethod
    def serve(cls, names: Iterable[str]) -> None:
        """Handle these libraries from now on, before any other finder."""
        finder = next((found for found in sys.meta_path if isinstance(found, cls)), None)
        if finder is None:
            finder = cls()
            sys.meta_path.insert(0, finder)
        finder.names.update(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise a helpful error for a module that pointgrad.compat does not provide.

        `from pytorch3d import renderer` requests `pointgrad.compat.pytorch3d.renderer`, because the parent module has
        this `__name__`.
        """
        requested = fullname.removeprefix(f"{_HERE}.")
        name, dot, _ = requested.partition(".")
        if not dot or name not in self.names:
            return None
        if requested != fullname and PathFinder.find_spec(fullname, path) is not None:
            return None  # a reload
        # Without `name=`: otherwise `from ... import` would replace this message.
        raise ModuleNotFoundError(
            f"pointgrad.compat replaces {name} but does not provide {requested}; "
            "`python -m pointgrad.compat list` prints what is provided"
        )

    def find_distributions(self, context: Any = None) -> Iterator["_Version"]:
        """Support `importlib.metadata.version("torch_scatter")`, which programs use to detect a library."""
        requested = getattr(context, "name", None)
        for name in sorted(self.names):
            if requested is None or re.sub(r"[-_.]+", "_", requested).lower() == name:
                version = getattr(importlib.import_module(f"{_HERE}.{name}"), "__version__", None)
                if version is not None:
                    yield _Version(name, version)


class _Version(Distribution):
    """Metadata with the name and the version whose interface the package has."""

    def __init__(self, name: str, version: str) -> None:
        self._metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        return self._metadata if filename == "METADATA" else None

    def locate_file(self, path: object) -> Path:
        return Path(__file__).parent / str(path)

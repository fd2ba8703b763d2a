"""What Python's import system asks about installed libraries: modules that are not there, and versions."""

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
    """Modules themselves are found in sys.modules; this one is asked only about what is not."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    @classmethod
    def serve(cls, names: Iterable[str]) -> None:
        """Answers for these libraries from now on, before any other finder."""
        finder = next((found for found in sys.meta_path if isinstance(found, cls)), None)
        if finder is None:
            finder = cls()
            sys.meta_path.insert(0, finder)
        finder.names.update(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Refuses a module that pointgrad.compat does not have, by a sentence instead of "No module named".

        `from pytorch3d import renderer` asks for it by our own name, because that is the parent's `__name__`.
        """
        asked = fullname.removeprefix(f"{_HERE}.")
        name, dot, _ = asked.partition(".")
        if not dot or name not in self.names:
            return None
        if asked != fullname and PathFinder.find_spec(fullname, path) is not None:
            return None  # a reload
        # Without `name=`, or `from ... import` would replace it by a message of its own.
        raise ModuleNotFoundError(
            f"pointgrad.compat stands in for {name} and has no {asked}; "
            "`python -m pointgrad.compat list` shows what it provides"
        )

    def find_distributions(self, context: Any = None) -> Iterator["_Version"]:
        """For `importlib.metadata.version("torch_scatter")`, by which programs ask whether a library is there."""
        asked = getattr(context, "name", None)
        for name in sorted(self.names):
            if asked is None or re.sub(r"[-_.]+", "_", asked).lower() == name:
                version = getattr(importlib.import_module(f"{_HERE}.{name}"), "__version__", None)
                if version is not None:
                    yield _Version(name, version)


class _Version(Distribution):
    """A name and the version whose behaviour the package follows."""

    def __init__(self, name: str, version: str) -> None:
        self._metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        return self._metadata if filename == "METADATA" else None

    def locate_file(self, path: object) -> Path:
        return Path(__file__).parent / str(path)

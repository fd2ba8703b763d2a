"""Griffe extension for source code that mkdocstrings misreads without it."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Show `Example:` as an example, and a function named like its module (`inspect.graph`) as the function."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        modules = [pkg]
        for member in _members(pkg):
            if isinstance(member, griffe.Alias):
                with contextlib.suppress(griffe.AliasResolutionError):  # an import from another package
                    member.resolve_target()  # before the module is replaced below
            elif member.docstring:
                # Griffe reads only the plural as a section; the singular would become a block quote.
                member.docstring.value = re.sub(r"^Example:$", "Examples:", member.docstring.value, flags=re.MULTILINE)
            if isinstance(member, griffe.Module):
                modules.append(member)
        for module in modules:
            for name, target in module.imports.items():
                if target == f"{module.path}.{name}.{name}":
                    module.set_member(name, griffe.Alias(name, module[name][name], parent=module))


def _members(obj: griffe.Object) -> Iterator[griffe.Object | griffe.Alias]:
    for member in obj.members.values():
        yield member
        if isinstance(member, griffe.Object):
            yield from _members(member)

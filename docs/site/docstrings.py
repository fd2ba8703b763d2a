"""Docstrings, which are plain text, become Markdown for the reference: lists of arguments, and examples as code.
A name that is both a function and the file that holds it is the function, as it is in Python."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import griffe

NAMED = r"(\*{0,2}\w+(?:, \*{0,2}\w+)*)( \([^)]*\))?: "


class Docstrings(griffe.Extension):
    """`name: meaning` lines become a list if they name arguments or fields; `>>>` lines become a block."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        modules = []
        for member in _members(pkg):
            if isinstance(member, griffe.Alias):
                with contextlib.suppress(griffe.AliasResolutionError):  # of another package
                    member.resolve_target()  # now, before files go out of sight
            elif member.docstring:
                member.docstring.value = markdown(member.docstring.value, _names(member))
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


def markdown(text: str, names: set[str]) -> str:
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(_example(part) if part.startswith(">>>") else _list(part, names) for part in paragraphs)


def _names(obj: griffe.Object) -> set[str]:
    names = {"returns", "yields", "raises"}
    if isinstance(obj, griffe.Function):
        names |= {parameter.name for parameter in obj.parameters}
    elif isinstance(obj, griffe.Class):
        names |= set(obj.members)
        if isinstance(init := obj.members.get("__init__"), griffe.Function):
            names |= {parameter.name for parameter in init.parameters}
    return names


def _example(paragraph: str) -> str:
    return f"```pycon\n{paragraph}\n```"


def _list(paragraph: str, names: set[str]) -> str:
    """Indented lines belong to the item above them, and so do those that end its sentence; what else names nothing ends
    the list."""

    def broken(found: re.Match[str]) -> str:
        return "\n" if _item(found.string[found.end() :], names) else ""

    lines: list[str] = []
    inside = False
    # `classes: of the output. channels: of the features.` is two items.
    for line in re.sub(rf"(?<=\. )(?={NAMED})", broken, paragraph).splitlines():
        item = _item(line, names)
        if inside and not item and not line.startswith(" ") and lines[-1].endswith((".", ":")):
            lines.append("")
            inside = False
        if item:
            lines += [item] if inside else ["", item]
            inside = True
        else:
            lines.append(f"    {line.strip()}" if inside else line)
    return "\n".join(lines).strip("\n")


def _item(line: str, names: set[str]) -> str | None:
    found = re.match(NAMED, line)
    if not found or not names.issuperset(found[1].replace("*", "").split(", ")):
        return None
    shown = ", ".join(f"`{name}`" for name in found[1].split(", "))
    return f"- {shown}{found[2] or ''}: {line[found.end() :]}"

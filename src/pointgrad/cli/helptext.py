"""Help of flags, from the docstrings below the fields of commands."""

import ast
import dataclasses
import inspect
import textwrap
import typing


def join_lines(command: type) -> None:
    """Add the docstrings of the fields of a command to the docstring of its class, each on one line.

    tyro reads both forms. It keeps the line breaks of the docstrings below fields, which then are in the middle of
    sentences on most terminals.
    """
    for kind in command.__mro__:
        if dataclasses.is_dataclass(kind) and "Attributes:" not in (kind.__doc__ or ""):
            lines = [f"    {name}: {text}" for name, text in field_docs(kind).items()]
            kind.__doc__ = "\n".join([inspect.cleandoc(kind.__doc__ or ""), "", "Attributes:", *lines])
            for nested in typing.get_type_hints(kind).values():
                if dataclasses.is_dataclass(nested) and isinstance(nested, type):
                    join_lines(nested)


def field_docs(kind: type) -> dict[str, str]:
    """The docstring below each field of a dataclass, with single spaces for white space."""
    try:
        source = inspect.getsource(kind)
    except OSError:  # only compiled files are installed
        return {}
    (body,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(str(below.value.value).split())
    return found

"""Readable names of operators, from node names such as `AddmmBackward0`."""

import functools
import re
from typing import Any

import torch

GENERATED = "GeneratedBackwardFor_"  # prefix of the classes that torch.library generates for registered backwards


def operator_name(node: Any) -> str:
    """The operator of a node, such as `addmm` or `pointgrad::gather`, or the class of an autograd.Function."""
    name = node.name().rpartition("::")[2] if node.name().startswith("torch::") else node.name()
    name = re.sub(r"Backwards?\d*$", "", name) or name
    if name.startswith(GENERATED):
        return _registered(name.removeprefix(GENERATED))
    if is_custom(node):
        return name
    return _aten().get(name, name)


def is_custom(node: Any) -> bool:
    """Whether the backward is written in Python, as an autograd.Function or registered with torch.library."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


@functools.cache
def _aten() -> dict[str, str]:
    """Operator names by their CamelCase form in node names, such as `MaxPool2D` for `max_pool2d`."""
    names = {}
    for qualified in torch._C._dispatch_get_all_op_names():
        namespace, _, name = qualified.partition(".")[0].partition("::")
        if namespace == "aten" and "__" not in name:
            names["".join(word.title() for word in name.split("_"))] = name.strip("_")
    return names


@functools.cache
def _registered(generated: str) -> str:
    """`namespace::name` from `namespace_name_overload`, resolved by the list of all operators."""
    for qualified in torch._C._dispatch_get_all_op_names():
        name, _, overload = qualified.partition(".")
        if f"{name.replace('::', '_')}_{overload or 'default'}" == generated:
            return name
    return generated


def shape_of(tensor: Any) -> tuple[int, ...]:
    """The shape; -1 for a dimension that varies within a nested tensor."""
    if getattr(tensor, "is_nested", False):
        return (int(tensor.size(0)), *[-1] * (tensor.dim() - 1))
    return tuple(map(int, tensor.shape))


def short_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def readable_bytes(count: int) -> str:
    """A size in bytes with a binary unit.

    >>> readable_bytes(512), readable_bytes(3 * 1024), readable_bytes(5_000_000)
    ('512 B', '3.0 KiB', '4.8 MiB')
    """
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"

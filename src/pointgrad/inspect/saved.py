"""Tensors that a node of the autograd graph saves for backward, read without side effects."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pointgrad.errors import one_line

from .names import is_custom

_VERSIONS = re.compile(r"is at version (\d+); expected version (\d+)")


@dataclass
class Kept:
    """A saved tensor: the tensors whose memory it references (possibly several if a hook packed it), and remarks."""

    name: str
    tensors: list[Tensor] = field(default_factory=list)
    note: str = ""
    stale: bool = False  # freed or modified, so that backward raises


def kept_by(node: Any) -> tuple[list[Kept], dict[str, Any]]:
    """The tensors that a node saves, and its other saved values: sizes, dimensions, flags."""
    if is_custom(node):
        return [*_saved_by_function(node), *_attributes(node)], {}
    kept: list[Kept] = []
    values: dict[str, Any] = {}
    for attribute in dir(type(node)):
        name = attribute.removeprefix("_saved_")
        if name == attribute or name.endswith("_strides"):
            continue
        if not hasattr(type(node), f"_raw_saved_{name}"):
            value = _unpacked(node, name)
            if not isinstance(value, Kept):
                values[name.replace("_sym_", "_")] = _signed(value)
            continue
        raw = getattr(node, f"_raw_saved_{name}")
        raws = raw if isinstance(raw, tuple) else (raw,)
        if any(_unpack_hook(entry) is not None for entry in raws):
            kept += [_packed(name if len(raws) == 1 else f"{name}[{i}]", entry) for i, entry in enumerate(raws)]
            continue
        value = _unpacked(node, name)
        if isinstance(value, Kept):
            value.tensors = [data for entry in raws if (data := getattr(entry, "data", None)) is not None]
            kept.append(value)
        elif isinstance(raw, tuple):
            kept += [Kept(f"{name}[{i}]", [tensor]) for i, tensor in enumerate(value) if tensor is not None]
        elif value is not None:
            kept.append(Kept(name, [value]))
    return kept, values


def _unpacked(node: Any, name: str) -> Any:
    """A saved value, or a `Kept` with the reason why it is not available."""
    try:
        return getattr(node, f"_saved_{name}")
    except RuntimeError as error:
        return Kept(name, note=_reason(error), stale=True)


def _saved_by_function(node: Any) -> list[Kept]:
    """The tensors that an autograd.Function saved with save_for_backward."""
    try:
        raws = node._raw_saved_tensors
        if any(_unpack_hook(raw) is not None for raw in raws):
            return [_packed(str(number), raw) for number, raw in enumerate(raws)]
        tensors = node.saved_tensors
    except RuntimeError as error:
        versions = _VERSIONS.search(str(error))
        if versions is None:
            return [Kept("saved_tensors", note=_reason(error), stale=True)]
        tensors = [getattr(raw, "data", None) for raw in raws]
        kept = [Kept(str(number), [tensor]) for number, tensor in enumerate(tensors) if tensor is not None]
        for entry in kept:  # the error gives the current version of the modified tensor, but not its position
            if entry.tensors[0]._version == int(versions[1]):
                entry.note, entry.stale = _reason(error), True
        return kept or [Kept("saved_tensors", note=_reason(error), stale=True)]
    return [Kept(str(number), [tensor]) for number, tensor in enumerate(tensors) if tensor is not None]


def _attributes(node: Any) -> list[Kept]:
    """Tensors that a Function stored as attributes of ctx, which backward never frees."""
    note = "an attribute of ctx: freed only with the graph, and in-place changes are not detected"
    found = ((name, list(tensors_in(value))) for name, value in vars(node).items())
    return [Kept(f"ctx.{name}", tensors, note) for name, tensors in found if tensors]


def _unpack_hook(raw: Any) -> Any:
    return getattr(raw, "unpack_hook", None)  # not exposed in early versions of torch, where hooks therefore run


def _packed(name: str, raw: Any) -> Kept:
    """A packed tensor, without running the user's unpack hook, which may load from disk or recompute a block."""
    data = raw.data
    if _unpack_hook(raw) is None:  # None or a number among packed tensors
        return Kept(name, list(tensors_in(data)))
    if type(data).__module__ == "torch.utils.checkpoint":
        return Kept(name, note="not saved: recomputed in backward (checkpoint)")
    return Kept(name, list(tensors_in(data)), "packed by a hook")


def _reason(error: RuntimeError) -> str:
    versions = _VERSIONS.search(str(error))
    if versions:
        now, saved = versions.groups()
        return f"modified in place: saved at version {saved}, now at version {now}; backward will raise"
    return "freed" if "freed" in str(error) else one_line(error)


def _signed(value: Any) -> Any:
    """Negative integers, which torch returns as unsigned: dimension -1 is 2^64 - 1."""
    if isinstance(value, tuple):
        return tuple(_signed(entry) for entry in value)
    return value - 2**64 if isinstance(value, int) and value >= 2**63 else value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from tensors_in(entry)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def memory_of(tensor: Tensor) -> list[tuple[int, int]]:
    """(key, bytes) of each storage that a tensor keeps alive; keys are valid as long as the tensor lives."""
    if tensor.layout == torch.sparse_coo:
        parts: tuple[Tensor, ...] = (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    elif hasattr(tensor, "__tensor_flatten__"):  # a wrapper subclass
        parts = tuple(getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
    else:
        try:
            storage = tensor.untyped_storage()
            return [(storage._cdata, storage.nbytes())]
        except (RuntimeError, NotImplementedError):  # the storage is not accessible
            return [(id(tensor), tensor.numel() * tensor.element_size())]
    return [entry for part in parts for entry in memory_of(part)]

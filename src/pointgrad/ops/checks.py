"""Argument checks and the wording of their errors: name, contract, received.

Public functions call these in the order type, shape, dtype, device, value. They need only metadata, so they work
under `torch.compile`. Checks that read a tensor's values (`*_values`) run inside the operator, on CPU tensors only,
because on a GPU they would stall the stream.
"""

import numbers
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NoReturn

import torch
from torch import Tensor

from . import native
from .sums import sum_dtype

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INDICES = (torch.int64, torch.int32)
NUMBERS = (*FLOATS, *INDICES)
ANY = 2**63 - 1  # no limit on the number of dimensions

# A contract or a received value that formats a size is a function: formatting a size while torch.compile traces would
# specialize the compiled code to it.
Contract = str | Callable[[], str]


def kind(ok: bool, name: str, contract: Contract, received: Any) -> None:
    if not _holds(ok):
        raise TypeError(f"{name} must be {_text(contract)}, got {_describe(received)}")


def tensor(name: str, value: Any) -> None:
    kind(isinstance(value, Tensor), name, "a torch.Tensor", value)
    if value.layout != torch.strided or value.is_nested:
        layout = "a nested tensor" if value.is_nested else value.layout
        raise TypeError(f"{name} must be a dense tensor, got {layout}")


def shape(ok: bool, name: str, contract: Contract, value: Tensor, *, verb: str = "be") -> None:
    if not _holds(ok):
        raise ValueError(f"{name} must {verb} {_text(contract)}, got {tuple(value.shape)}")


def point_shape(ok: bool, name: str, contract: Contract, value: Tensor, *, advice: str = "") -> None:
    """The shape of points. The error about points given as (B, 3, N) states how to pass them, followed by `advice`."""
    if not _holds(ok):
        swapped = f"; they look transposed: pass {name}.transpose(-2, -1){advice}" if _transposed(value) else ""
        raise ValueError(f"{name} must be {_text(contract)}, got {tuple(value.shape)}{swapped}")


def _transposed(points: Tensor) -> bool:
    """Whether points (..., 3, N) have the coordinates of an axis in each row, with more than 3 points."""
    # The last axis is compared first: it has a fixed size when torch.export traces points of a dynamic number.
    return points.dim() in (2, 3) and points.shape[-1] > 3 and points.shape[-2] == 3


def dtype(name: str, value: Tensor, allowed: Sequence[torch.dtype]) -> None:
    if value.dtype not in allowed:
        raise TypeError(f"{name} must be {_either(map(_short, allowed))}, got {_short(value.dtype)}")


def same_dtype(name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    if value.dtype != other.dtype:
        raise TypeError(f"{name} must have the dtype of {other_name}, {_short(other.dtype)}, got {_short(value.dtype)}")


def autocasts(value: Tensor) -> bool:
    """Whether autocast is on for this tensor's device, so that mixed dtypes are allowed."""
    device = value.device.type
    return device != "meta" and torch.is_autocast_enabled(device)


def device(name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    if value.device != other.device:
        raise ValueError(f"{name} must be on the device of {other_name}, {other.device}, got {value.device}")


def value(ok: bool, name: str, contract: Contract, received: Any, *, verb: str = "be") -> None:
    if not _holds(ok):
        text = str(received() if callable(received) else received)
        raise ValueError(f"{name} must {verb} {_text(contract)}, got {text if text.isprintable() else repr(text)}")


def number(name: str, received: Any, contract: str = "a number") -> None:
    """A real number that fits into a float; not a bool."""
    kind(
        isinstance(received, (numbers.Real, torch.SymFloat)) and not isinstance(received, bool),
        name,
        contract,
        received,
    )
    fits = not isinstance(received, int) or abs(received) < 2**1023
    value(fits, name, "in the range of a float", lambda: f"an int of {received.bit_length()} bits")


def boolean(name: str, received: Any) -> None:
    kind(isinstance(received, bool), name, "a bool", received)


def arguments(operator: str, contract: str, names: Sequence[str], received: Sequence[Any]) -> NoReturn:
    """Refuse a call of a registered operator whose arguments do not fit each other."""
    described = ", ".join(f"{name} {_metadata(given)}" for name, given in zip(names, received, strict=True))
    raise ValueError(f"arguments of {operator} must be {contract}, got {described}")


def dim(name: str, received: Any, rank: int) -> None:
    """A dimension, which may be negative; a scalar counts as having one dimension."""
    kind(is_integer(received), name, "an int", received)
    rank = max(rank, 1)
    value(-rank <= received < rank, name, f"in [{-rank}, {rank})", received)


def is_integer(received: Any) -> bool:
    """Whether this is an integer of Python, NumPy or a torch.compile trace."""
    return isinstance(received, (int, torch.SymInt, numbers.Integral)) and not isinstance(received, bool)


def rows(features: Any, index: Any, per_row: int, dtypes: Sequence[torch.dtype]) -> None:
    """Features (N, C) or (B, N, C), and an index (M,) if `per_row` is 0 or (M, K) if it is 1."""
    tensor("features", features)
    tensor("index", index)
    shape(features.dim() in (2, 3), "features", "(N, C) or (B, N, C)", features)
    batch = features.shape[:-2]
    fits = index.dim() == len(batch) + 1 + per_row and index.shape[: len(batch)] == batch
    row = "M, K" if per_row else "M"
    packed = f"({row})" if per_row else "(M,)"
    shape(fits, "index", f"{packed} with features (N, C), or (B, {row}) with (B, N, C)", index)
    dtype("features", features, dtypes)
    dtype("index", index, INDICES)
    device("index", index, "features", features)


def clouds(
    points: Any,
    offsets: Any,
    lengths: Any,
    *,
    name: str = "points",
    prefix: str = "",
    most_dims: int | None = None,
    any_dims: bool = False,
    dtypes: Sequence[torch.dtype] = FLOATS,
) -> None:
    """Clouds in one of two layouts: packed (N, 3) with offsets, or padded (B, N, 3) with lengths.

    Args:
        name: Name of the points.
        prefix: Prefix of the names of offsets and lengths.
        most_dims: Allow 1 to this many dimensions (ANY: no limit) instead of exactly 3.
        any_dims: With `most_dims=ANY`, accept clouds of 3 points with more than 3 dimensions, which look transposed.
        dtypes: Allowed dtypes of the points.
    """
    tensor(name, points)
    named = ((f"{prefix}offsets", offsets), (f"{prefix}lengths", lengths))
    for sizes_name, sizes in named:
        if sizes is not None:
            tensor(sizes_name, sizes)
    boolean("any_dims", any_dims)
    last = "3" if most_dims is None else "D"
    fewest, most = (3, 3) if most_dims is None else (1, most_dims)
    fits = points.dim() in (2, 3) and fewest <= points.shape[-1] <= most
    if not fits or (not any_dims and _transposed(points)):
        extent = {None: "", ANY: " with D at least 1"}.get(most_dims, f" with D from 1 to {most_dims}")
        advice = ", or any_dims=True for clouds of 3 points with more than 3 dimensions" if most_dims == ANY else ""
        point_shape(False, name, f"(N, {last}) or (B, N, {last}){extent}", points, advice=advice)
    packed = points.dim() == 2
    message = f"None for packed {name} (N, {last}); use {prefix}offsets"
    value(not packed or lengths is None, f"{prefix}lengths", message, "a tensor")
    message = f"None for padded {name} (B, N, {last}); use {prefix}lengths"
    value(packed or offsets is None, f"{prefix}offsets", message, "a tensor")
    if offsets is not None:
        shape(offsets.dim() == 1 and offsets.shape[0] >= 1, f"{prefix}offsets", "(B + 1,)", offsets)
    if lengths is not None:
        fits = lengths.shape == points.shape[:1]
        shape(fits, f"{prefix}lengths", lambda: f"(B,) = ({points.shape[0]},)", lengths)
    dtype(name, points, dtypes)
    for sizes_name, sizes in named:
        if sizes is not None:
            dtype(sizes_name, sizes, INDICES)
            device(sizes_name, sizes, name, points)


def three_ints(name: str, received: Any, least: int, most: int = 2**15 - 1) -> list[int]:
    """One number per axis, from an int or three of them, each in [least, most]."""
    sizes = [received] * 3 if is_integer(received) else received
    is_list = isinstance(sizes, Sequence) and not isinstance(sizes, (str, bytes))
    whole = is_list and all(is_integer(size) for size in sizes)
    kind(whole, name, "an int or three ints", received)
    value(len(sizes) == 3, name, "one int or three", f"{len(sizes)} ints")
    for size in sizes:
        value(least <= size <= most, name, f"in [{least}, {most}]", size)
    return [int(size) for size in sizes]


def edges(name: str, received: Any) -> list[float]:
    """The three edge lengths of a voxel, from one number or three; `edges_values` checks their values."""
    sizes: Any = [received] * 3 if isinstance(received, numbers.Real) else received
    is_list = isinstance(sizes, Sequence) and not isinstance(sizes, (str, bytes))
    whole = is_list and all(isinstance(size, numbers.Real) and not isinstance(size, bool) for size in sizes)
    kind(whole, name, "a number or three numbers", received)
    value(len(sizes) == 3, name, "one number or three", f"{len(sizes)} numbers")
    for size in sizes:
        number(name, size)
    return [float(size) for size in sizes]


def edges_values(name: str, sizes: list[float], points: Tensor) -> None:
    wide = torch.finfo(sum_dtype(points.dtype))
    for size in sizes:
        value(wide.tiny <= size <= wide.max, name, "finite and positive", size)


def offsets_values(offsets: Tensor, num_points: int, name: str = "offsets", total: str = "N") -> None:
    values = offsets.numpy()  # torch would start its own threads, which spin while the kernel needs the cores
    first, last = int(values[0]), int(values[-1])
    value(first == 0, f"{name}[0]", "0", first)
    if (values[1:] < values[:-1]).any():  # a Python loop only for the message: there may be many offsets
        for number, (begin, end) in enumerate(pairwise(values.tolist())):
            value(begin <= end, f"{name}[{number + 1}]", f"at least {name}[{number}] = {begin}", end)
    value(last == num_points, f"{name}[-1]", f"{total} = {num_points}", last, verb="equal")


def lengths_values(lengths: Tensor, num_points: int, name: str = "lengths") -> None:
    for cloud, length in enumerate(lengths.tolist()):
        value(0 <= length <= num_points, f"{name}[{cloud}]", f"in [0, N = {num_points}]", length)


def index_values(index: Tensor, num_rows: int, name: str = "index") -> None:
    if index.numel() == 0:
        return
    lowest, highest = native.bounds(index)
    contract = f"-1 or in [0, {num_rows})"
    value(lowest >= -1, name, contract, lowest)
    value(highest < num_rows, name, contract, highest)


def _holds(ok: bool) -> bool:
    """Whether a condition is met. One on a size that depends on data, while `torch.export` traces, counts as met.

    The operator checks it when the program runs.
    """
    if isinstance(ok, torch.SymBool):
        from torch.fx.experimental import symbolic_shapes  # slow to import, and loaded if there is such a condition

        if hasattr(symbolic_shapes, "guard_or_true"):  # since torch 2.7
            return bool(symbolic_shapes.guard_or_true(ok))
    return bool(ok)


def _text(contract: Contract) -> str:
    return contract if isinstance(contract, str) else contract()


def shown(received: Any) -> str:
    """A wrong argument in one short line: a plain value or list as it is, else the type."""
    text = repr(received) if isinstance(received, (int, float, str, list, tuple)) else ""
    return text if 0 < len(text) <= 60 and text.isprintable() else _describe(received)


def _describe(value: Any) -> str:
    cls = type(value)
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    return f"{name} {value!r}" if isinstance(value, (bool, int, float, str, type(None))) else name


def _metadata(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    place = "" if value.device.type == "cpu" else f" on {value.device}"
    return f"{_short(value.dtype)} {tuple(value.shape)}{place}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _either(names: Any) -> str:
    *rest, last = names
    return f"{', '.join(rest)} or {last}" if rest else last

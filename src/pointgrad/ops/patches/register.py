"""Registration of this family's operators: fake outputs, value checks and gradients.

The gradient of `patch_attention` is `patch_attention_backward`, whose own gradient is autograd through the reference,
with memory linear in N * patch. `rotary_embedding` is linear in the features, and its adjoint rotates back.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import checks, clouds
from ..registry import operator
from ..sums import sum_dtype
from . import reference

MOST = 2**16  # points in a patch
_ORDER = "int64 order (N,) with int64 offsets (B + 1,) or None, or (B, N) with int64 lengths (B,) or None, and patch"


def _fits_order(order: Tensor, sizes: Tensor | None, patch: int) -> bool:
    rank = order.dim()
    if order.dtype != torch.int64 or not 1 <= rank <= 2 or not 1 <= patch <= MOST:
        return False
    if sizes is None:
        return True
    numbers = sizes.shape
    if sizes.dtype != torch.int64 or len(numbers) != 1:
        return False
    return numbers[0] > 0 if rank == 1 else numbers == order.shape[:1]


def _check_order(order: Tensor, sizes: Tensor | None) -> None:
    """Whether the order lists the points of each cloud, each of them once."""
    clouds.check_values(order.unsqueeze(-1), sizes)
    places, num_rows = order.numpy(), order.shape[-1]
    if order.dim() == 1:
        begin = np.array([0, num_rows]) if sizes is None else sizes.numpy()
        low, high = (np.repeat(ends, np.diff(begin)) for ends in (begin[:-1], begin[1:]))
        listed, rows = np.ones(num_rows, bool), places
    else:
        sizes_of = np.full(len(places), num_rows) if sizes is None else sizes.numpy()
        low, high = np.zeros((1, 1), np.int64), sizes_of[:, None]
        listed = np.arange(num_rows) < high
        rows = places + np.arange(len(places))[:, None] * num_rows
    inside = (places >= low) & (places < high)
    if not inside[listed].all():
        place = np.argwhere(listed & ~inside)[0]
        first, end = (int(np.broadcast_to(ends, places.shape)[tuple(place)]) for ends in (low, high))
        _refuse(place, f"in [{first}, {end}), the points of its cloud", places)
    seen = np.zeros(places.size, bool)
    seen[rows[listed]] = True
    if np.count_nonzero(seen) != np.count_nonzero(listed):
        flat = np.flatnonzero(listed)
        _, earliest = np.unique(rows.reshape(-1)[flat], return_index=True)
        place = np.unravel_index(np.delete(flat, earliest)[0], places.shape)
        _refuse(place, "a point that is not listed before", places)


def _refuse(place: Any, contract: str, places: Any) -> None:
    name = f"order[{', '.join(str(int(at)) for at in place)}]"
    checks.value(False, name, contract, int(places[tuple(place)]))


def _fake_index(order: Tensor, sizes: Tensor | None, patch: int) -> tuple[Tensor, Tensor]:
    slots = reference.num_slots(order, sizes, patch)
    shape = (slots, patch) if order.dim() == 1 else (order.shape[0], (order.shape[1] + patch - 1) // patch, patch)
    return order.new_empty(shape), order.new_empty(order.shape)


patch_index = operator(
    reference.patch_index,
    contract=f"{_ORDER} from 1 to {MOST}",
    fits=_fits_order,
    fake=_fake_index,
    check=_check_order,
    kernels=(),
)


_ATTENTION = (
    "query, key and value (N, H, D) of one floating dtype with H and D at least 1, or all with a leading B, "
    f"{_ORDER}, and int64 coordinates (N, 3) with bias_table (3 (2 R + 1), H), or neither"
)


def _fits_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    order: Tensor,
    sizes: Tensor | None,
    patch: int,
    coordinates: Tensor | None,
    bias_table: Tensor | None,
) -> bool:
    shape, dtype = query.shape, query.dtype
    if not _fits_order(order, sizes, patch) or dtype not in checks.FLOATS or len(shape) != order.dim() + 2:
        return False
    if shape[:-2] != order.shape or shape[-1] == 0 or shape[-2] == 0:
        return False
    if key.shape != shape or value.shape != shape or key.dtype != dtype or value.dtype != dtype:
        return False
    if coordinates is None or bias_table is None:
        return coordinates is None and bias_table is None
    return (
        coordinates.dtype == torch.int64
        and coordinates.shape == (*order.shape, 3)
        and bias_table.dtype == dtype
        and bias_table.dim() == 2
        and bias_table.shape[0] % 6 == 3
        and bias_table.shape[1] == shape[-2]
    )


def _fake_attention(query: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    norm = query.new_empty((*order.shape[:-1], query.shape[-2], order.shape[-1]), dtype=sum_dtype(query.dtype))
    return query.new_empty(query.shape), norm


_SOURCES = ("query", "key", "value", "bias_table")


def _save_attention(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
    query, key, value, order, sizes, ctx.patch, coordinates, bias_table, ctx.scale = inputs
    out, norm = output
    ctx.mark_non_differentiable(norm)
    ctx.save_for_backward(query, key, value, order, sizes, coordinates, bias_table, out, norm)


def _grad_attention(ctx: Any, grad: Tensor, _: Tensor) -> dict[str, Tensor | None]:
    query, key, value, order, sizes, coordinates, bias_table, out, norm = ctx.saved_tensors
    found = patch_attention_backward(
        grad, query, key, value, order, sizes, ctx.patch, coordinates, bias_table, ctx.scale, out, norm
    )
    return {name: given if getattr(ctx.needed, name) else None for name, given in zip(_SOURCES, found, strict=True)}


patch_attention = operator(
    reference.patch_attention,
    contract=_ATTENTION,
    fits=_fits_attention,
    fake=_fake_attention,
    check=_check_order,
    save=_save_attention,
    backward=_grad_attention,
    autocast="lower",
)


def _fits_attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    order: Tensor,
    sizes: Tensor | None,
    patch: int,
    coordinates: Tensor | None,
    bias_table: Tensor | None,
    out: Tensor,
    norm: Tensor,
) -> bool:
    if not _fits_attention(query, key, value, order, sizes, patch, coordinates, bias_table):
        return False
    shape, dtype = query.shape, query.dtype
    return (
        grad.shape == shape
        and out.shape == shape
        and grad.dtype == out.dtype == dtype
        and norm.dtype == sum_dtype(dtype)
        and norm.shape == (*shape[:-3], shape[-2], shape[-3])
    )


def _fake_attention_backward(
    query: Tensor, key: Tensor, value: Tensor, bias_table: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    table = query.new_empty((0, query.shape[-2]) if bias_table is None else bias_table.shape)
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape), table


_SAVED = ("grad", "query", "key", "value", "bias_table")  # `out` and `norm` are functions of them without a gradient


def _save_attention_backward(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*(getattr(inputs, name) for name in _SAVED), inputs.order, inputs.sizes, inputs.coordinates)
    ctx.patch, ctx.scale = inputs.patch, inputs.scale


def _grad_attention_backward(ctx: Any, *grads: Tensor) -> dict[str, Tensor | None]:
    """Second derivatives: autograd through the first derivatives of the reference."""
    *saved, order, sizes, coordinates = ctx.saved_tensors
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        given = {name: x.view_as(x).requires_grad_() for name, x in zip(_SAVED, saved, strict=True) if x is not None}
        grad, first = given["grad"], tuple(given.values())[1:]
        query, key, value = (given[name] for name in _SOURCES[:3])
        table = given.get("bias_table")
        out, _ = reference.patch_attention(query, key, value, order, sizes, ctx.patch, coordinates, table, ctx.scale)
        slopes = torch.autograd.grad(out, first, grad, create_graph=True)
        wanted = {name: source for name, source in given.items() if getattr(ctx.needed, name)}
        found = torch.autograd.grad(
            slopes, tuple(wanted.values()), grads[: len(slopes)], create_graph=create_graph, allow_unused=True
        )
    return dict(zip(wanted, found, strict=True))


patch_attention_backward = operator(
    reference.patch_attention_backward,
    contract=f"grad and out (N, H, D) and norm (H, N) in at least float32, {_ATTENTION}",
    fits=_fits_attention_backward,
    fake=_fake_attention_backward,
    check=_check_order,
    save=_save_attention_backward,
    backward=_grad_attention_backward,
)


def _fits_rotary(features: Tensor, positions: Tensor, base: float) -> bool:
    shape, depth = features.shape, features.shape[-1] if features.dim() else 0
    return (
        3 <= len(shape) <= 4
        and features.dtype in checks.FLOATS
        and positions.dtype in checks.NUMBERS
        and positions.shape == (*shape[:-2], 3)
        and depth % 6 == 0
        and 0 < base < float("inf")
    )


def _fake_rotary(features: Tensor) -> Tensor:
    return features.new_empty(features.shape)


def _save_rotary(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(inputs.positions, output if ctx.needed.positions else None)
    ctx.base = inputs.base


def _grad_rotary(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    positions, output = ctx.saved_tensors
    found: dict[str, Tensor | None] = {}
    if ctx.needed.features:
        found["features"] = rotary_embedding(grad, -positions, ctx.base)
    if ctx.needed.positions:
        wide, pairs = sum_dtype(grad.dtype), grad.shape[-1] // 6
        (slope, other), (first, second) = (
            given.to(wide).unflatten(-1, (3, 2, pairs)).unbind(-2) for given in (grad, output)
        )
        turn = (other * first - slope * second).sum(-3)  # (N, 3, pairs)
        found["positions"] = (turn * reference.frequencies(grad, ctx.base)).sum(-1).to(positions.dtype)
    return found


rotary_embedding = operator(
    reference.rotary_embedding,
    contract=(
        "floating features (N, H, D), where 6 divides D, and positions (N, 3) of numbers, or both with a leading B, "
        "and a positive base"
    ),
    fits=_fits_rotary,
    fake=_fake_rotary,
    save=_save_rotary,
    backward=_grad_rotary,
    kernels=(),
)

"""Attention within patches of points along a space-filling curve, and rotary embedding of coordinates."""

from typing import Any

from torch import Tensor

from .. import checks, clouds
from . import register

__all__ = ["patch_attention", "patch_index", "rotary_embedding"]


def patch_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    order: Tensor,
    patch: int,
    *,
    offsets: Tensor | None = None,
    lengths: Tensor | None = None,
    coordinates: Tensor | None = None,
    bias_table: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Compute attention within patches of `patch` consecutive points along an order, without gathered copies.

    The places of each cloud along `order` are divided into patches. Each point attends to all points of its patch. If
    the last patch of a cloud is not full, its points attend to the last `patch` points of the cloud; a cloud of fewer
    points is one short patch. For each head, the result is the sum of the values of the patch with the weights
    `softmax(scale * dot(query, key) + bias)`, as in Point Transformer V3.

    Gradients flow to `query`, `key`, `value` and `bias_table`, to any order. Softmax and sums are computed in at least
    float32. Memory is linear in N, except for second derivatives, which need N * H * `patch` numbers. Under autocast
    the inputs are cast to the autocast dtype, as in `torch.nn.functional.scaled_dot_product_attention`.

    Args:
        query: (N, H, D) packed, or (B, N, H, D) padded, for H heads, in the order of the points.
        key: Shape and dtype of `query`.
        value: Shape and dtype of `query`.
        order: (N,) packed (global), or (B, N) padded (local to each cloud): the points of each cloud, each of them
            once, for example along a space-filling curve. int64 or int32. Entries of padded clouds beyond `lengths` are
            ignored. Other values raise a ValueError on the CPU; on a GPU an index out of range is left out.
        patch: Number of points in a patch, at most 65,536.
        offsets: (B + 1,) boundaries of packed clouds.
        lengths: (B,) number of points of each padded cloud.
        coordinates: (N, 3) or (B, N, 3) integer coordinates of voxels. Required with `bias_table`.
        bias_table: (3 * (2 * R + 1), H), a relative position bias. For each axis, the difference of the coordinates of
            query and key, clamped to [-R, R], selects one of 2 * R + 1 rows; the three rows are added to the logit.
        scale: Factor of the dot products, by default 1 / sqrt(D).

    Returns:
        Shape and dtype of `query`. Points beyond `lengths` give zeros.

    Example:
        >>> value = torch.tensor([1., 2., 3., 4., 9.]).reshape(5, 1, 1)
        >>> zeros, order = torch.zeros_like(value), torch.tensor([0, 2, 1, 3, 4])
        >>> patch_attention(zeros, zeros, value, order, 2).flatten()  # patches 0 2, 1 3, and 4, which shares 3
        tensor([2.0000, 3.0000, 2.0000, 3.0000, 6.5000])
    """
    named = [("query", query), ("key", key), ("value", value)]
    for name, given in [*named, ("order", order)]:
        checks.tensor(name, given)
    _check_sizes(offsets, lengths)
    for name, part in (("coordinates", coordinates), ("bias_table", bias_table)):
        if part is not None:
            checks.tensor(name, part)
    checks.kind(checks.is_integer(patch), "patch", "an int", patch)
    if scale is not None:
        checks.number("scale", scale, "a number or None")
    fits = query.dim() in (3, 4) and query.shape[-2] > 0 and query.shape[-1] > 0
    checks.shape(fits, "query", "(N, H, D) or (B, N, H, D) with H and D at least 1", query)
    for name, given in named[1:]:
        checks.shape(given.shape == query.shape, name, lambda: f"{tuple(query.shape)} like query", given)
    checks.shape(order.shape == query.shape[:-2], "order", lambda: f"{tuple(query.shape[:-2])} to match query", order)
    _check_layout(order, offsets, lengths, "query")
    if bias_table is not None:
        heads = query.shape[-2]
        fits = bias_table.dim() == 2 and bias_table.shape[0] % 6 == 3 and bias_table.shape[1] == heads
        checks.shape(fits, "bias_table", lambda: f"(3 * (2 * R + 1), H) with H = {heads}", bias_table)
    if coordinates is not None:
        fits = coordinates.shape == (*order.shape, 3)
        checks.shape(fits, "coordinates", lambda: f"{(*order.shape, 3)} to match query", coordinates)
    for name, given in (*named, *(() if bias_table is None else (("bias_table", bias_table),))):
        checks.dtype(name, given, checks.FLOATS)
        if not checks.autocasts(query):
            checks.same_dtype(name, given, "query", query)
    for name, part in _integers(order, offsets, lengths, coordinates):
        checks.dtype(name, part, checks.INDICES)
    for name, part in (*named[1:], *_integers(order, offsets, lengths, coordinates)):
        checks.device(name, part, "query", query)
    if bias_table is not None:
        checks.device("bias_table", bias_table, "query", query)
    _check_patch(patch)
    given_both = (coordinates is None) == (bias_table is None)
    received = "one of them"
    checks.value(given_both, "coordinates and bias_table", "given together", received)
    out, _ = register.patch_attention(
        query,
        key,
        value,
        order.long(),
        clouds.as_sizes(offsets, lengths),
        patch,
        None if coordinates is None else coordinates.long(),
        bias_table,
        None if scale is None else float(scale),
    )
    return out


def patch_index(
    order: Tensor, patch: int, *, offsets: Tensor | None = None, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """List the points of each patch of `patch` consecutive points along an order.

    The patches are those of `patch_attention`. Shapes depend only on the shapes of the arguments, so nothing waits for
    a GPU: there is a table row for each patch that clouds of these total sizes can have, and unused rows are -1.

    Args:
        order: (N,) packed (global), or (B, N) padded (local to each cloud), as for `patch_attention`.
        patch: Number of points in a patch, at most 65,536.
        offsets: (B + 1,) boundaries of packed clouds.
        lengths: (B,) number of points of each padded cloud.

    Returns:
        `index`, int64: (P, patch) with P = N // patch + B packed, where patch t of cloud b is row
        `offsets[b] // patch + b + t`; or (B, P, patch) with P = ceil(N / patch) padded. -1 marks a missing point. The
        last patch of a cloud with more than `patch` points is filled up with points of the patch before it. `inverse`,
        int64, (N,) or (B, N): for each point, the entry of the flattened table (of its cloud, if padded) that belongs
        to the point's own patch; -1 beyond `lengths`.

    Example:
        >>> index, inverse = patch_index(torch.tensor([0, 2, 1, 3, 4]), 2)
        >>> index.tolist(), inverse.tolist()
        ([[0, 2], [1, 3], [3, 4]], [0, 2, 1, 3, 5])
    """
    checks.tensor("order", order)
    _check_sizes(offsets, lengths)
    checks.kind(checks.is_integer(patch), "patch", "an int", patch)
    checks.shape(order.dim() in (1, 2), "order", "(N,) or (B, N)", order)
    _check_layout(order, offsets, lengths, "order")
    for name, part in _integers(order, offsets, lengths, None):
        checks.dtype(name, part, checks.INDICES)
        checks.device(name, part, "order", order)
    _check_patch(patch)
    found: tuple[Tensor, Tensor] = register.patch_index(order.long(), clouds.as_sizes(offsets, lengths), patch)
    return found


def rotary_embedding(features: Tensor, positions: Tensor, base: float = 100.0) -> Tensor:
    """Rotate pairs of channels by angles proportional to the coordinates of a point (3D RoPE).

    Each head is divided into three parts, for x, y and z, and each part into two halves of Q = D / 6 channels.
    Channel q of the first half and channel q of the second half are rotated by the angle
    `positions[..., axis] * base ** (-q / Q)`. The dot product of a rotated query and a rotated key then depends on the
    difference of their positions only. LitePT calls it PointROPE.

    Gradients flow to `features`, and to floating `positions`, to any order. Angles are computed in at least float32.

    Args:
        features: (N, H, D) packed, or (B, N, H, D) padded, where 6 divides D.
        positions: (N, 3) or (B, N, 3): int64, int32 or floating.
        base: Positive. The slowest rotation is `base ** (1 / Q - 1)` radians per unit.

    Returns:
        Shape and dtype of `features`.

    Example:
        >>> features = torch.tensor([1., 0., 1., 0., 1., 0.]).reshape(1, 1, 6)
        >>> rotary_embedding(features, torch.tensor([[0., 0.5, 1.]])).flatten()
        tensor([1.0000, 0.0000, 0.8776, 0.4794, 0.5403, 0.8415])
    """
    checks.tensor("features", features)
    checks.tensor("positions", positions)
    checks.number("base", base)
    fits = features.dim() in (3, 4) and features.shape[-1] % 6 == 0
    checks.shape(fits, "features", "(N, H, D) or (B, N, H, D) with D a multiple of 6", features)
    fits = positions.shape == (*features.shape[:-2], 3)
    checks.shape(fits, "positions", lambda: f"{(*features.shape[:-2], 3)} to match features", positions)
    checks.dtype("features", features, checks.FLOATS)
    checks.dtype("positions", positions, checks.NUMBERS)
    checks.device("positions", positions, "features", features)
    checks.value(0 < base < float("inf"), "base", "finite and positive", base)
    rotated: Tensor = register.rotary_embedding(features, positions, float(base))
    return rotated


def _check_sizes(offsets: Any, lengths: Any) -> None:
    for name, sizes in (("offsets", offsets), ("lengths", lengths)):
        if sizes is not None:
            checks.tensor(name, sizes)


def _check_layout(order: Tensor, offsets: Tensor | None, lengths: Tensor | None, name: str) -> None:
    """Check that offsets belong to a packed order (N,) and lengths to a padded order (B, N)."""
    packed = order.dim() == 1
    checks.value(not packed or lengths is None, "lengths", f"None for packed {name}; use offsets", "a tensor")
    checks.value(packed or offsets is None, "offsets", f"None for padded {name}; use lengths", "a tensor")
    if offsets is not None:
        checks.shape(offsets.dim() == 1 and offsets.shape[0] >= 1, "offsets", "(B + 1,)", offsets)
    if lengths is not None:
        checks.shape(lengths.shape == order.shape[:1], "lengths", lambda: f"(B,) = ({order.shape[0]},)", lengths)


def _integers(
    order: Tensor, offsets: Tensor | None, lengths: Tensor | None, coordinates: Tensor | None
) -> list[tuple[str, Tensor]]:
    given = (("order", order), ("offsets", offsets), ("lengths", lengths), ("coordinates", coordinates))
    return [(name, part) for name, part in given if part is not None]


def _check_patch(patch: int) -> None:
    checks.value(1 <= patch <= register.MOST, "patch", f"in [1, {register.MOST}]", patch)

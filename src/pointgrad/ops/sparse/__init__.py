"""Convolution and pooling of sparse voxels."""

from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from .. import checks
from ..sums import sum_dtype
from . import register
from .maps import KernelMap, strided_map, submanifold_map, transposed_map

__all__ = ["KernelMap", "sparse_conv", "sparse_pool", "strided_map", "submanifold_map", "transposed_map"]


def sparse_conv(
    features: Tensor, weight: Tensor, map: KernelMap, *, bias: Tensor | None = None, groups: int = 1
) -> Tensor:
    """Convolve the features of voxels along a kernel map.

    Args:
        features: (N, C) packed, or (B, N, C) padded: the features of the map's inputs. Any floating dtype.
        weight: (K, C / groups, D), a matrix for each kernel position, in the dtype of `features`. For a kernel of a
            dense convolution (D, C / groups, kx, ky, kz), this is `kernel.permute(2, 3, 4, 1, 0).flatten(0, 2)`.
        map: From `submanifold_map`, `strided_map` or `transposed_map`, or the `inverse()` of one.
        bias: (D,), added to every output.
        groups: Number of groups of channels that are convolved separately. It must divide C and D; with
            `groups=C` the convolution is depthwise.

    Returns:
        (M, D) or (B, M, D), where `out[m]` is the sum of `features[map.sources[m, k]] @ weight[k]` over the kernel
        positions k, except -1. Sums are accumulated in at least float32, in a fixed order on every device. Rows beyond
        the length of a padded cloud are zero. Under autocast the inputs are cast to the autocast dtype, as for dense
        convolutions.

    Gradients flow to `features`, `weight` and `bias`, to any order. No tensor of N * K rows is built.

    A feature that is NaN or infinite reaches only the outputs that read it. The weight must be finite: on a GPU a
    non-finite value may affect every output.

    Example:
        >>> line = torch.tensor([[0, 0, 0], [0, 0, 1], [0, 0, 3]])
        >>> differences = torch.tensor([-1., 0., 1.]).reshape(3, 1, 1)
        >>> sparse_conv(torch.tensor([[1.], [2.], [4.]]), differences, submanifold_map(line, (1, 1, 3)))
        tensor([[ 2.],
                [-1.],
                [ 0.]])
    """
    flat = _features(features, map)
    checks.tensor("weight", weight)
    if bias is not None:
        checks.tensor("bias", bias)
    checks.kind(checks.is_integer(groups), "groups", "an int", groups)
    volume = map.sources.shape[1]
    checks.shape(
        weight.dim() == 3 and weight.shape[0] == volume, "weight", lambda: f"({volume}, C / groups, D)", weight
    )
    channels = features.shape[-1]
    fits = groups >= 1 and weight.shape[1] * groups == channels and weight.shape[2] % groups == 0
    contract = lambda: f"({volume}, C / groups, D), where C = {channels} and groups = {groups} divides C and D"  # noqa: E731
    checks.shape(fits, "weight", contract, weight)
    if bias is not None:
        checks.shape(bias.shape == weight.shape[2:], "bias", lambda: f"(D,) = ({weight.shape[2]},)", bias)
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None:
            checks.dtype(name, value, checks.FLOATS)
            if not checks.autocasts(features):
                checks.same_dtype(name, value, "features", features)
            checks.device(name, value, "features", features)
    out = register.sparse_conv(
        flat, weight, map.sources, map.source_schedule, map.targets, map.target_schedule, map.flipped, groups
    )
    if bias is not None:
        out = out + bias.to(out.dtype)
    return _in_layout(out, map, bias is not None)


def sparse_pool(features: Tensor, map: KernelMap, reduce: Literal["max", "mean", "sum"] = "max") -> Tensor:
    """Reduce the features that each output of a kernel map reads.

    Args:
        features: (N, C) packed, or (B, N, C) padded: the features of the map's inputs. Any floating dtype.
        map: From `submanifold_map`, `strided_map` or `transposed_map`, or the `inverse()` of one.
        reduce: "max", "mean" or "sum" of the inputs that exist; missing ones do not count.

    Returns:
        (M, C) or (B, M, C), zero where an output reads no input. Sums are accumulated in at least float32.

    Gradients flow to `features`, to any order; of equal maxima, only that of the first kernel position has one.

    Example:
        >>> line = torch.tensor([[0, 0, 0], [0, 0, 1], [0, 0, 3]])
        >>> sparse_pool(torch.tensor([[1.], [2.], [4.]]), strided_map(line, (1, 1, 2), stride=(1, 1, 2)), "mean")
        tensor([[1.5000],
                [4.0000]])
    """
    flat = _features(features, map)
    checks.value(reduce in ("max", "mean", "sum"), "reduce", "'max', 'mean' or 'sum'", repr(reduce))
    if reduce == "max":
        return _in_layout(register.sparse_max(flat, map.sources, map.targets)[0], map, False)
    if reduce == "mean":
        flat = flat.to(sum_dtype(flat.dtype))  # the sum may exceed the largest float16
    channels = flat.shape[1]
    if channels == 0:
        return _in_layout(features.new_zeros((map.sources.shape[0], 0)), map, False)
    ones = flat.new_ones((1, 1, 1)).expand(map.sources.shape[1], 1, channels)
    tables = (map.sources, map.source_schedule, map.targets, map.target_schedule)
    # torch.autocast does not accept the device "meta".
    with torch.autocast(flat.device.type, enabled=False) if checks.autocasts(flat) else nullcontext():
        total = register.sparse_conv(flat, ones, *tables, map.flipped, channels)
    if reduce == "mean":
        count = (map.sources >= 0).sum(1, keepdim=True).clamp(min=1)
        total = total / count.to(total.dtype)
    return _in_layout(total.to(features.dtype), map, False)


def _features(features: Any, map: Any) -> Tensor:
    """The features as (rows, C), after checking that they belong to the map."""
    checks.tensor("features", features)
    checks.kind(isinstance(map, KernelMap), "map", "a KernelMap", map)
    expected = map.input_coordinates.shape[:-1]
    fits = features.dim() == len(expected) + 1 and features.shape[:-1] == expected
    contract = lambda: f"({', '.join(str(int(size)) for size in expected)}, C), one row for each input of the map"  # noqa: E731
    checks.shape(fits, "features", contract, features)
    checks.dtype("features", features, checks.FLOATS)
    checks.device("map", map.sources, "features", features)
    return features if features.dim() == 2 else features.flatten(0, 1)


def _in_layout(rows: Tensor, map: KernelMap, biased: bool) -> Tensor:
    """Flat rows in the layout of the map's outputs; those beyond the length of a padded cloud are zero."""
    if map.coordinates.dim() == 2:
        return rows
    batch, size = map.coordinates.shape[:2]
    out = rows.reshape(batch, size, rows.shape[-1])
    if not biased or map.lengths is None:
        return out
    place = torch.arange(size, device=out.device)
    return torch.where((place < map.lengths[:, None])[..., None], out, 0)

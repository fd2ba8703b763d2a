"""Convolution."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ..... import _sparse
from .... import tensor as tensors
from ....tensor import SparseTensor
from ....utils import make_ntuple
from ...utils.kernel import get_kernel_offsets
from .conv_config import get_default_conv_config, get_global_conv_config
from .conv_mode import DOWNSAMPLE_MODES, KMAP_MODES, one_of

__all__ = ["conv3d"]

ONES = (1, 1, 1)
Range = tuple[int, ...] | None


class _Kmap(NamedTuple):
    """A kernel map in a cache."""

    map: _sparse.SiteMap
    coords: Tensor
    spatial_range: Range
    input_coords: Tensor
    input_range: Range
    variant: tuple[Any, ...]  # what the key of the original's cache does not contain


def conv3d(
    input: SparseTensor,
    weight: Tensor,
    kernel_size: int | list[int] | tuple[int, ...],
    bias: Tensor | None = None,
    stride: int | list[int] | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    config: dict[str, Any] | None = None,
    transposed: bool = False,
    generative: bool = False,
    training: bool = False,
) -> SparseTensor:
    """Convolve a sparse tensor.

    Without stride, outputs are the input voxels, and odd kernels are centered. With a stride, output o reads the
    inputs at o * stride - padding + k. If the configuration's `kmap_mode` is "hashmap", it reads those at
    o * stride + k - (kernel_size - 1) // 2 instead. Outputs are all voxels that read an input; coordinates divided by
    the stride if the mode is "hashmap" and `downsample_mode` is "minkowski" or the stride equals the kernel size.

    Args:
        input: Sparse tensor.
        weight: (K, C, D) in the order of `get_kernel_offsets`; (C, D) for a kernel of size 1 without stride.
        kernel_size: Size of the kernel.
        bias: (D,).
        stride: Stride.
        padding: Padding, used with a stride.
        dilation: Distance between kernel positions. The original ignores it.
        config: Configuration; see `conv_config`.
        transposed: Return to the voxels of an earlier convolution with this kernel size, stride and dilation.
        generative: Create the voxels that the transposed convolution reaches, within `spatial_range`.
        training: No effect.

    Returns:
        Sparse tensor that shares the caches of `input`.

    Differences: voxels at the upper border of the batch are kept if `spatial_range` is None; maps for another padding
    are not taken from the cache; even kernels are centered as in `get_kernel_offsets` only for "hashmap".
    """
    size, step, pad = make_ntuple(kernel_size, 3), make_ntuple(stride, 3), make_ntuple(padding, 3)
    spread = make_ntuple(dilation, 3)
    if config is None:
        config = get_global_conv_config() or get_default_conv_config()
    if size == step == spread == ONES:
        feats = input.feats.matmul(weight)
        return tensors.with_feats(input, feats if bias is None else feats + bias)
    if generative:
        found = _generate(input, size, step, spread)
        moved = tuple(old // factor for old, factor in zip(input.stride, step, strict=True))
        input._caches.kmaps = {}
        input._caches.cmaps[moved] = (found.coords, found.spatial_range)
        applied, coords, spatial_range = found.map, found.coords, found.spatial_range
    elif transposed:
        moved = tuple(old // factor for old, factor in zip(input.stride, step, strict=True))
        kept = input._caches.kmaps.get((moved, size, step, spread))
        if kept is None:
            raise ValueError(
                f"a transposed convolution from stride {input.stride} to {moved} must follow a convolution with "
                f"kernel_size {size}, stride {step} and dilation {spread}, got none"
            )
        applied, coords, spatial_range = kept.map.inverse(), kept.input_coords, kept.input_range
    else:
        moved = tuple(old * factor for old, factor in zip(input.stride, step, strict=True))
        kept = _map(input, size, step, pad, spread, config)
        applied, coords, spatial_range = kept.map, kept.coords, kept.spatial_range
    feats = applied.conv(input.feats, weight)
    output = SparseTensor(feats if bias is None else feats + bias, coords, moved, spatial_range)
    output._caches = input._caches
    output._caches.cmaps.setdefault(output.stride, (coords, spatial_range))
    return output


def strided_coords(
    coords: Tensor,
    step: tuple[int, ...],
    size: tuple[int, ...],
    pad: tuple[int, ...],
    spread: tuple[int, ...],
    shape: tuple[int, ...] | None,
    mode: str,
) -> Tensor:
    """(M, 4) int64, the sorted outputs of a strided convolution."""
    if mode == "minkowski" or all(s in (1, k) for s, k in zip(step, size, strict=True)):
        coarse = coords.long()
        coarse[:, 1:] = torch.div(coarse[:, 1:], coarse.new_tensor(step), rounding_mode="floor")
        return _sparse.unique(coarse).coordinates
    return _windows(_sparse.Sites(coords), step, size, pad, spread, shape).outputs.coordinates


def _map(
    input: SparseTensor,
    size: tuple[int, ...],
    step: tuple[int, ...],
    pad: tuple[int, ...],
    spread: tuple[int, ...],
    config: dict[str, Any],
) -> _Kmap:
    centered = one_of("kmap_mode", config["kmap_mode"], KMAP_MODES) == "hashmap"
    mode = one_of("downsample_mode", config["downsample_mode"], DOWNSAMPLE_MODES)
    key, variant = (input.stride, size, step, spread), (pad if step != ONES else None, centered, mode)
    kept: _Kmap | None = input._caches.kmaps.get(key)
    if kept is not None and kept.variant == variant:
        return kept
    inputs, coords, spatial_range = _sites(input), input.coords, input.spatial_range
    middle = _three((k - 1) // 2 * d if centered or k % 2 == 1 else 0 for k, d in zip(size, spread, strict=True))
    x_fastest = size[0] * size[1] * size[2] % 2 == 1
    if step == ONES:
        found = _sparse.site_map(
            inputs, inputs, _three(size), padding=middle, dilation=_three(spread), x_fastest=x_fastest
        )
    else:
        if spatial_range is not None:
            reach = zip(spatial_range[1:], size, step, pad, spread, strict=True)
            spatial_range = (spatial_range[0], *((n + 2 * p - (k - 1) * d - 1) // s + 1 for n, k, s, p, d in reach))
        shape = None if spatial_range is None else spatial_range[1:]
        outputs = None
        if centered:
            outputs = _sparse.Sites(strided_coords(coords, step, size, pad, spread, shape, mode))
        else:
            found = _windows(inputs, step, size, pad, spread, shape)
            outputs = found.outputs
        if centered or x_fastest:
            found = _sparse.site_map(
                inputs, outputs, _three(size), stride=_three(step), padding=middle if centered else _three(pad),
                dilation=_three(spread), x_fastest=x_fastest,
            )  # fmt: skip
        coords = outputs.coordinates.to(coords.dtype)
        moved = tuple(old * factor for old, factor in zip(input.stride, step, strict=True))
        input._caches.hashmaps[moved] = (coords, outputs)
    kept = _Kmap(found, coords, spatial_range, input.coords, input.spatial_range, variant)
    input._caches.kmaps[key] = kept
    return kept


def _windows(
    inputs: _sparse.Sites,
    step: tuple[int, ...],
    size: tuple[int, ...],
    pad: tuple[int, ...],
    spread: tuple[int, ...],
    shape: tuple[int, ...] | None,
) -> _sparse.SiteMap:
    """The map to all outputs that read an input, with x slowest. They start at 0, as on a dense grid."""
    overlap = any(k > s or p for k, s, p in zip(size, step, pad, strict=True))
    bounds = shape
    if overlap and not tensors.get_allow_negative_coordinates():
        if len(inputs):
            lowest = int(inputs.coordinates.min())
            contract = "at least 0 unless torchsparse.tensor.set_allow_negative_coordinates(True) was called"
            checks.value(lowest >= 0, "coords", contract, lowest)
        bounds = (2**31 - 1,) * 3 if shape is None else shape
    voxels, offsets = inputs.packed(inputs.clouds, False)
    found = pointgrad.strided_map(
        voxels, size, stride=step, padding=pad, dilation=spread, shape=bounds, offsets=offsets
    )
    assert found.offsets is not None
    cloud = torch.arange(inputs.clouds, device=voxels.device).repeat_interleave(found.offsets.diff())
    outputs = _sparse.Sites(torch.cat([cloud.unsqueeze(1), found.coordinates], 1))
    return _sparse.SiteMap(inputs, outputs, found)


def _generate(input: SparseTensor, size: tuple[int, ...], step: tuple[int, ...], spread: tuple[int, ...]) -> _Kmap:
    if any(k % 2 == 0 for k in size):
        raise NotImplementedError(
            f"pointgrad.compat supports generative convolutions of torchsparse with odd kernel sizes only, got {size}"
        )
    fine = input.coords.long()
    fine[:, 1:] *= fine.new_tensor(step)
    ways = get_kernel_offsets(size, 1, spread, fine.device)
    reached = fine.unsqueeze(1) + torch.nn.functional.pad(ways, (1, 0))
    if input.spatial_range is not None:
        reached[..., 1:] = torch.minimum(reached[..., 1:], reached.new_tensor(input.spatial_range[1:]) - 1).clamp(min=0)
    outputs = _sparse.Sites(_sparse.unique(reached.reshape(-1, 4)).coordinates)
    middle = _three((k - 1) // 2 * d for k, d in zip(size, spread, strict=True))
    found = _sparse.site_map(
        _sparse.Sites(fine), outputs, _three(size), padding=middle, dilation=_three(spread), x_fastest=True
    )
    coords = outputs.coordinates.to(input.coords.dtype)
    return _Kmap(found, coords, input.spatial_range, input.coords, input.spatial_range, ())


def _sites(input: SparseTensor) -> _sparse.Sites:
    """The voxels of a tensor, sorted once for all convolutions of this stride."""
    kept = input._caches.hashmaps.get(input.stride)
    if kept is None or kept[0] is not input.coords:
        checks.tensor("coords", input.coords)
        checks.shape(input.coords.dim() == 2 and input.coords.shape[1] == 4, "coords", "(N, 4)", input.coords)
        checks.dtype("coords", input.coords, checks.INDICES)
        kept = input._caches.hashmaps[input.stride] = (input.coords, _sparse.Sites(input.coords))
    sites: _sparse.Sites = kept[1]
    return sites


def _three(values: Any) -> tuple[int, int, int]:
    x, y, z = values
    return x, y, z

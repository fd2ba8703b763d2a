"""Farthest point sampling."""

from numbers import Real
from typing import Literal

import numpy as np
import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from .._torchscript import opaque
from ._clouds import coordinates, count_clouds, offsets


def fps(
    src: Tensor,
    batch: Tensor | None = None,
    ratio: float | Tensor | None = None,
    random_start: bool = True,
    batch_size: int | None = None,
    ptr: Tensor | list[int] | None = None,
) -> Tensor:
    """Sample `ceil(ratio * n)` points of each cloud of n points by farthest point sampling.

    The native function is `pointgrad.farthest_point_sampling`, which takes counts instead of a ratio. Differences from
    the original: clouds of any extent are sampled correctly (on a GPU the original starts with a distance of 5e4, so
    that the first samples of a cloud wider than 224 units are not the farthest); empty clouds are allowed; no point is
    sampled twice; ties go to the smallest index.

    Args:
        src: (N, D), (N,) or (N, ...) points.
        batch: (N,) cloud number of each point, sorted.
        ratio: In (0, 1]: a number, or a tensor with one entry or one per cloud; 0.5 if None. The product with n is
            rounded to float32 before it is rounded up, as in the original.
        random_start: Start from a random point of each cloud instead of its first. It depends on `torch.manual_seed` on
            every device (the original's CPU version uses the random numbers of the C library).
        batch_size: Number of clouds. Without it, a GPU synchronizes to read the last entry of `batch`.
        ptr: (B + 1,) tensor or ints, instead of `batch`: cloud b is `src[ptr[b]:ptr[b + 1]]`.

    Returns:
        (M,) int64 rows of `src`, cloud by cloud. A GPU synchronizes to find M, unless there is one cloud or `ptr` is a
        list.

    Example:
        >>> square = torch.tensor([[-1., -1.], [-1., 1.], [1., -1.], [1., 1.]])
        >>> fps(square, ratio=0.5, random_start=False)
        tensor([0, 3])
    """
    if torch.jit.is_scripting() or torch.compiler.is_compiling():
        ratios: Tensor | None = None
        if isinstance(ratio, float):
            ratios = torch.tensor(ratio, dtype=torch.float64)
        elif ratio is not None:
            ratios = ratio
        bounds: Tensor | None = None
        if isinstance(ptr, Tensor):
            bounds = ptr
        elif ptr is not None:
            bounds = torch.tensor(ptr)
        return torch.ops.pointgrad_compat.fps_of_tensors(src, batch, ratios, random_start, batch_size, bounds)
    return _fps(src, batch, ratio, random_start, batch_size, ptr)


def _fake(src: Tensor, *args: object) -> Tensor:
    return src.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


@opaque(_fake, torch.Tag.nondeterministic_seeded)
def fps_of_tensors(
    src: Tensor,
    batch: Tensor | None,
    ratio: Tensor | None,
    random_start: bool,
    batch_size: int | None,
    ptr: Tensor | None,
) -> Tensor:
    """`fps` with the types of an operator, which cannot be unions."""
    return _fps(src, batch, ratio, random_start, batch_size, ptr)


def _fps(
    src: Tensor,
    batch: Tensor | None,
    ratio: float | Tensor | None,
    random_start: bool,
    batch_size: int | None,
    ptr: Tensor | list[int] | None,
) -> Tensor:
    points = coordinates("src", src)
    if points.numel() == 0:
        return torch.empty(0, dtype=torch.int64, device=points.device)
    if ptr is not None:
        bounds = ptr if isinstance(ptr, Tensor) else torch.tensor(ptr, dtype=torch.int64, device="cpu")
        checks.shape(bounds.dim() == 1 and bounds.shape[0] >= 1, "ptr", "(B + 1,)", bounds)
        checks.dtype("ptr", bounds, checks.INDICES)
    elif batch is not None:
        bounds = offsets(batch, count_clouds("batch", batch, points, batch_size))
    else:
        bounds = torch.tensor([0, points.shape[0]], device="cpu")
    host = bounds.cpu()
    if ptr is not None:
        checks.offsets_values(host, points.shape[0], "ptr")
    sizes = np.diff(host.numpy())
    counts = np.ceil(sizes.astype(np.float32) * _ratio(ratio, len(sizes))).astype(np.int64)
    counts = np.clip(counts, 0, np.maximum(sizes, 0))
    start: Literal["random", 0] = "random" if random_start else 0
    return pointgrad.farthest_point_sampling(
        points, counts.tolist(), offsets=bounds.to(points.device), start=start, any_dims=True
    )


def _ratio(ratio: float | Tensor | None, clouds: int) -> np.ndarray:
    """One ratio, or one per cloud."""
    if isinstance(ratio, Tensor):
        checks.shape(ratio.numel() in (1, clouds), "ratio", "one entry, or one per cloud", ratio)
    else:
        ratio = 0.5 if ratio is None else ratio
        checks.kind(isinstance(ratio, Real) and not isinstance(ratio, bool), "ratio", "a number or a tensor", ratio)
    ratios = ratio.flatten().tolist() if isinstance(ratio, Tensor) else [ratio]
    for value in ratios:
        checks.value(0 < value <= 1, "ratio", "in (0, 1]", value)
    return np.array(ratios, dtype=np.float32)

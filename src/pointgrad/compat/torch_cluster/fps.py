"""Farthest point sampling."""

from collections.abc import Sequence
from numbers import Real
from typing import Literal

import numpy as np
import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ._clouds import coordinates, count_clouds, offsets


def fps(
    src: Tensor,
    batch: Tensor | None = None,
    ratio: float | Tensor | None = None,
    random_start: bool = True,
    batch_size: int | None = None,
    ptr: Tensor | Sequence[int] | None = None,
) -> Tensor:
    """Picks `ceil(ratio * n)` points of each cloud of n, each the farthest from all picks before it.

    src: (N, D), (N,) or (N, ...). batch: (N,), sorted. ptr: (B + 1,), a tensor or ints, instead of `batch`: cloud b is
        `src[ptr[b]:ptr[b + 1]]`.
    ratio: in (0, 1], 0.5 if None; a number, or a tensor with one entry or one per cloud. The product with n is
        rounded to float32 before it is rounded up, as in the original.
    random_start: begin at a random point of each cloud, or at its first. `torch.manual_seed` decides which, on every
        device (the original's CPU version draws from the C library, which no seed of torch reaches).
    batch_size: the number of clouds; without it a GPU waits for the last entry of `batch`.
    returns: (M,) int64, cloud after cloud. A GPU waits for M, unless one cloud or a list as `ptr` tells it.

    Clouds of any width are sampled right (on a GPU the original starts from a distance of 5e4, so that the first picks
    of a cloud wider than 224 units are not the farthest), a cloud without points is allowed, no point is picked twice
    (equal points in the original may be), and ties go to the smallest index. Natively:
    `pointgrad.farthest_point_sampling`, which takes counts instead of a ratio.

    >>> square = torch.tensor([[-1., -1.], [-1., 1.], [1., -1.], [1., 1.]])
    >>> fps(square, ratio=0.5, random_start=False)
    tensor([0, 3])
    """
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
    return pointgrad.farthest_point_sampling(points, counts.tolist(), offsets=bounds.to(points.device), start=start)


def _ratio(ratio: float | Tensor | None, clouds: int) -> np.ndarray:
    """One, or one for each cloud."""
    if isinstance(ratio, Tensor):
        checks.shape(ratio.numel() in (1, clouds), "ratio", "one entry, or one per cloud", ratio)
    else:
        ratio = 0.5 if ratio is None else ratio
        checks.kind(isinstance(ratio, Real) and not isinstance(ratio, bool), "ratio", "a number or a tensor", ratio)
    share = ratio.flatten().tolist() if isinstance(ratio, Tensor) else [ratio]
    for value in share:
        checks.value(0 < value <= 1, "ratio", "in (0, 1]", value)
    return np.array(share, dtype=np.float32)

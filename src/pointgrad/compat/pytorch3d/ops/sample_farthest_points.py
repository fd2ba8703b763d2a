"""Farthest point sampling."""

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ..._scalars import number
from . import _clouds

__all__ = ["sample_farthest_points", "sample_farthest_points_naive"]


def sample_farthest_points(
    points: Tensor,
    lengths: Tensor | None = None,
    K: int | Sequence[int] | Tensor = 50,
    random_start_point: bool = False,
) -> tuple[Tensor, Tensor]:
    """Farthest point sampling.

    The native functions are `pointgrad.farthest_point_sampling(points, K, lengths=lengths)` and `pointgrad.gather`.
    Differences from the original: the dtype of the points is kept (the original returns float32); clouds of fewer than
    8 points are also correct on a GPU; no point is sampled twice, even if many are equal; non-finite points are sampled
    last.

    Args:
        points: (N, P, D) points.
        lengths: (N,) number of points in each cloud; None for all.
        K: Number of samples, or one number per cloud as a list or tensor (N,), which is read on the host.
        random_start_point: Start from a random point, drawn from torch's default generator, instead of the first.

    Returns:
        The sampled points (N, max(K), D), differentiable in `points`, and their indices (N, max(K)) int64; padded with
        0.0 and -1 where a cloud has fewer points or a smaller K.

    Example:
        >>> corners = torch.tensor([[[0., 0.], [1., 0.], [0., 3.], [1., 3.]]])
        >>> sample_farthest_points(corners, K=2)[1]
        tensor([[0, 3]])
    """
    if isinstance(points, Tensor) and isinstance(lengths, Tensor) and lengths.shape != points.shape[:1]:
        sizes = f"{tuple(points.shape)} and {tuple(lengths.shape)}"
        raise ValueError(f"points and lengths must have the same batch dimension, got {sizes}")
    _clouds.check("points", points, "lengths", lengths)
    K = number(K)
    _check_count(K, points.shape[0])
    start: Literal["random", 0] = "random" if random_start_point else 0
    index = pointgrad.farthest_point_sampling(points, K, lengths=lengths, start=start, any_dims=True)
    return pointgrad.gather(points, index), index


def sample_farthest_points_naive(
    points: Tensor,
    lengths: Tensor | None = None,
    K: int | Sequence[int] | Tensor = 50,
    random_start_point: bool = False,
) -> tuple[Tensor, Tensor]:
    """Call `sample_farthest_points`. The original has a slower implementation with this name.

    Args:
        points, lengths, K, random_start_point: See `sample_farthest_points`.

    Returns:
        Points and indices.

    Example:
        >>> sample_farthest_points_naive(torch.tensor([[[0.], [1.], [5.]]]), K=2)[1]
        tensor([[0, 2]])
    """
    return sample_farthest_points(points, lengths, K, random_start_point)


def _check_count(K: Any, batch: int) -> None:
    if checks.is_integer(K):
        checks.value(K >= 1, "K", "at least 1", K)
        return
    is_list = isinstance(K, (Sequence, Tensor)) and not isinstance(K, str)
    checks.kind(is_list, "K", "an int, or a list or tensor of ints", K)
    if isinstance(K, Tensor):
        checks.shape(K.dim() == 1, "K", "an int or (N,)", K)
    checks.value(len(K) == batch, "K and points", "the same batch dimension", f"{len(K)} and {batch}", verb="have")

"""Helpers of the other operators."""

from typing import Any

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from . import _clouds
from .knn import knn_points

__all__ = [
    "convert_pointclouds_to_tensor",
    "eyes",
    "get_point_covariances",
    "is_pointclouds",
    "masked_gather",
    "wmean",
]


def masked_gather(points: Tensor, idx: Tensor) -> Tensor:
    """Gather points; an index of -1 gives zeros.

    The native functions are `pointgrad.gather(points, idx)` and `pointgrad.group(points, idx)`.

    Args:
        points: (N, P, D) points of any dtype.
        idx: (N, K) or (N, L, K) indices.

    Returns:
        (N, K, D) or (N, L, K, D), differentiable in `points`.

    Example:
        >>> masked_gather(torch.tensor([[[5.], [6.]]]), torch.tensor([[1, -1]])).tolist()
        [[[6.0], [0.0]]]
    """
    checks.tensor("points", points)
    checks.tensor("idx", idx)
    checks.shape(points.dim() == 3, "points", "(N, P, D)", points)
    fits = idx.shape[:1] == points.shape[:1]
    checks.shape(fits, "idx", lambda: f"the same batch dimension as points, N = {points.shape[0]}", idx, verb="have")
    checks.shape(idx.dim() in (2, 3), "idx", "(N, K) or (N, L, K): another format is not supported", idx)
    return pointgrad.gather(points, idx) if idx.dim() == 2 else pointgrad.group(points, idx)


def wmean(
    x: Tensor,
    weight: Tensor | None = None,
    dim: int | tuple[int, ...] = -2,
    keepdim: bool = True,
    eps: float = 1e-9,
) -> Tensor:
    """Compute means, weighted if weights are given.

    Args:
        x: (..., D).
        weight: Weights that can be broadcast to (...), the same for all D coordinates.
        dim: Dimensions of `x` to average over.
        keepdim: Keep these dimensions with size 1.
        eps: Least sum of weights to divide by.

    Returns:
        The means.

    Example:
        >>> wmean(torch.tensor([[1.], [4.]]), torch.tensor([2., 1.]))
        tensor([[2.]])
    """
    if weight is None:
        return x.mean(dim=dim, keepdim=keepdim)
    sizes = zip(x.shape[-2::-1], weight.shape[::-1], strict=False)
    fits = all(size == given or 1 in (size, given) for size, given in sizes)
    if not fits:
        raise ValueError(f"weights are not compatible with x {tuple(x.shape)}, got {tuple(weight.shape)}")
    weight = weight.unsqueeze(-1)
    total = weight.sum(dim=dim, keepdim=keepdim).clamp(min=eps)
    return (x * weight).sum(dim=dim, keepdim=keepdim) / total


def eyes(dim: int, N: int, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Create identity matrices.

    Args:
        dim: Size of the matrices.
        N: Number of matrices.
        device: Device.
        dtype: Dtype.

    Returns:
        (N, dim, dim).

    Example:
        >>> eyes(2, 1)
        tensor([[[1., 0.],
                 [0., 1.]]])
    """
    return torch.eye(dim, device=device, dtype=dtype).repeat(N, 1, 1)


def is_pointclouds(pcl: Any) -> bool:
    """Check for Pointclouds, ours or the original's, by the methods `points_padded` and `num_points_per_cloud`.

    Args:
        pcl: Any object.

    Returns:
        Whether it has both methods.

    Example:
        >>> is_pointclouds(torch.zeros(1, 2, 3))
        False
    """
    return hasattr(pcl, "points_padded") and hasattr(pcl, "num_points_per_cloud")


def convert_pointclouds_to_tensor(pcl: Any) -> tuple[Tensor, Tensor]:
    """Convert Pointclouds to padded points and sizes.

    Args:
        pcl: Pointclouds, or a tensor (N, P, D).

    Returns:
        Points (N, P, D) and the number of points in each cloud (N,).

    Example:
        >>> convert_pointclouds_to_tensor(torch.zeros(2, 5, 3))[1]
        tensor([5, 5])
    """
    if is_pointclouds(pcl):
        return pcl.points_padded(), pcl.num_points_per_cloud()
    if not isinstance(pcl, Tensor):
        raise ValueError(f"pcl must be Pointclouds or a tensor (N, P, D), got {type(pcl).__name__}")
    checks.shape(pcl.dim() == 3, "pcl", "Pointclouds or (N, P, D)", pcl)
    return pcl, torch.full(pcl.shape[:1], pcl.shape[1], device=pcl.device)


def smallest_size(pcl: Any, points: Tensor) -> int | None:
    """Number of points of the smallest cloud, or None if there are no clouds or it would have to be read from a GPU."""
    if not is_pointclouds(pcl):
        return points.shape[1] if points.shape[0] else None
    sizes = getattr(pcl, "_sizes", None)
    if sizes is None and points.device.type == "cpu":
        sizes = pcl.num_points_per_cloud().tolist()
    return min(sizes) if sizes else None


def get_point_covariances(
    points_padded: Tensor, num_points_per_cloud: Tensor, neighborhood_size: int
) -> tuple[Tensor, Tensor]:
    """Compute the covariance matrix of the nearest neighbors of each point.

    Clouds with fewer points use all of them (original: the padding counts as points at the origin).

    Args:
        points_padded: (N, P, D).
        num_points_per_cloud: (N,).
        neighborhood_size: Number of neighbors K, including the point itself.

    Returns:
        Covariance matrices (N, P, D, D) and neighbors (N, P, K, D), both zero beyond the number of points.

    Example:
        >>> get_point_covariances(torch.tensor([[[-1.], [1.]]]), torch.tensor([2]), 2)[0].flatten()
        tensor([1., 1.])
    """
    near = knn_points(
        points_padded, points_padded, num_points_per_cloud, num_points_per_cloud, K=neighborhood_size, return_nn=True
    ).knn
    assert near is not None
    count = num_points_per_cloud.clamp(1, neighborhood_size).to(near.dtype)[:, None, None, None]
    within = _clouds.within(num_points_per_cloud, neighborhood_size, points_padded)[:, None, :, None]
    central = torch.where(within, near - near.sum(2, keepdim=True) / count, 0)
    own = _clouds.within(num_points_per_cloud, points_padded.shape[1], points_padded)[:, :, None, None]
    return torch.where(own, central.mT @ central / count, 0), torch.where(own, near, 0)

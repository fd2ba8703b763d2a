"""Libraries for clouds of equal size (B, N, 3): pointnet2_ops, mmcv, torch_points_kernels and pytorch3d.

Most of them take features with channels first.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..comparison import Declined, Implementation
from . import Adapter, Peer
from .trees import decline_all_pairs, decline_all_visits

ONE_THREAD = 2e9  # largest number of distances for a library that uses one CPU thread


def long(index: Tensor) -> Tensor:
    return index.long()


def channels_first(features: Tensor) -> Tensor:
    return features.transpose(-1, -2).contiguous()


def hits(points: Tensor, queries: Tensor, radius: float) -> Callable[[Tensor], Tensor]:
    """Replace the padding of ball queries by -1. Short lists repeat their first hit, and empty lists are all 0."""

    def read(index: Tensor) -> Tensor:
        index = index.long()
        repeats = index == index[..., :1]
        repeats[..., 0] = (index == 0).all(-1) & ((queries - points[:, :1]).norm(dim=-1) > radius)
        return torch.where(repeats, -1, index)

    return read


def backward(output: Tensor, source: Tensor, grad: Tensor) -> Implementation:
    """Backward pass to features (B, C, N). The result is read as (B, N, C)."""

    def call() -> Tensor:
        return torch.autograd.grad(output, source, grad, retain_graph=True)[0]

    return Implementation(call, lambda received: received.transpose(-1, -2))


# pointnet2_ops, and functions of the same name in torch_points_kernels and mmcv.


def furthest_point_sample(library: Any, points: Tensor, num_samples: int) -> Implementation:
    decline_all_visits(points, num_samples)
    return Implementation(lambda: library.furthest_point_sample(points, num_samples), long)


def ball_query(library: Any, points: Tensor, queries: Tensor, radius: float, k: int) -> Implementation:
    return Implementation(lambda: library.ball_query(radius, k, points, queries), hits(points, queries, radius))


def grouping(library: Any, features: Tensor, index: Tensor, integers: torch.dtype = torch.int32) -> Implementation:
    first, indices = channels_first(features)[None], index.to(integers)[None]
    return Implementation(lambda: library.grouping_operation(first, indices), lambda out: out[0].permute(1, 2, 0))


def grouping_backward(
    library: Any, features: Tensor, index: Tensor, grad: Tensor, integers: torch.dtype = torch.int32
) -> Implementation:
    source = channels_first(features)[None].requires_grad_()
    upstream = grad.permute(2, 0, 1).contiguous()[None]
    made = backward(library.grouping_operation(source, index.to(integers)[None]), source, upstream)
    return Implementation(made.call, lambda received: made.read(received)[0])


def three_interpolate(library: Any, features: Tensor, index: Tensor, weights: Tensor) -> Implementation:
    first, indices = channels_first(features), index.int()
    return Implementation(lambda: library.three_interpolate(first, indices, weights), lambda out: out.transpose(1, 2))


def three_interpolate_backward(
    library: Any, features: Tensor, index: Tensor, weights: Tensor, grad: Tensor
) -> Implementation:
    source = channels_first(features).requires_grad_()
    return backward(library.three_interpolate(source, index.int(), weights), source, channels_first(grad))


POINTNET2: dict[str, Adapter] = {
    "fps": furthest_point_sample,
    "ball": ball_query,
    "group": grouping,
    "group_backward": grouping_backward,
    "interpolate": three_interpolate,
    "interpolate_backward": three_interpolate_backward,
}


def mmcv_knn(ops: Any, points: Tensor, k: int) -> Implementation:
    """mmcv returns (B, k, M)."""
    decline_all_pairs(points, 1e12)
    return Implementation(lambda: ops.knn(k, points, points), lambda found: found.transpose(1, 2).long())


def mmcv_ball(ops: Any, points: Tensor, queries: Tensor, radius: float, k: int) -> Implementation:
    return Implementation(lambda: ops.ball_query(0.0, radius, k, points, queries), hits(points, queries, radius))


# torch_points_kernels uses int64 indices, and its ball query also returns distances.


def kernels_knn(library: Any, points: Tensor, k: int) -> Implementation:
    if points.is_cuda:
        raise Declined("knn only supports the CPU")
    return Implementation(lambda: library.knn(points, points, k)[0], long)


def kernels_ball(library: Any, points: Tensor, queries: Tensor, radius: float, k: int) -> Implementation:
    call = lambda: library.ball_query(radius, k, points, queries, mode="dense")[0]  # noqa: E731
    return Implementation(call, hits(points, queries, radius))


def kernels_interpolate(library: Any, features: Tensor, index: Tensor, weights: Tensor) -> Implementation:
    first, indices = channels_first(features), index.int() if features.is_cuda else index
    return Implementation(lambda: library.three_interpolate(first, indices, weights), lambda out: out.transpose(1, 2))


# pytorch3d


def pytorch3d_fps(ops: Any, points: Tensor, num_samples: int) -> Implementation:
    decline_all_visits(points, num_samples)
    return Implementation(lambda: ops.sample_farthest_points(points, K=num_samples)[1])


def pytorch3d_knn(ops: Any, points: Tensor, k: int) -> Implementation:
    decline_all_pairs(points, 1e12 if points.is_cuda else ONE_THREAD)
    return Implementation(lambda: ops.knn_points(points, points, K=k).idx)


def pytorch3d_ball(ops: Any, points: Tensor, queries: Tensor, radius: float, k: int) -> Implementation:
    decline_all_pairs(points, 1e12 if points.is_cuda else ONE_THREAD)
    return Implementation(lambda: ops.ball_query(queries, points, K=k, radius=radius, return_nn=False).idx)


def pytorch3d_group(ops: Any, features: Tensor, index: Tensor) -> Implementation:
    return Implementation(lambda: ops.knn_gather(features[None], index[None]), lambda out: out[0])


def pytorch3d_chamfer(ops: Any, points: Tensor, targets: Tensor) -> Implementation:
    decline_all_pairs(points, 1e12 if points.is_cuda else ONE_THREAD)
    loss: Any = importlib.import_module("pytorch3d.loss")
    return Implementation(lambda: loss.chamfer_distance(points, targets)[0])


PEERS = [
    Peer(
        "torch_points_kernels",
        "torch_points_kernels",
        "torch-points-kernels",
        "pip install --no-build-isolation torch-points-kernels",
        {
            "fps": furthest_point_sample,
            "knn": kernels_knn,
            "ball": kernels_ball,
            "group": functools.partial(grouping, integers=torch.int64),
            "group_backward": functools.partial(grouping_backward, integers=torch.int64),
            "interpolate": kernels_interpolate,
        },
    ),
    Peer(
        "pytorch3d",
        "pytorch3d.ops",
        "pytorch3d",
        "pip install --no-build-isolation git+https://github.com/facebookresearch/pytorch3d.git",
        {
            "fps": pytorch3d_fps,
            "knn": pytorch3d_knn,
            "ball": pytorch3d_ball,
            "group": pytorch3d_group,
            "chamfer": pytorch3d_chamfer,
        },
        # Written from the documentation, not tested with the library.
    ),
    Peer(
        "pointnet2_ops",
        "pointnet2_ops.pointnet2_utils",
        "pointnet2-ops",
        "pip install 'git+https://github.com/erikwijmans/Pointnet2_PyTorch#subdirectory=pointnet2_ops_lib'",
        POINTNET2,
        ("cuda",),
        # Written from the documentation, not tested with the library.
    ),
    Peer(
        "mmcv",
        "mmcv.ops",
        "mmcv",
        "pip install mmcv, from source for a new torch",
        POINTNET2 | {"knn": mmcv_knn, "ball": mmcv_ball},
        ("cuda",),
        # Written from the documentation, not tested with the library.
    ),
]

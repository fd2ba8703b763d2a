"""Overhead of calls through the APIs of other libraries (pointgrad.compat) over native calls."""

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import pointgrad

from ..comparison import Comparison, Implementation, Row, Setup

Pair = tuple[Implementation, Implementation]  # native call and compat call, whose results are read into the same form


def _compat(name: str) -> Any:
    return importlib.import_module(f"pointgrad.compat.{name}")


def _clouds(setup: Setup) -> tuple[Tensor, Tensor]:
    """Points (B, N, 3) and queries (B, M, 3)."""
    batch, size, few = (16 if setup.gpu else 2), setup.size(4096), setup.size(1024)
    return torch.rand(batch, size, 3, device=setup.device), torch.rand(batch, few, 3, device=setup.device)


def _packed(points: Tensor) -> tuple[Tensor, Tensor]:
    """Packed points (B * N, 3) and offsets (B + 1,)."""
    return points.flatten(0, 1), torch.arange(len(points) + 1, device=points.device) * points.shape[1]


def _owners(points: Tensor) -> Tensor:
    """Batch index of each packed point, (B * N,)."""
    return torch.arange(len(points), device=points.device).repeat_interleave(points.shape[1])


def pointnet2_fps(setup: Setup) -> Pair:
    other, (points, queries) = _compat("pointnet2_ops.pointnet2_utils"), _clouds(setup)
    count = queries.shape[1]
    return (
        Implementation(lambda: pointgrad.farthest_point_sampling(points, count)),
        Implementation(lambda: other.furthest_point_sample(points, count), Tensor.long),
    )


def pointnet2_ball(setup: Setup) -> Pair:
    """Both select the first points by index. The compat API fills short lists with their first hit."""
    other, (points, queries) = _compat("pointnet2_ops.pointnet2_utils"), _clouds(setup)

    def read(found: Any) -> Tensor:
        index = found.index
        return torch.where(index < 0, index[..., :1], index).clamp(min=0)

    return (
        Implementation(lambda: pointgrad.ball_query(points, 0.1, 32, queries, select="first"), read),
        Implementation(lambda: other.ball_query(0.1, 32, points, queries), Tensor.long),
    )


def pointnet2_group(setup: Setup) -> Pair:
    """The compat API takes channels first, so it has to transpose."""
    other, (points, queries) = _compat("pointnet2_ops.pointnet2_utils"), _clouds(setup)
    features = torch.randn(len(points), points.shape[1], 64, device=setup.device)
    index = torch.randint(0, points.shape[1], (*queries.shape[:2], 16), device=setup.device)
    first, indices = features.transpose(1, 2).contiguous(), index.int()
    return (
        Implementation(lambda: pointgrad.group(features, index)),
        Implementation(lambda: other.grouping_operation(first, indices), lambda found: found.permute(0, 2, 3, 1)),
    )


def pointops_fps(setup: Setup) -> Pair:
    other, (points, queries) = _compat("pointops"), _clouds(setup)
    packed, offsets = _packed(points)
    count = queries.shape[1]
    ends, new_ends = offsets[1:].int(), (torch.arange(len(points), device=setup.device, dtype=torch.int32) + 1) * count
    return (
        Implementation(lambda: pointgrad.farthest_point_sampling(packed, count, offsets=offsets)),
        Implementation(lambda: other.farthest_point_sampling(packed, ends, new_ends), Tensor.long),
    )


def pointops_knn(setup: Setup) -> Pair:
    other, (points, _) = _compat("pointops"), _clouds(setup)
    packed, offsets = _packed(points)
    ends = offsets[1:].int()
    return (
        Implementation(lambda: pointgrad.knn(packed, 16, offsets=offsets), lambda found: found.index),
        Implementation(lambda: other.knn_query(16, packed, ends), lambda found: found[0].long()),
    )


def cluster_fps(setup: Setup) -> Pair:
    other, (points, queries) = _compat("torch_cluster"), _clouds(setup)
    packed, offsets = _packed(points)
    owners, count = _owners(points), queries.shape[1]
    ratio = (count - 0.5) / points.shape[1]
    return (
        Implementation(lambda: pointgrad.farthest_point_sampling(packed, count, offsets=offsets)),
        Implementation(lambda: other.fps(packed, owners, ratio, random_start=False, batch_size=len(points))),
    )


def cluster_knn(setup: Setup) -> Pair:
    """The compat API returns edges (2, E)."""
    other, (points, _) = _compat("torch_cluster"), _clouds(setup)
    packed, offsets = _packed(points)
    owners = _owners(points)
    return (
        Implementation(lambda: pointgrad.knn(packed, 16, offsets=offsets), lambda found: found.index.flatten()),
        Implementation(
            lambda: other.knn(packed, packed, 16, owners, owners, batch_size=len(points)), lambda edges: edges[1]
        ),
    )


def scatter(setup: Setup) -> Pair:
    other = _compat("torch_scatter")
    size = setup.size(100_000)
    values = torch.randn(4 * size, 64, device=setup.device)
    index = torch.randint(0, size, (4 * size,), device=setup.device)
    return (
        Implementation(lambda: pointgrad.scatter(values, index, size)),
        Implementation(lambda: other.scatter(values, index, dim=0, dim_size=size, reduce="sum")),
    )


def segment(setup: Setup) -> Pair:
    other = _compat("torch_scatter")
    size = setup.size(100_000)
    values = torch.randn(4 * size, 64, device=setup.device)
    offsets = torch.arange(size + 1, device=setup.device) * 4
    return (
        Implementation(lambda: pointgrad.segment(values, offsets)),
        Implementation(lambda: other.segment_csr(values, offsets, reduce="sum")),
    )


def pytorch3d_fps(setup: Setup) -> Pair:
    """The compat API also gathers the sampled points."""
    other, (points, queries) = _compat("pytorch3d.ops"), _clouds(setup)
    count = queries.shape[1]
    return (
        Implementation(lambda: pointgrad.farthest_point_sampling(points, count)),
        Implementation(lambda: other.sample_farthest_points(points, K=count), lambda found: found[1]),
    )


def pytorch3d_knn(setup: Setup) -> Pair:
    other, (points, queries) = _compat("pytorch3d.ops"), _clouds(setup)
    return (
        Implementation(lambda: pointgrad.knn(points, 16, queries), lambda found: found.index),
        Implementation(lambda: other.knn_points(queries, points, K=16), lambda found: found.idx),
    )


def pytorch3d_chamfer(setup: Setup) -> Pair:
    other, (points, queries) = _compat("pytorch3d.loss"), _clouds(setup)
    return (
        Implementation(lambda: pointgrad.chamfer_distance(points, queries)),
        Implementation(lambda: other.chamfer_distance(points, queries), lambda found: found[0]),
    )


PAIRS: dict[str, Callable[[Setup], Pair]] = {
    "pointnet2_ops furthest_point_sample": pointnet2_fps,
    "pointnet2_ops ball_query": pointnet2_ball,
    "pointnet2_ops grouping_operation": pointnet2_group,
    "pointops farthest_point_sampling": pointops_fps,
    "pointops knn_query": pointops_knn,
    "torch_cluster fps": cluster_fps,
    "torch_cluster knn": cluster_knn,
    "torch_scatter scatter": scatter,
    "torch_scatter segment_csr": segment,
    "pytorch3d sample_farthest_points": pytorch3d_fps,
    "pytorch3d knn_points": pytorch3d_knn,
    "pytorch3d chamfer_distance": pytorch3d_chamfer,
}


def compare(make: Callable[[Setup], Pair], setup: Setup) -> Comparison:
    native, through = make(setup)
    expected = native.read(native.call())

    def check(received: Tensor) -> None:
        torch.testing.assert_close(received, expected)

    return Comparison(native, check, related={"compat": through})


def rows(setup: Setup) -> Iterator[Row]:
    for name, make in PAIRS.items():
        yield Row(f"compat {name}", functools.partial(compare, make, setup), rounds=31)

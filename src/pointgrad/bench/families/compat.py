"""Overhead of calls through the APIs of other libraries (pointgrad.compat) over native calls."""

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pointgrad import ball_query, chamfer_distance, farthest_point_sampling, group, knn, scatter, segment

from ..comparison import Comparison, Implementation, Row, Setup

Pair = tuple[Implementation, Implementation]  # native call and compat call, whose results are read into the same form


class Clouds:
    """Padded points (B, N, 3) and queries (B, M, 3), and the points packed with offsets and with a batch index."""

    def __init__(self, setup: Setup) -> None:
        batch, size, self.count = (16 if setup.gpu else 2), setup.size(4096), setup.size(1024)
        self.points = torch.rand(batch, size, 3, device=setup.device)
        self.queries = torch.rand(batch, self.count, 3, device=setup.device)
        number = torch.arange(batch + 1, device=setup.device)
        self.packed, self.offsets, self.ends = self.points.flatten(0, 1), number * size, (number[1:] * size).int()
        self.owners, self.new_ends = number[:-1].repeat_interleave(size), (number[1:] * self.count).int()


def _first_hits(found: Any) -> Tensor:
    """The compat API fills short lists with their first hit."""
    return torch.where(found.index < 0, found.index[..., :1], found.index).clamp(min=0)


def _index(found: Any) -> Tensor:
    index: Tensor = found.index
    return index


def pointnet2_fps(other: Any, setup: Setup) -> Pair:
    c = Clouds(setup)
    ours = Implementation(lambda: farthest_point_sampling(c.points, c.count))
    return ours, Implementation(lambda: other.furthest_point_sample(c.points, c.count), Tensor.long)


def pointnet2_ball(other: Any, setup: Setup) -> Pair:
    c = Clouds(setup)
    ours = Implementation(lambda: ball_query(c.points, 0.1, 32, c.queries, select="first"), _first_hits)
    return ours, Implementation(lambda: other.ball_query(0.1, 32, c.points, c.queries), Tensor.long)


def pointnet2_group(other: Any, setup: Setup) -> Pair:
    """The compat API takes channels first, so it has to transpose."""
    c = Clouds(setup)
    features = torch.randn(*c.points.shape[:2], 64, device=setup.device)
    index = torch.randint(0, c.points.shape[1], (*c.queries.shape[:2], 16), device=setup.device)
    first, indices = features.transpose(1, 2).contiguous(), index.int()
    through = Implementation(lambda: other.grouping_operation(first, indices), lambda found: found.permute(0, 2, 3, 1))
    return Implementation(lambda: group(features, index)), through


def pointops_fps(other: Any, setup: Setup) -> Pair:
    c = Clouds(setup)
    ours = Implementation(lambda: farthest_point_sampling(c.packed, c.count, offsets=c.offsets))
    return ours, Implementation(lambda: other.farthest_point_sampling(c.packed, c.ends, c.new_ends), Tensor.long)


def pointops_knn(other: Any, setup: Setup) -> Pair:
    c = Clouds(setup)
    ours = Implementation(lambda: knn(c.packed, 16, offsets=c.offsets), _index)
    return ours, Implementation(lambda: other.knn_query(16, c.packed, c.ends), lambda found: found[0].long())


def cluster_fps(other: Any, setup: Setup) -> Pair:
    c = Clouds(setup)
    options = {"ratio": (c.count - 0.5) / c.points.shape[1], "random_start": False, "batch_size": len(c.points)}
    ours = Implementation(lambda: farthest_point_sampling(c.packed, c.count, offsets=c.offsets))
    return ours, Implementation(lambda: other.fps(c.packed, c.owners, **options))


def cluster_knn(other: Any, setup: Setup) -> Pair:
    """The compat API returns edges (2, E)."""
    c = Clouds(setup)
    ours = Implementation(lambda: knn(c.packed, 16, offsets=c.offsets), lambda found: found.index.flatten())
    arguments = (c.packed, c.packed, 16, c.owners, c.owners)
    return ours, Implementation(lambda: other.knn(*arguments, batch_size=len(c.points)), lambda edges: edges[1])


def by_index(other: Any, setup: Setup) -> Pair:
    size = setup.size(100_000)
    values = torch.randn(4 * size, 64, device=setup.device)
    index = torch.randint(0, size, (4 * size,), device=setup.device)
    through = Implementation(lambda: other.scatter(values, index, dim=0, dim_size=size, reduce="sum"))
    return Implementation(lambda: scatter(values, index, size)), through


def by_segment(other: Any, setup: Setup) -> Pair:
    size = setup.size(100_000)
    values = torch.randn(4 * size, 64, device=setup.device)
    offsets = torch.arange(size + 1, device=setup.device) * 4
    through = Implementation(lambda: other.segment_csr(values, offsets, reduce="sum"))
    return Implementation(lambda: segment(values, offsets)), through


def pytorch3d_fps(other: Any, setup: Setup) -> Pair:
    """The compat API also gathers the sampled points."""
    c = Clouds(setup)
    ours = Implementation(lambda: farthest_point_sampling(c.points, c.count))
    return ours, Implementation(lambda: other.sample_farthest_points(c.points, K=c.count), lambda found: found[1])


def pytorch3d_knn(other: Any, setup: Setup) -> Pair:
    c = Clouds(setup)
    ours = Implementation(lambda: knn(c.points, 16, c.queries), _index)
    return ours, Implementation(lambda: other.knn_points(c.queries, c.points, K=16), lambda found: found.idx)


def pytorch3d_chamfer(other: Any, setup: Setup) -> Pair:
    c = Clouds(setup)
    ours = Implementation(lambda: chamfer_distance(c.points, c.queries))
    return ours, Implementation(lambda: other.chamfer_distance(c.points, c.queries), lambda found: found[0])


PAIRS: dict[str, tuple[str, Callable[[Any, Setup], Pair]]] = {
    "pointnet2_ops furthest_point_sample": ("pointnet2_ops.pointnet2_utils", pointnet2_fps),
    "pointnet2_ops ball_query": ("pointnet2_ops.pointnet2_utils", pointnet2_ball),
    "pointnet2_ops grouping_operation": ("pointnet2_ops.pointnet2_utils", pointnet2_group),
    "pointops farthest_point_sampling": ("pointops", pointops_fps),
    "pointops knn_query": ("pointops", pointops_knn),
    "torch_cluster fps": ("torch_cluster", cluster_fps),
    "torch_cluster knn": ("torch_cluster", cluster_knn),
    "torch_scatter scatter": ("torch_scatter", by_index),
    "torch_scatter segment_csr": ("torch_scatter", by_segment),
    "pytorch3d sample_farthest_points": ("pytorch3d.ops", pytorch3d_fps),
    "pytorch3d knn_points": ("pytorch3d.ops", pytorch3d_knn),
    "pytorch3d chamfer_distance": ("pytorch3d.loss", pytorch3d_chamfer),
}


def compare(name: str, setup: Setup) -> Comparison:
    module, make = PAIRS[name]
    native, through = make(importlib.import_module(f"pointgrad.compat.{module}"), setup)
    expected = native.read(native.call())
    check = functools.partial(torch.testing.assert_close, expected=expected)
    return Comparison(native, check, related={"compat": through})


def rows(setup: Setup) -> Iterator[Row]:
    for name in PAIRS:
        yield Row(f"compat {name}", functools.partial(compare, name, setup), rounds=31)

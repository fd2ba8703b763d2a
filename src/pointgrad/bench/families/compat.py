"""Overhead of calls through the APIs of other libraries (pointgrad.compat) over native calls."""

import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pointgrad import ball_query, chamfer_distance, farthest_point_sampling, group, knn, scatter, segment

from ..comparison import Comparison, Implementation, Row, Setup


class Inputs:
    """Inputs of all calls, allocated by the first call that uses them: B padded clouds, and rows to reduce."""

    def __init__(self, setup: Setup) -> None:
        self.device, self.batch = setup.device, 16 if setup.gpu else 2
        self.size, self.count, self.groups = setup.size(4096), setup.size(1024), setup.size(100_000)
        self.offsets = torch.arange(self.batch + 1, device=self.device) * self.size
        self.ends = self.offsets[1:].int()
        self.new_ends = (torch.arange(1, self.batch + 1, device=self.device) * self.count).int()
        self.ratio = (self.count - 0.5) / self.size
        self.owners = torch.arange(self.batch, device=self.device).repeat_interleave(self.size)
        self.segments = torch.arange(self.groups + 1, device=self.device) * 4

    points = cached_property(lambda self: torch.rand(self.batch, self.size, 3, device=self.device))
    queries = cached_property(lambda self: torch.rand(self.batch, self.count, 3, device=self.device))
    packed = cached_property(lambda self: self.points.flatten(0, 1))
    features = cached_property(lambda self: torch.randn(self.batch, self.size, 64, device=self.device))
    channels_first = cached_property(lambda self: self.features.transpose(1, 2).contiguous())
    lists = cached_property(lambda self: torch.randint(0, self.size, (self.batch, self.count, 16), device=self.device))
    int_lists = cached_property(lambda self: self.lists.int())
    values = cached_property(lambda self: torch.randn(4 * self.groups, 64, device=self.device))
    index = cached_property(lambda self: torch.randint(0, self.groups, (4 * self.groups,), device=self.device))


@dataclass(frozen=True)
class Pair:
    """A native call, and the same call through a module of pointgrad.compat. Results are read into the same form."""

    module: str
    native: Callable[[Inputs], Any]
    through: Callable[[Any, Inputs], Any]
    read_native: Callable[[Any], Any] = lambda result: result
    read_through: Callable[[Any], Any] = lambda result: result


def first_hits(found: Any) -> Tensor:
    """The API of pointnet2_ops fills short lists with their first hit."""
    return torch.where(found.index < 0, found.index[..., :1], found.index).clamp(min=0)


def padded_fps(i: Inputs) -> Tensor:
    return farthest_point_sampling(i.points, i.count)


def packed_fps(i: Inputs) -> Tensor:
    return farthest_point_sampling(i.packed, i.count, offsets=i.offsets)


POINTNET2 = "pointnet2_ops.pointnet2_utils"
PAIRS = {
    "pointnet2_ops furthest_point_sample": Pair(
        POINTNET2, padded_fps, lambda other, i: other.furthest_point_sample(i.points, i.count),
        read_through=Tensor.long,
    ),
    "pointnet2_ops ball_query": Pair(
        POINTNET2, lambda i: ball_query(i.points, 0.1, 32, i.queries, select="first"),
        lambda other, i: other.ball_query(0.1, 32, i.points, i.queries), first_hits, Tensor.long,
    ),
    "pointnet2_ops grouping_operation": Pair(  # takes channels first, so it has to transpose
        POINTNET2, lambda i: group(i.features, i.lists),
        lambda other, i: other.grouping_operation(i.channels_first, i.int_lists),
        read_through=lambda found: found.permute(0, 2, 3, 1),
    ),
    "pointops farthest_point_sampling": Pair(
        "pointops", packed_fps, lambda other, i: other.farthest_point_sampling(i.packed, i.ends, i.new_ends),
        read_through=Tensor.long,
    ),
    "pointops knn_query": Pair(
        "pointops", lambda i: knn(i.packed, 16, offsets=i.offsets),
        lambda other, i: other.knn_query(16, i.packed, i.ends),
        lambda found: found.index, lambda found: found[0].long(),
    ),
    "torch_cluster fps": Pair(
        "torch_cluster", packed_fps,
        lambda other, i: other.fps(i.packed, i.owners, i.ratio, random_start=False, batch_size=i.batch),
    ),
    "torch_cluster knn": Pair(  # returns edges (2, E)
        "torch_cluster", lambda i: knn(i.packed, 16, offsets=i.offsets),
        lambda other, i: other.knn(i.packed, i.packed, 16, i.owners, i.owners, batch_size=i.batch),
        lambda found: found.index.flatten(), lambda edges: edges[1],
    ),
    "torch_scatter scatter": Pair(
        "torch_scatter", lambda i: scatter(i.values, i.index, i.groups),
        lambda other, i: other.scatter(i.values, i.index, dim=0, dim_size=i.groups, reduce="sum"),
    ),
    "torch_scatter segment_csr": Pair(
        "torch_scatter", lambda i: segment(i.values, i.segments),
        lambda other, i: other.segment_csr(i.values, i.segments, reduce="sum"),
    ),
    "pytorch3d sample_farthest_points": Pair(  # also gathers the sampled points
        "pytorch3d.ops", padded_fps, lambda other, i: other.sample_farthest_points(i.points, K=i.count),
        read_through=lambda found: found[1],
    ),
    "pytorch3d knn_points": Pair(
        "pytorch3d.ops", lambda i: knn(i.points, 16, i.queries),
        lambda other, i: other.knn_points(i.queries, i.points, K=16),
        lambda found: found.index, lambda found: found.idx,
    ),
    "pytorch3d chamfer_distance": Pair(
        "pytorch3d.loss", lambda i: chamfer_distance(i.points, i.queries),
        lambda other, i: other.chamfer_distance(i.points, i.queries), read_through=lambda found: found[0],
    ),
}  # fmt: skip


def compare(pair: Pair, setup: Setup) -> Comparison:
    inputs, other = Inputs(setup), importlib.import_module(f"pointgrad.compat.{pair.module}")
    native = Implementation(lambda: pair.native(inputs), pair.read_native)
    through = Implementation(lambda: pair.through(other, inputs), pair.read_through)
    check = functools.partial(torch.testing.assert_close, expected=native.read(native.call()))
    return Comparison(native, check, related={"compat": through})


def rows(setup: Setup) -> Iterator[Row]:
    for name, pair in PAIRS.items():
        yield Row(f"compat {name}", functools.partial(compare, pair, setup), rounds=31)

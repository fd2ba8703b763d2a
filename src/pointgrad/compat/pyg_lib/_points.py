"""Operators on points: sampling, neighbors as edges, clusters. Clouds are given as the bounds of their rows."""

from typing import Any

import torch
from torch import Tensor

from pointgrad.ops import checks

from .. import torch_cluster
from ._library import opaque


def _fake_voxels(pos: Tensor, *args: Any) -> Tensor:
    _check("ptr", None, "pos", pos)
    return pos.new_empty(pos.shape[0], dtype=torch.int64)


def _fake_nearest(x: Tensor, y: Tensor, ptr_x: Tensor | None = None, ptr_y: Tensor | None = None) -> Tensor:
    _check_pair(x, y, ptr_x, ptr_y)
    return x.new_empty(x.shape[0], dtype=torch.int64)


def _fake_sample(src: Tensor, ptr: Tensor, *args: Any) -> Tensor:
    _check("ptr", ptr, "src", src)
    return src.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


def _fake_edges(x: Tensor, y: Tensor, ptr_x: Tensor | None = None, ptr_y: Tensor | None = None, *args: Any) -> Tensor:
    _check_pair(x, y, ptr_x, ptr_y)
    return x.new_empty(2, torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


@opaque(
    "fps(Tensor src, Tensor ptr, float ratio=0.5, bool random_start=True) -> Tensor",
    _fake_sample,
    torch.Tag.nondeterministic_seeded,
)
def fps(src: Tensor, ptr: Tensor, ratio: float = 0.5, random_start: bool = True) -> Tensor:
    return torch_cluster.fps(src, ratio=ratio, random_start=random_start, ptr=ptr)


@opaque(
    "knn(Tensor x, Tensor y, Tensor? ptr_x=None, Tensor? ptr_y=None, int k=1, bool cosine=False, int num_workers=1) "
    "-> Tensor",
    _fake_edges,
)
def knn(
    x: Tensor,
    y: Tensor,
    ptr_x: Tensor | None = None,
    ptr_y: Tensor | None = None,
    k: int = 1,
    cosine: bool = False,
    num_workers: int = 1,
) -> Tensor:
    batch_x, batch_y = _batches(x, y, ptr_x, ptr_y)
    return torch_cluster.knn(x, y, k, batch_x, batch_y, cosine, num_workers, _count(ptr_x, ptr_y))


@opaque(
    "radius(Tensor x, Tensor y, Tensor? ptr_x=None, Tensor? ptr_y=None, float r=1.0, int max_num_neighbors=32, "
    "int num_workers=1, bool ignore_same_index=False) -> Tensor",
    _fake_edges,
)
def radius(
    x: Tensor,
    y: Tensor,
    ptr_x: Tensor | None = None,
    ptr_y: Tensor | None = None,
    r: float = 1.0,
    max_num_neighbors: int = 32,
    num_workers: int = 1,
    ignore_same_index: bool = False,
) -> Tensor:
    batch_x, batch_y = _batches(x, y, ptr_x, ptr_y)
    clouds = _count(ptr_x, ptr_y)
    return torch_cluster.radius(
        x, y, r, batch_x, batch_y, max_num_neighbors, num_workers, clouds, ignore_same_index=ignore_same_index
    )


@opaque("nearest(Tensor x, Tensor y, Tensor? ptr_x=None, Tensor? ptr_y=None) -> Tensor", _fake_nearest)
def nearest(x: Tensor, y: Tensor, ptr_x: Tensor | None = None, ptr_y: Tensor | None = None) -> Tensor:
    return torch_cluster.nearest(x, y, *_batches(x, y, ptr_x, ptr_y))


@opaque("grid_cluster(Tensor pos, Tensor size, Tensor? start=None, Tensor? end=None) -> Tensor", _fake_voxels)
def grid_cluster(pos: Tensor, size: Tensor, start: Tensor | None = None, end: Tensor | None = None) -> Tensor:
    return torch_cluster.grid_cluster(pos, size, start, end)


def _batches(x: Tensor, y: Tensor, ptr_x: Tensor | None, ptr_y: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Cloud numbers of the rows of both arguments; the same tensor if the arguments are the same."""
    _check_pair(x, y, ptr_x, ptr_y)
    batch_x = _batch("ptr_x", ptr_x, x)
    return batch_x, batch_x if x is y and ptr_x is ptr_y else _batch("ptr_y", ptr_y, y)


def _batch(name: str, ptr: Tensor | None, points: Tensor) -> Tensor | None:
    if ptr is None:
        return None
    if ptr.device.type == "cpu":
        checks.offsets_values(ptr, points.shape[0], name)
    return torch.bucketize(torch.arange(points.shape[0], device=ptr.device), ptr[1:], right=True)


def _check_pair(x: Tensor, y: Tensor, ptr_x: Tensor | None, ptr_y: Tensor | None) -> None:
    _check("ptr_x", ptr_x, "x", x)
    _check("ptr_y", ptr_y, "y", y)
    clouds = _count(ptr_x, ptr_y)
    for name, ptr in (("ptr_x", ptr_x), ("ptr_y", ptr_y)):
        checks.value(clouds == 1 or ptr is not None, name, lambda: f"a tensor if there are {clouds} clouds", None)


def _check(name: str, ptr: Tensor | None, points_name: str, points: Tensor) -> None:
    checks.shape(points.dim() >= 1, points_name, "(N,) or (N, D)", points)
    if ptr is not None:
        checks.shape(ptr.dim() == 1 and ptr.shape[0] >= 1, name, "(B + 1,)", ptr)
        checks.dtype(name, ptr, checks.INDICES)
        checks.device(name, ptr, points_name, points)


def _count(*ptrs: Tensor | None) -> int:
    """Number of clouds."""
    return max((1, *(ptr.shape[0] - 1 for ptr in ptrs if ptr is not None)))

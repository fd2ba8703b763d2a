"""k nearest neighbors and ball queries, including the time to build the search structure."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import pointgrad
from pointgrad.catalog.magnitudes import Arguments
from pointgrad.catalog.neighbors import all_pairs, check_nearest, few_pairs, read_index

from ..comparison import Comparison, Declined, Implementation, Row, Setup, short


def lidar_scan() -> Tensor:
    """One LiDAR sweep (N, 3) from the folder POINTGRAD_TEST_DATA."""
    path = Path(os.environ.get("POINTGRAD_TEST_DATA", "")) / "scans" / "kitti_training_000000.bin"
    if not path.is_file():
        raise Declined(f"needs scans/{path.name} in the folder POINTGRAD_TEST_DATA")
    return torch.from_file(str(path), size=path.stat().st_size // 4).reshape(-1, 4)[:, :3].contiguous()


def sweep(device: str) -> Comparison:
    given: Arguments = {"points": lidar_scan().to(device)[None], "k": 16}
    return Comparison(
        Implementation(partial(pointgrad.knn, **given), read_index),
        partial(check_nearest, given),
        {"cdist + topk": Implementation(partial(all_pairs, **given))} if few_pairs(given) else {},
        work=("knn", given),
    )


def prebuilt_index(size: int, device: str) -> Comparison:
    points = torch.rand(size, 3, device=device)
    index = pointgrad.NeighborIndex(points)
    return Comparison(
        Implementation(lambda: index.knn(16), lambda found: found.index[None]),
        partial(check_nearest, {"points": points[None], "k": 16}),
        related={"building": Implementation(lambda: pointgrad.NeighborIndex(points), check=lambda built: None)},
    )


def rows(setup: Setup) -> Iterator[Row]:
    yield Row("k nearest of a LiDAR sweep, k 16", partial(sweep, setup.device), rounds=11 if setup.gpu else 7)
    size = setup.size(1_000_000)
    yield Row(f"k nearest {short(size)}, k 16, index at hand", partial(prebuilt_index, size, setup.device), rounds=7)

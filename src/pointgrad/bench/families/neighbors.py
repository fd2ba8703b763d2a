"""k nearest neighbors, ball queries and chamfer distances, including the time to build the search structure."""

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pointgrad
from pointgrad.catalog.distance import plain_chamfer

from ..comparison import Check, Comparison, Declined, Implementation, Row, Setup, short

ROUNDING = 8 * torch.finfo(torch.float32).eps  # error of |a|^2 + |b|^2 - 2ab relative to the largest square


def lidar_scan() -> Tensor:
    """One LiDAR sweep (N, 3) from the folder POINTGRAD_TEST_DATA."""
    path = Path(os.environ.get("POINTGRAD_TEST_DATA", "")) / "scans" / "kitti_training_000000.bin"
    if not path.is_file():
        raise Declined(f"needs scans/{path.name} in the folder POINTGRAD_TEST_DATA")
    return torch.from_file(str(path), size=path.stat().st_size // 4).reshape(-1, 4)[:, :3].contiguous()


def _sample_queries(points: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Random queries of the first cloud (S,) and their squared distances to all points in float64 (S, N)."""
    chosen = torch.randperm(queries.shape[1], device=queries.device)[: max(8, min(200, 20_000_000 // points.shape[1]))]
    cloud, queries = points[0].double(), queries[0, chosen].double()
    return chosen, (cloud[None] - queries[:, None]).square().sum(-1)


def _distances(distance2: Tensor, index: Tensor, fill: float) -> Tensor:
    """Sorted squared distances (S, K) of the listed points, with `fill` for -1."""
    assert (index < distance2.shape[1]).all(), "an index is out of range"
    rows = index.sort(dim=1).values
    assert not ((rows[:, 1:] == rows[:, :-1]) & (rows[:, 1:] >= 0)).any(), "a neighbor is listed twice"
    listed = distance2.gather(1, index.clamp(min=0))
    return torch.where(index < 0, fill, listed).sort(dim=1).values


def nearest(points: Tensor, k: int) -> Check:
    """Check that random queries have k different neighbors, as near as the nearest up to rounding, in any order."""

    def check(received: Tensor) -> None:
        index = received.to(points.device)
        expected = (*points.shape[:2], k)
        assert index.shape == expected, f"shape must be {expected}, got {tuple(index.shape)}"
        chosen, distance2 = _sample_queries(points, points)
        found = _distances(distance2, index[0, chosen], torch.inf)
        exact = distance2.topk(k, largest=False).values.sort(dim=1).values
        slack = 1e-5 * exact + ROUNDING * float(points.square().sum(-1).max())
        wrong = ((found - exact).abs() > slack).any(1).sum()
        assert wrong == 0, f"{int(wrong)} of {len(chosen)} lists are not the nearest"

    return check


def inside(points: Tensor, queries: Tensor, radius: float, k: int) -> Check:
    """Check that random queries have different neighbors inside the ball: any k of them, or all if there are fewer."""

    def check(received: Tensor) -> None:
        index = received.to(points.device)
        begin = tuple(queries.shape[:2])
        assert index.shape[:2] == begin, f"shape must begin with {begin}, got {tuple(index.shape)}"
        chosen, distance2 = _sample_queries(points, queries)
        found = _distances(distance2, index[0, chosen], -1.0)
        assert (found <= radius**2 * (1 + 1e-5)).all(), "a point is outside the ball"
        expected = (distance2 < radius**2 * (1 - 1e-5)).sum(1).clamp(max=k)
        too_short = ((found >= 0).sum(1) < expected).sum()
        assert too_short == 0, f"{int(too_short)} of {len(chosen)} lists miss points"

    return check


def all_pairs(points: Tensor, k: int) -> Tensor:
    return torch.cdist(points, points).topk(k, largest=False).indices


def all_pairs_ball(points: Tensor, queries: Tensor, radius: float, k: int) -> Tensor:
    distance, index = torch.cdist(queries, points).topk(min(k, points.shape[1]), largest=False)
    return torch.where(distance <= radius, index, -1)


def compare(name: str, ours: Callable[..., Any], plain: Callable[..., Any], check: Check, **given: Any) -> Comparison:
    """Compare a search with a plain form that takes the same arguments, if it has few enough pairs of points."""
    points, queries = given["points"], given.get("queries", given["points"])
    small = len(points) * points.shape[1] * queries.shape[1] <= (2**28 if points.is_cuda else 2**24)
    return Comparison(
        Implementation(functools.partial(ours, **given), lambda found: found.index),
        check,
        {"cdist + topk": Implementation(functools.partial(plain, **given))} if small else {},
        (lambda: Implementation(functools.partial(torch.compile(plain), **given))) if small else None,
        work=(name, given),
    )


def knn(points: Tensor, k: int) -> Comparison:
    points = points if points.dim() == 3 else points[None]
    return compare("knn", pointgrad.knn, all_pairs, nearest(points, k), points=points, k=k)


def uniform_knn(batch: int, size: int, device: str) -> Comparison:
    return knn(torch.rand(batch, size, 3, device=device), 16)


def ball(batch: int, size: int, centers: int, radius: float, k: int, device: str) -> Comparison:
    points, queries = torch.rand(batch, size, 3, device=device), torch.rand(batch, centers, 3, device=device)
    given: dict[str, Any] = {"points": points, "queries": queries, "radius": radius, "k": k}
    return compare("ball", pointgrad.ball_query, all_pairs_ball, inside(**given), **given)


def prebuilt_index(size: int, device: str) -> Comparison:
    points = torch.rand(size, 3, device=device)
    index = pointgrad.NeighborIndex(points)
    return Comparison(
        Implementation(lambda: index.knn(16), lambda found: found.index[None]),
        nearest(points[None], 16),
        related={"building": Implementation(lambda: pointgrad.NeighborIndex(points), check=lambda built: None)},
    )


def chamfer(batch: int, size: int, device: str) -> Comparison:
    points, targets = torch.rand(batch, size, 3, device=device), torch.rand(batch, size, 3, device=device)

    def check(received: Tensor) -> None:
        pairs = zip(points.double().split(1), targets.double().split(1), strict=True)
        exact = float(torch.stack([plain_chamfer(*pair) for pair in pairs]).mean())
        assert abs(float(received) - exact) < 1e-5 * exact, f"distance must be {exact}, got {float(received)}"

    return Comparison(
        Implementation(lambda: pointgrad.chamfer_distance(points, targets)),
        check,
        {"all pairs": Implementation(lambda: plain_chamfer(points, targets))},
        lambda: Implementation(functools.partial(torch.compile(plain_chamfer), points, targets)),
        work=("chamfer", {"points": points, "targets": targets}),
    )


def rows(setup: Setup) -> Iterator[Row]:
    gpu, device, number = setup.gpu, setup.device, setup.size
    for batch, full in ((16 if gpu else 1, 4096), (1, 100_000), (1, 1_000_000)):
        size = number(full)
        yield Row(
            f"k nearest {f'{batch} x ' if gpu else ''}{short(size)}, k 16",
            functools.partial(uniform_knn, batch, size, device),
            rounds=31 if size < 10_000 else 11 if gpu else 7,
        )
    yield Row("k nearest of a LiDAR sweep, k 16", lambda: knn(lidar_scan().to(device), 16), rounds=11 if gpu else 7)
    balls = [(16, 4096, 1024, 0.1), (8, 16384, 4096, 0.1), (1, 200_000, 50_000, 0.02)]
    if not gpu:
        balls = [(1, 4096, 1024, 0.1), (1, 100_000, 100_000, 0.02)]
    for batch, full, centers, radius in balls:
        size, centers = number(full), number(centers)
        yield Row(
            f"ball {batch} x {short(size)}, {short(centers)} queries, r {radius}",
            functools.partial(ball, batch, size, centers, radius, 32, device),
        )
    million = number(1_000_000)
    yield Row(
        f"k nearest {short(million)}, k 16, index at hand", functools.partial(prebuilt_index, million, device), rounds=7
    )
    batch, size = (8 if gpu else 1), number(4096)
    yield Row(f"chamfer distance {batch} x {size}", functools.partial(chamfer, batch, size, device))

"""Neighbour searches, building the index included, against trees on a CPU and all pairs on a GPU."""

from collections.abc import Callable

import torch
from torch import Tensor

import pointgrad
from benchmarks.data import lidar_scan
from benchmarks.harness import Row


def all_pairs_agree(
    points: Tensor, queries: Tensor | None, k: int, radius: float | None, search: Callable[[], pointgrad.Neighbors]
) -> Callable[[], None]:
    """Of some queries of the first cloud, against a stable sort of all distances."""

    def check() -> None:
        found = search()
        cloud, asked = points.reshape(-1, *points.shape[-2:])[0], points if queries is None else queries
        asked = asked.reshape(-1, *asked.shape[-2:])[0]
        some = torch.randperm(len(asked), device=points.device)[:200]
        dx, dy, dz = (cloud[None] - asked[some, None]).unbind(-1)
        distance2 = dx * dx + dy * dy + dz * dz
        if radius is not None:
            distance2 = torch.where(distance2 <= points.new_full((), radius**2), distance2, torch.inf)
        distance2, index = distance2.sort(dim=1, stable=True)
        index = torch.where(distance2.isinf(), -1, index)[:, :k]
        assert torch.equal(found.index.reshape(-1, *found.index.shape[-2:])[0][some], index), "neighbours differ"

    return check


def knn_row(name: str, points: Tensor, k: int, peers: dict[str, Callable[[], object]], **asked: float | None) -> Row:
    def ours() -> pointgrad.Neighbors:
        return pointgrad.knn(points, k)

    rounds = 5 if points.shape[-2] > 10_000 else 31
    return Row(name, all_pairs_agree(points, None, k, None, ours), ours, peers, rounds=rounds, **asked)


def trees(points: Tensor, k: int) -> dict[str, Callable[[], object]]:
    import pykdtree.kdtree
    from scipy.spatial import cKDTree

    cloud = points.numpy()
    return {
        "pykdtree": lambda: pykdtree.kdtree.KDTree(cloud).query(cloud, k),
        "scipy": lambda: cKDTree(cloud).query(cloud, k, workers=torch.get_num_threads()),
    }


def on_cpu() -> list[Row]:
    from scipy.spatial import cKDTree

    rows = []
    for size, asked in ((4096, 2.5), (100_000, 3.0), (1_000_000, 3.0)):
        points = torch.rand(size, 3)
        rows.append(knn_row(f"k nearest {size}, k 16", points, 16, trees(points, 16), at_least=asked))
    scan = lidar_scan()
    if scan is not None:
        rows.append(knn_row(f"k nearest LiDAR {len(scan)}, k 16", scan, 16, trees(scan, 16), at_least=3.0))
    points = torch.rand(100_000, 3)

    def ball() -> pointgrad.Neighbors:
        return pointgrad.ball_query(points, 0.02, 32)

    cloud = points.numpy()
    peer = {
        "scipy query_ball_point": lambda: cKDTree(cloud).query_ball_point(cloud, 0.02, workers=torch.get_num_threads())
    }
    rows.append(
        Row(
            "ball 100000, r 0.02, k 32",
            all_pairs_agree(points, None, 32, 0.02, ball),
            ball,
            peer,
            at_least=3.0,
            rounds=5,
        )
    )
    million = torch.rand(1_000_000, 3)
    index = pointgrad.NeighborIndex(million)

    def asked_again() -> pointgrad.Neighbors:
        return index.knn(16)

    rows.append(
        Row(
            "k nearest 1000000, k 16: query only; building is the peer",
            all_pairs_agree(million, None, 16, None, asked_again),
            asked_again,
            {"building": lambda: pointgrad.NeighborIndex(million)},
            rounds=5,
        )
    )
    return rows


def on_gpu() -> list[Row]:
    def chunked(points: Tensor, k: int) -> Callable[[], object]:
        def call() -> list[Tensor]:
            return [torch.cdist(cloud, cloud).topk(k, largest=False).indices for cloud in points]

        return call

    rows = []
    for batch, size, asked in ((16, 4096, 0.5), (1, 100_000, 1.8), (1, 1_000_000, 11.0)):
        points = torch.rand(batch, size, 3, device="cuda")
        peers = {"cdist + topk": chunked(points, 16)} if size <= 4096 else {}
        rows.append(knn_row(f"k nearest {batch} x {size}, k 16", points, 16, peers, at_most=asked))
    scan = lidar_scan()
    if scan is not None:
        rows.append(knn_row(f"k nearest LiDAR {len(scan)}, k 16", scan.cuda(), 16, {}))
    for batch, size, centers, radius, asked in (
        (16, 4096, 1024, 0.1, 0.5), (8, 16384, 4096, 0.1, 1.0), (1, 200_000, 50_000, 0.02, 1.5),
    ):  # fmt: skip
        points, queries = torch.rand(batch, size, 3, device="cuda"), torch.rand(batch, centers, 3, device="cuda")

        def ball(points: Tensor = points, queries: Tensor = queries, radius: float = radius) -> pointgrad.Neighbors:
            return pointgrad.ball_query(points, radius, 32, queries)

        name = f"ball {batch} x {size}, {centers} queries, r {radius}, k 32"
        rows.append(Row(name, all_pairs_agree(points, queries, 32, radius, ball), ball, at_most=asked))
    million = torch.rand(1_000_000, 3, device="cuda")
    index = pointgrad.NeighborIndex(million)

    def asked_again() -> pointgrad.Neighbors:
        return index.knn(16)

    rows.append(
        Row(
            "k nearest 1000000, k 16: query only; building is the peer",
            all_pairs_agree(million, None, 16, None, asked_again),
            asked_again,
            {"building": lambda: pointgrad.NeighborIndex(million)},
        )
    )
    return rows


def rows(device: str) -> list[Row]:
    return on_gpu() if device == "cuda" else on_cpu()

"""Graph libraries, which take packed clouds and return edges: torch_cluster, torch_scatter and pyg_lib."""

from typing import Any

import torch
from torch import Tensor

from ..comparison import Declined, Implementation
from . import Peer
from .trees import decline_all_pairs, decline_all_visits

MOST_NEIGHBORS = 100  # on a GPU


def flat(points: Tensor) -> Tensor:
    return points.reshape(-1, points.shape[-1])


def starts(points: Tensor) -> Tensor:
    """Offsets (B + 1,) of the clouds in the packed tensor."""
    return torch.arange(len(points) + 1, device=points.device) * points.shape[1]


def batch(points: Tensor) -> Tensor | None:
    """Batch index of each packed point. None for one cloud, which torch_cluster then searches with several threads."""
    if len(points) == 1:
        return None
    return torch.arange(len(points), device=points.device).repeat_interleave(points.shape[1])


def ratio(points: Tensor, count: int) -> float:
    """Fraction for `count` samples. Both libraries round `ratio * N` up."""
    return (count - 0.5) / points.shape[1]


def local(found: Tensor, points: Tensor) -> Tensor:
    """Indices within each cloud (B, M), from indices into the packed tensor."""
    return found.reshape(len(points), -1) - starts(points)[:-1, None]


def neighbors(edges: Tensor, points: Tensor, queries: Tensor) -> Tensor:
    """Neighbor lists (B, M, K), padded with -1, from edges (2, E) that are sorted by query, which comes first."""
    query, found = edges
    total = queries.shape[0] * queries.shape[1]
    count = torch.bincount(query, minlength=total)
    position = torch.arange(len(query), device=query.device) - (count.cumsum(0) - count)[query]
    rows = query.new_full((total, int(count.max())), -1)
    rows[query, position] = found
    rows = rows.view(len(queries), queries.shape[1], -1)
    return torch.where(rows < 0, -1, rows - starts(points)[:-1, None, None])


def cluster_fps(torch_cluster: Any, points: Tensor, num_samples: int) -> Implementation:
    decline_all_visits(points, num_samples)
    packed, clouds, share = flat(points), batch(points), ratio(points, num_samples)
    call = lambda: torch_cluster.fps(packed, clouds, share, random_start=False)  # noqa: E731
    return Implementation(call, lambda found: local(found, points))


def cluster_knn(torch_cluster: Any, points: Tensor, k: int) -> Implementation:
    if points.is_cuda:
        decline_all_pairs(points, 2e10)
        if k > MOST_NEIGHBORS:
            raise Declined(f"supports at most {MOST_NEIGHBORS} neighbors on a GPU")
    packed, clouds, workers = flat(points), batch(points), torch.get_num_threads()
    call = lambda: torch_cluster.knn(packed, packed, k, clouds, clouds, num_workers=workers)  # noqa: E731
    return Implementation(call, lambda edges: neighbors(edges, points, points))


def cluster_ball(torch_cluster: Any, points: Tensor, queries: Tensor, radius: float, k: int) -> Implementation:
    packed, packed_queries, workers = flat(points), flat(queries), torch.get_num_threads()
    clouds, owners = batch(points), batch(queries)

    def call() -> Tensor:
        return torch_cluster.radius(
            packed, packed_queries, radius, clouds, owners, max_num_neighbors=k, num_workers=workers
        )

    return Implementation(call, lambda edges: neighbors(edges, points, queries))


def scatter(torch_scatter: Any, values: Tensor, index: Tensor, size: int, reduce: str) -> Implementation:
    return Implementation(lambda: torch_scatter.scatter(values, index, dim=0, dim_size=size, reduce=reduce))


def segment(torch_scatter: Any, values: Tensor, offsets: Tensor, index: Tensor, reduce: str) -> Implementation:
    return Implementation(lambda: torch_scatter.segment_csr(values, offsets, reduce=reduce))


def segment_softmax(torch_scatter: Any, logits: Tensor, offsets: Tensor, index: Tensor) -> Implementation:
    return Implementation(lambda: torch_scatter.scatter_softmax(logits, index, dim=0))


def pyg_fps(pyg: Any, points: Tensor, num_samples: int) -> Implementation:
    decline_all_visits(points, num_samples)
    packed, pointers, share = flat(points), starts(points), ratio(points, num_samples)
    call = lambda: pyg.fps(packed, pointers, share, random_start=False)  # noqa: E731
    return Implementation(call, lambda found: local(found, points))


def pyg_knn(pyg: Any, points: Tensor, k: int) -> Implementation:
    if points.is_cuda:
        decline_all_pairs(points, 2e10)
        if k > MOST_NEIGHBORS:
            raise Declined(f"supports at most {MOST_NEIGHBORS} neighbors on a GPU")
    packed, pointers = flat(points), starts(points)
    call = lambda: pyg.knn(packed, packed, k, pointers, pointers)  # noqa: E731
    return Implementation(call, lambda edges: neighbors(edges, points, points))


def pyg_ball(pyg: Any, points: Tensor, queries: Tensor, radius: float, k: int) -> Implementation:
    packed, packed_queries, pointers, owners = flat(points), flat(queries), starts(points), starts(queries)
    call = lambda: pyg.radius(packed, packed_queries, radius, pointers, owners, max_num_neighbors=k)  # noqa: E731
    return Implementation(call, lambda edges: neighbors(edges, points, queries))


def pyg_softmax(pyg: Any, logits: Tensor, offsets: Tensor, index: Tensor) -> Implementation:
    if logits.is_cuda:
        raise Declined("softmax_csr only supports the CPU")
    return Implementation(lambda: pyg.softmax_csr(logits, offsets))


PEERS = [
    Peer(
        "torch_cluster",
        "torch_cluster",
        "torch-cluster",
        "pip install --no-build-isolation torch-cluster",
        {"fps": cluster_fps, "knn": cluster_knn, "ball": cluster_ball},
    ),
    Peer(
        "torch_scatter",
        "torch_scatter",
        "torch-scatter",
        "pip install --no-build-isolation torch-scatter",
        {"scatter": scatter, "segment": segment, "segment_softmax": segment_softmax},
    ),
    Peer(
        "pyg_lib",
        "pyg_lib.ops",
        "pyg-lib",
        "pip install pyg-lib -f https://data.pyg.org/whl/torch-VERSION.html",
        {"fps": pyg_fps, "knn": pyg_knn, "ball": pyg_ball, "segment_softmax": pyg_softmax},
        # Written from the documentation, not tested with the library.
    ),
]

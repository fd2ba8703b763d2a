"""CPU libraries that take NumPy arrays: fpsample, scipy, pykdtree, faiss and open3d."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..comparison import Declined, Implementation
from . import Peer

ALL_PAIRS = 1.1e10  # largest number of distances for a library that compares all pairs


def per_cloud(found: list[Any]) -> Tensor:
    return torch.stack([torch.from_numpy(np.asarray(each).astype(np.int64)) for each in found])


def padded(lists: Any) -> Tensor:
    """Lists of different lengths as a tensor (M, longest), padded with -1."""
    longest = max(map(len, lists), default=0)
    rows = np.full((len(lists), longest), -1, np.int64)
    for row, found in zip(rows, lists, strict=True):
        row[: len(found)] = found
    return torch.from_numpy(rows)


def decline_all_pairs(points: Tensor, most: float = ALL_PAIRS) -> None:
    """Decline work that would compare more pairs of points than `most`."""
    if points.shape[0] * points.shape[1] ** 2 > most:
        raise Declined(f"compares all pairs of {points.shape[1]:,} points")


def decline_all_visits(points: Tensor, count: int) -> None:
    """Decline work that would take too long for a library that visits all points for each pick."""
    visits = points.shape[0] * points.shape[1] * count
    if visits > (5e9 if points.is_cuda else 1e9):
        raise Declined(f"visits all {points.shape[1]:,} points for each of {count:,} picks")


def fpsample_fps(fpsample: Any, points: Tensor, num_samples: int) -> dict[str, Implementation]:
    """One variant per height of the tree, since the best height depends on the cloud."""
    clouds = [cloud.numpy() for cloud in points]

    def sample(height: int) -> list[Any]:
        return [fpsample.bucket_fps_kdline_sampling(cloud, num_samples, h=height, start_idx=0) for cloud in clouds]

    heights = [height for height in range(3, 10) if 2**height <= points.shape[1]]
    return {f"h={h}": Implementation(lambda h=h: sample(h), per_cloud) for h in heights}  # type: ignore[misc]


def pykdtree_knn(kdtree: Any, points: Tensor, k: int) -> Implementation:
    clouds = [cloud.numpy() for cloud in points]
    return Implementation(lambda: [kdtree.KDTree(cloud).query(cloud, k)[1] for cloud in clouds], per_cloud)


def scipy_knn(spatial: Any, points: Tensor, k: int) -> Implementation:
    clouds, workers = [cloud.numpy() for cloud in points], torch.get_num_threads()
    return Implementation(lambda: [spatial.cKDTree(c).query(c, k, workers=workers)[1] for c in clouds], per_cloud)


def scipy_ball(spatial: Any, points: Tensor, queries: Tensor, radius: float, k: int) -> Implementation:
    pairs = [(cloud.numpy(), query.numpy()) for cloud, query in zip(points, queries, strict=True)]
    workers = torch.get_num_threads()

    def call() -> list[Any]:
        return [spatial.cKDTree(c).query_ball_point(q, radius, workers=workers) for c, q in pairs]

    return Implementation(call, lambda found: padded(found[0])[None])


def faiss_knn(faiss: Any, points: Tensor, k: int) -> Implementation:
    decline_all_pairs(points)
    clouds = [cloud.numpy() for cloud in points]
    faiss.omp_set_num_threads(torch.get_num_threads())

    def call() -> list[Any]:
        found = []
        for cloud in clouds:
            index = faiss.IndexFlatL2(cloud.shape[1])
            index.add(cloud)
            found.append(index.search(cloud, k)[1])
        return found

    return Implementation(call, per_cloud)


def open3d_fps(open3d: Any, points: Tensor, num_samples: int) -> Implementation:
    decline_all_visits(points, num_samples)
    clouds = []
    for cloud in points:
        clouds.append(open3d.geometry.PointCloud())
        clouds[-1].points = open3d.utility.Vector3dVector(cloud.double().numpy())

    def read(found: list[Any]) -> Tensor:
        """open3d returns points, not indices."""
        picked = [torch.from_numpy(np.asarray(each.points)) for each in found]
        return torch.stack([torch.cdist(a, b.double()).argmin(1) for a, b in zip(picked, points, strict=True)])

    return Implementation(lambda: [cloud.farthest_point_down_sample(num_samples) for cloud in clouds], read)


def open3d_knn(open3d: Any, points: Tensor, k: int) -> Implementation:
    clouds = [open3d.core.Tensor.from_numpy(cloud.numpy()) for cloud in points]

    def call() -> list[Any]:
        found = []
        for cloud in clouds:
            search = open3d.core.nns.NearestNeighborSearch(cloud)
            search.knn_index()
            found.append(search.knn_search(cloud, k)[0])
        return found

    return Implementation(call, lambda found: per_cloud([each.numpy() for each in found]))


def open3d_ball(open3d: Any, points: Tensor, queries: Tensor, radius: float, k: int) -> Implementation:
    pairs = zip(points, queries, strict=True)
    both = [[open3d.core.Tensor.from_numpy(each.numpy()) for each in pair] for pair in pairs]

    def call() -> list[Any]:
        found = []
        for cloud, query in both:
            search = open3d.core.nns.NearestNeighborSearch(cloud)
            search.hybrid_index(radius)
            found.append(search.hybrid_search(query, radius, k)[0])
        return found

    return Implementation(call, lambda found: per_cloud([each.numpy() for each in found]))


CPU = ("cpu",)
PEERS = [
    Peer("fpsample", "fpsample", "fpsample", "pip install fpsample", {"fps": fpsample_fps}, CPU),
    Peer("scipy", "scipy.spatial", "scipy", "pip install scipy", {"knn": scipy_knn, "ball": scipy_ball}, CPU),
    Peer("pykdtree", "pykdtree.kdtree", "pykdtree", "pip install pykdtree", {"knn": pykdtree_knn}, CPU),
    Peer("faiss", "faiss", "faiss-cpu", "pip install faiss-cpu", {"knn": faiss_knn}, CPU),
    Peer(
        "open3d",
        "open3d",
        "open3d",
        "pip install open3d",
        {"fps": open3d_fps, "knn": open3d_knn, "ball": open3d_ball},
        CPU,
        # Written from the documentation, not tested with the library.
    ),
]

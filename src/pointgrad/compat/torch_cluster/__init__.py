"""torch-cluster's point-cloud functions: samples, neighbours as edges, clusters.

The interface is that of torch-cluster 1.6.3. Points are (N, D) or (N,), of any real dtype; `batch (N,)` says which
cloud each belongs to and is sorted. All give the same result on every device, and no gradient, as the original's.
"""

from .fps import fps
from .grid import grid_cluster
from .knn import knn, knn_graph
from .nearest import nearest
from .radius import radius, radius_graph

__version__ = "1.6.3"  # the one whose interface this is

__all__ = [
    "__version__",
    "fps",
    "grid_cluster",
    "knn",
    "knn_graph",
    "nearest",
    "radius",
    "radius_graph",
]


def __getattr__(name: str) -> None:
    if name in ("graclus_cluster", "neighbor_sampler", "random_walk"):
        raise AttributeError(
            f"pointgrad.compat.torch_cluster has no {name}: it works on graphs, not on points; "
            "for it use torch-cluster itself, or pyg-lib"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The point-cloud functions of torch-cluster 1.6.3: sampling, neighbors as edges, clusters.

Points are (N, D) or (N,) of any real dtype; `batch` (N,) is the cloud number of each point and must be sorted. Results
are the same on every device and have no gradient, as in the original.
"""

from .fps import fps
from .graclus import graclus_cluster as graclus_cluster
from .grid import grid_cluster
from .knn import knn, knn_graph
from .nearest import nearest
from .radius import radius, radius_graph
from .rw import random_walk as random_walk
from .sampler import neighbor_sampler as neighbor_sampler

__version__ = "1.6.3"  # the version whose interface is provided

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

"""torch-cluster's point-cloud functions: samples, neighbours as edges, clusters.

The interface is that of torch-cluster 1.6.3. Points are (N, D) or (N,), of any real dtype; `batch (N,)` says which
cloud each belongs to and is sorted. All give the same result on every device, and no gradient, as the original's.
"""

from ._graphs import graclus_cluster as graclus_cluster
from ._graphs import neighbor_sampler as neighbor_sampler
from ._graphs import random_walk as random_walk
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

"""Sampling, neighbor search and layouts, as in `pytorch3d.ops`."""

from .._missing import missing
from .ball_query import ball_query
from .knn import knn_gather, knn_points
from .packed_to_padded import packed_to_padded, padded_to_packed
from .sample_farthest_points import sample_farthest_points

__all__ = [
    "ball_query",
    "knn_gather",
    "knn_points",
    "packed_to_padded",
    "padded_to_packed",
    "sample_farthest_points",
]
__getattr__ = missing(__name__)

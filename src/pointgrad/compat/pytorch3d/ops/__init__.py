"""Operators on points, as in `pytorch3d.ops`."""

from .._missing import missing
from .ball_query import ball_query
from .knn import knn_gather, knn_points
from .packed_to_padded import packed_to_padded, padded_to_packed
from .points_alignment import corresponding_points_alignment, iterative_closest_point
from .points_normals import estimate_pointcloud_local_coord_frames, estimate_pointcloud_normals
from .points_to_volumes import add_pointclouds_to_volumes, add_points_features_to_volume_densities_features
from .sample_farthest_points import sample_farthest_points
from .utils import convert_pointclouds_to_tensor, eyes, get_point_covariances, is_pointclouds, wmean

__all__ = [
    "add_pointclouds_to_volumes",
    "add_points_features_to_volume_densities_features",
    "ball_query",
    "convert_pointclouds_to_tensor",
    "corresponding_points_alignment",
    "estimate_pointcloud_local_coord_frames",
    "estimate_pointcloud_normals",
    "eyes",
    "get_point_covariances",
    "is_pointclouds",
    "iterative_closest_point",
    "knn_gather",
    "knn_points",
    "packed_to_padded",
    "padded_to_packed",
    "sample_farthest_points",
    "wmean",
]
__getattr__ = missing(__name__)

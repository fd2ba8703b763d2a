"""Batches of clouds and volumes of different sizes, as in `pytorch3d.structures`."""

from .._missing import missing
from .pointclouds import Pointclouds, join_pointclouds_as_batch, join_pointclouds_as_scene
from .utils import list_to_packed, list_to_padded, packed_to_list, padded_to_list
from .volumes import Volumes

__all__ = [
    "Pointclouds",
    "Volumes",
    "join_pointclouds_as_batch",
    "join_pointclouds_as_scene",
    "list_to_packed",
    "list_to_padded",
    "packed_to_list",
    "padded_to_list",
]
__getattr__ = missing(__name__)

"""`extensions.emd`: earth mover's distances, with the names of Point-MAE and, in `emd_module`, of PoinTr."""

from . import emd_module as emd_module
from .emd import EarthMoverDistanceFunction as EarthMoverDistanceFunction
from .emd import earth_mover_distance
from .emd import earth_mover_distance as emd

__all__ = ["earth_mover_distance", "emd"]

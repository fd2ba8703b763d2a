"""The distance between clouds, as `pytorch3d.loss` has it."""

from .._missing import missing
from .chamfer import chamfer_distance

__all__ = ["chamfer_distance"]
__getattr__ = missing(__name__)

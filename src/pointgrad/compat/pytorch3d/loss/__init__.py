"""Loss functions, as in `pytorch3d.loss`."""

from .._missing import missing
from .chamfer import chamfer_distance

__all__ = ["chamfer_distance"]
__getattr__ = missing(__name__)

"""The interface of pointnet2_ops 3.0.0 (Erik Wijmans's PointNet++ operators); see README.md."""

from . import _ext as _ext
from . import pointnet2_modules as pointnet2_modules
from . import pointnet2_utils as pointnet2_utils

__version__ = "3.0.0"

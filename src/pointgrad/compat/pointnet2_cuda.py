"""The compiled module `pointnet2_cuda` of PointRCNN and openpoints; it has the functions of `pointnet2_batch_cuda`."""

from .pointnet2_batch_cuda import *  # noqa: F403
from .pointnet2_batch_cuda import __all__ as __all__

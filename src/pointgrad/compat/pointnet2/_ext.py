"""`pointnet2._ext`, which has the functions of `pointnet2_ops._ext`."""

from ..pointnet2_ops._ext import *  # noqa: F403
from ..pointnet2_ops._ext import __all__ as __all__

"""Voxels of a point cloud as NumPy arrays. `spconv.pytorch.utils.PointToVoxel` does the same with tensors."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from pointgrad.ops import checks

from ...cumm.tensorview import Tensor, from_numpy
from ..pytorch.utils import PointToVoxel

__all__ = ["Point2VoxelCPU1d", "Point2VoxelCPU2d", "Point2VoxelCPU3d"]

_Result = tuple[Tensor, Tensor, Tensor]


class _Point2VoxelCPU:
    """Groups points into voxels; see `spconv.pytorch.utils.PointToVoxel`.

    Args:
        vsize_xyz: Edge lengths of a voxel.
        coors_range_xyz: The lowest and then the highest coordinates of the grid.
        num_point_features: Number of values F of a point, the coordinates included.
        max_num_voxels: Maximum number of voxels.
        max_num_points_per_voxel: Maximum number of points P in a voxel.
    """

    _ndim: ClassVar[int]

    def __init__(
        self,
        vsize_xyz: Sequence[float],
        coors_range_xyz: Sequence[float],
        num_point_features: int,
        max_num_voxels: int,
        max_num_points_per_voxel: int,
    ) -> None:
        checks.value(len(vsize_xyz) == self._ndim, "vsize_xyz", f"{self._ndim} numbers", len(vsize_xyz))
        self._voxelize = PointToVoxel(
            vsize_xyz, coors_range_xyz, num_point_features, max_num_voxels, max_num_points_per_voxel
        )

    @property
    def grid_size(self) -> list[int]:
        """Number of voxels along z, y and x."""
        return self._voxelize.grid_size

    def point_to_voxel(self, points: Any, clear_voxels: bool = True) -> _Result:
        """Group points into voxels.

        Args:
            points: (N, F) NumPy array, torch tensor or `cumm.tensorview.Tensor`.
            clear_voxels: Ignored; the result is always new.

        Returns:
            The points of each voxel (V, P, F), its indices z, y, x (V, 3), and the number of its points (V,).
        """
        return self._run(points, False)

    def point_to_voxel_empty_mean(self, points: Any, clear_voxels: bool = True) -> _Result:
        """Group points into voxels; empty places get the mean of the voxel's points."""
        return self._run(points, True)

    def _run(self, points: Any, empty_mean: bool) -> _Result:
        array = np.asarray(points.numpy() if hasattr(points, "numpy") else points)
        voxels, indices, count = self._voxelize(torch.from_numpy(array), empty_mean=empty_mean)
        return from_numpy(voxels.numpy()), from_numpy(indices.numpy()), from_numpy(count.numpy())


class Point2VoxelCPU1d(_Point2VoxelCPU):
    __doc__ = _Point2VoxelCPU.__doc__
    _ndim = 1


class Point2VoxelCPU2d(_Point2VoxelCPU):
    __doc__ = _Point2VoxelCPU.__doc__
    _ndim = 2


class Point2VoxelCPU3d(_Point2VoxelCPU):
    __doc__ = _Point2VoxelCPU.__doc__
    _ndim = 3

"""Voxels of a point cloud."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pointgrad.ops import checks

__all__ = ["PointToVoxel", "gather_features_by_pc_voxel_id"]


class PointToVoxel:
    """Groups points into voxels, with a limit on the number of voxels and of points in a voxel.

    Args:
        vsize_xyz: Edge lengths of a voxel along x, y and z.
        coors_range_xyz: The lowest x, y, z and then the highest x, y, z of the grid. Points outside have no voxel.
        num_point_features: Number of values F of a point, the coordinates included.
        max_num_voxels: Maximum number of voxels. Points of further voxels have no voxel.
        max_num_points_per_voxel: Maximum number of points P in a voxel. Further points are left out.
        device: Device of the points.

    Example:
        >>> to_voxels = PointToVoxel([1, 1, 1], [0, 0, 0, 4, 4, 4], 3, 10, 2)
        >>> voxels, indices, count = to_voxels(torch.tensor([[3.5, 0.5, 1.5], [0.5, 0.5, 0.5], [3.2, 0.1, 1.9]]))
        >>> indices.tolist(), count.tolist()
        ([[1, 0, 3], [0, 0, 0]], [2, 1])
    """

    def __init__(
        self,
        vsize_xyz: Sequence[float],
        coors_range_xyz: Sequence[float],
        num_point_features: int,
        max_num_voxels: int,
        max_num_points_per_voxel: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.ndim = len(vsize_xyz)
        contract = f"{2 * self.ndim} numbers, two for each of vsize_xyz"
        checks.value(len(coors_range_xyz) == 2 * self.ndim, "coors_range_xyz", contract, len(coors_range_xyz))
        self.device = torch.device(device)
        self.num_point_features = num_point_features
        self.max_num_voxels = max_num_voxels
        self.max_num_points_per_voxel = max_num_points_per_voxel
        # From z to x, as in the indices. In float32, whose rounding determines the voxel of a point on a border.
        lower, upper = coors_range_xyz[: self.ndim][::-1], coors_range_xyz[self.ndim :][::-1]
        size = torch.tensor([float(edge) for edge in vsize_xyz[::-1]])
        span = torch.tensor([float(end) for end in upper]) - torch.tensor([float(end) for end in lower])
        self.vsize = size.tolist()
        self.grid_size = [int(count + 0.5) for count in (span / size).tolist()]
        self.grid_stride = [math.prod(self.grid_size[axis + 1 :]) for axis in range(self.ndim)]
        self.coors_range = [*map(float, lower), *map(float, upper)]

    def __call__(
        self, pc: Tensor, clear_voxels: bool = True, empty_mean: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Group points into voxels; `generate_voxel_with_id` without the voxels of the points."""
        return self.generate_voxel_with_id(pc, clear_voxels, empty_mean)[:3]

    @torch.no_grad()
    def generate_voxel_with_id(
        self, pc: Tensor, clear_voxels: bool = True, empty_mean: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Group points into voxels.

        Args:
            pc: (N, F) float32 or float64 points, coordinates first.
            clear_voxels: Ignored; the result is always new.
            empty_mean: Fill the empty places of a voxel with the mean of its points instead of zeros.

        Returns:
            voxels: (V, P, F) float32, the points of each voxel. Voxels are in the order of their first points.
            indices: (V, ndim) int32, z, y and x of each voxel.
            num_per_voxel: (V,) int32, the number of points of each voxel, at most P.
            pc_voxel_id: (N,) int64, the voxel of each point, or -1.
        """
        checks.tensor("pc", pc)
        fits = pc.dim() == 2 and pc.shape[1] == self.num_point_features
        checks.shape(fits, "pc", f"(N, num_point_features) = (N, {self.num_point_features})", pc)
        checks.dtype("pc", pc, (torch.float32, torch.float64))
        contract = f"on the device of PointToVoxel, {self.device.type}"
        checks.value(pc.device.type == self.device.type, "pc", contract, pc.device.type)
        place, row = self._places(pc)
        voxel, first = _numbered(place, self.max_num_voxels)
        voxel_of_point = torch.full((len(pc),), -1, dtype=torch.int64, device=pc.device)
        voxel_of_point[row] = voxel
        row, voxel = row[voxel >= 0], voxel[voxel >= 0]
        order = voxel.argsort(stable=True)
        row, voxel = row[order], voxel[order]
        count = voxel.bincount(minlength=len(first))
        slot = torch.arange(len(voxel), device=pc.device) - (count.cumsum(0) - count)[voxel]
        inside = slot < self.max_num_points_per_voxel
        count = count.clamp(max=self.max_num_points_per_voxel)
        voxels = torch.zeros(len(first), self.max_num_points_per_voxel, pc.shape[1], device=pc.device)
        voxels[voxel[inside], slot[inside]] = pc[row[inside]].float()
        if empty_mean:
            empty = torch.arange(voxels.shape[1], device=pc.device) >= count[:, None]
            mean = voxels.sum(1, keepdim=True) / count[:, None, None]
            voxels = torch.where(empty[..., None], mean, voxels)
        stride, size = place.new_tensor(self.grid_stride), place.new_tensor(self.grid_size)
        indices = place[first][:, None].div(stride, rounding_mode="floor") % size
        return voxels, indices.int(), count.int(), voxel_of_point

    def _places(self, pc: Tensor) -> tuple[Tensor, Tensor]:
        """The place in the grid of each point inside it, and the number of the point."""
        size, lower = (torch.tensor(part, device=pc.device) for part in (self.vsize, self.coors_range[: self.ndim]))
        axis = ((pc[:, : self.ndim].flip(1) - lower) / size).floor()
        inside = ((axis >= 0) & (axis < axis.new_tensor(self.grid_size))).all(1)  # false for NaN
        axis = axis[inside].long()
        return (axis * axis.new_tensor(self.grid_stride)).sum(1), inside.nonzero()[:, 0]


def _numbered(place: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Number equal places in the order of their first rows; -1 from the limit on. Also the first row of each number."""
    different, group = torch.unique(place, return_inverse=True)
    row = torch.arange(len(place), device=place.device)
    first = torch.full_like(different, len(place)).scatter_reduce_(0, group, row, "amin")
    order = first.argsort()
    number = torch.empty_like(order)
    number[order] = torch.arange(len(order), device=place.device)
    number = number[group]
    return torch.where(number < limit, number, -1), first[order][:limit]


def gather_features_by_pc_voxel_id(
    seg_res_features: Tensor, pc_voxel_id: Tensor, invalid_value: int | float = 0
) -> Tensor:
    """Return to each point the features of its voxel.

    Args:
        seg_res_features: (V, ...) values of the voxels.
        pc_voxel_id: (N,) the voxel of each point, or -1.
        invalid_value: Value for points without a voxel.

    Returns:
        (N, ...) in the dtype of `seg_res_features`.

    Example:
        >>> gather_features_by_pc_voxel_id(torch.tensor([[5.0], [6.0]]), torch.tensor([1, -1, 0])).tolist()
        [[6.0], [0.0], [5.0]]
    """
    pc_voxel_id = pc_voxel_id.to(seg_res_features.device)
    missing = (pc_voxel_id < 0).reshape(-1, *[1] * (seg_res_features.dim() - 1))
    if len(seg_res_features) == 0:
        return seg_res_features.new_full((len(pc_voxel_id), *seg_res_features.shape[1:]), invalid_value)
    return torch.where(missing, invalid_value, seg_res_features[pc_voxel_id.clamp(min=0)])

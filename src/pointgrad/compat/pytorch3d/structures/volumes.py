"""Batches of voxel grids of different sizes."""

import copy as copies
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..common.datatypes import Device, make_device
from ..transforms import Scale, Transform3d
from .utils import list_to_padded, padded_to_list

__all__ = ["VolumeLocator", "Volumes"]


class VolumeLocator:
    """Positions of the voxels of a batch of grids, in local and in world coordinates.

    Local coordinates (x, y, z) run along (width, height, depth) and are those of `torch.nn.functional.grid_sample`:
    each grid spans [-1, 1]. World coordinates are `local * (size - 1) * voxel_size / 2 - volume_translation`.

    Args:
        batch_size: Number of grids N.
        grid_sizes: (D, H, W) of all grids, a list of N such sizes, or a tensor (N, 3).
        device: Device of all tensors.
        voxel_size: Edge length of a voxel in the world: a number, three numbers, or a tensor (1,), (3,), (N, 1) or
            (N, 3).
        volume_translation: Three numbers, or a tensor (3,), (1, 3) or (N, 3).
        align_corners: Whether -1 and 1 are the centers of the outermost voxels instead of their outer faces.
        dtype: Dtype of the transform to world coordinates.

    Example:
        >>> locator = VolumeLocator(1, (3, 3, 3), torch.device("cpu"), voxel_size=0.5)
        >>> locator.local_to_world_coords(torch.ones(1, 1, 3))
        tensor([[[0.5000, 0.5000, 0.5000]]])
    """

    def __init__(
        self,
        batch_size: int,
        grid_sizes: Any,
        device: torch.device,
        voxel_size: Any = 1.0,
        volume_translation: Any = (0.0, 0.0, 0.0),
        align_corners: bool = True,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        sizes = _sizes(grid_sizes, batch_size)
        self._resolution = tuple(sizes.amax(0).tolist()) if batch_size else (0, 0, 0)
        self._equisized = bool((sizes == sizes[:1]).all())  # so that it need not be read from a GPU
        self._grid_sizes = sizes.to(device)
        self._align_corners = align_corners
        edges = _vectors("voxel_size", voxel_size, batch_size, device, dtype, numbers=(1, 3))
        shift = _vectors("volume_translation", volume_translation, batch_size, device, dtype, numbers=(3,))
        extent = (self._grid_sizes.flip(1) - 1).to(dtype) * edges / 2
        self._local_to_world_transform = Scale(extent, dtype=dtype).translate(-shift)

    @property
    def device(self) -> torch.device:
        """Device of all tensors."""
        return self._grid_sizes.device

    def __len__(self) -> int:
        return self._grid_sizes.shape[0]

    def __getitem__(self, index: Any) -> "VolumeLocator":
        """Select grids; all keep the same padded size."""
        selected = copies.copy(self)
        selected._grid_sizes = self._grid_sizes[index]
        selected._local_to_world_transform = self._local_to_world_transform[index]
        return selected

    def get_grid_sizes(self) -> Tensor:
        """Sizes (N, 3) of the grids: (D, H, W) in each row."""
        return self._grid_sizes

    def get_coord_grid(self, world_coordinates: bool = True) -> Tensor:
        """Positions (N, D, H, W, 3) of the voxels, in world or local coordinates."""
        dtype = self._local_to_world_transform.dtype
        axes = []
        for size, resolution in zip(self._grid_sizes.unbind(1), self._resolution, strict=True):
            voxel, extent = torch.arange(resolution, device=self.device, dtype=dtype), size[:, None].to(dtype)
            if self._align_corners:
                axes.append(2 * voxel / (extent - 1).clamp(min=1) - 1)
            else:
                axes.append((2 * voxel + 1) / extent - 1)
        z, y, x = axes
        shape = (len(self), *self._resolution)
        grid = torch.stack(
            [x[:, None, None].expand(shape), y[:, None, :, None].expand(shape), z[:, :, None, None].expand(shape)], -1
        )
        return self.local_to_world_coords(grid) if world_coordinates else grid

    def get_local_to_world_coords_transform(self) -> Transform3d:
        """Transform from local to world coordinates."""
        return self._local_to_world_transform

    def get_world_to_local_coords_transform(self) -> Transform3d:
        """Transform from world to local coordinates."""
        return self._local_to_world_transform.inverse()

    def world_to_local_coords(self, points_3d_world: Tensor) -> Tensor:
        """Convert points (N, ..., 3) from world to local coordinates."""
        return _transformed(self.get_world_to_local_coords_transform(), points_3d_world)

    def local_to_world_coords(self, points_3d_local: Tensor) -> Tensor:
        """Convert points (N, ..., 3) from local to world coordinates."""
        return _transformed(self.get_local_to_world_coords_transform(), points_3d_local)

    def to(self, device: Device, copy: bool = False) -> "VolumeLocator":
        """Move to a device, like `torch.Tensor.to`."""
        target = make_device(device)
        if not copy and self.device == target:
            return self
        other = copies.copy(self)
        other._grid_sizes = self._grid_sizes.to(target, copy=True)
        other._local_to_world_transform = self._local_to_world_transform.to(target, copy=True)
        return other

    def clone(self) -> "VolumeLocator":
        """Copy all tensors."""
        return self.to(self.device, copy=True)

    def cpu(self) -> "VolumeLocator":
        """Move to the CPU."""
        return self.to("cpu")

    def cuda(self) -> "VolumeLocator":
        """Move to the current CUDA device."""
        return self.to("cuda")


class Volumes:
    """A batch of voxel grids with densities and, optionally, features; see `VolumeLocator` for coordinates.

    `update_padded` also accepts grids of different sizes, and indexing keeps `align_corners` (not in the original).

    Args:
        densities: (N, C, D, H, W), or a list of N tensors (C, D_n, H_n, W_n), which are filled with zeros.
        features: Like densities, or None.
        voxel_size, volume_translation, align_corners: See `VolumeLocator`.

    Attributes:
        device: Device of all tensors.
        locator: The `VolumeLocator`.

    Raises:
        ValueError: If the tensors do not fit each other.

    Example:
        >>> volumes = Volumes(torch.zeros(1, 1, 3, 3, 3), voxel_size=0.5)
        >>> volumes.world_to_local_coords(torch.tensor([[[0.5, 0.0, 0.0]]]))
        tensor([[[1., 0., 0.]]])
    """

    def __init__(
        self,
        densities: Any,
        features: Any = None,
        voxel_size: Any = 1.0,
        volume_translation: Any = (0.0, 0.0, 0.0),
        align_corners: bool = True,
    ) -> None:
        self._densities, sizes = _padded("densities", densities)
        self.device = self._densities.device
        dtype = torch.float64 if self._densities.dtype == torch.float64 else torch.float32
        self.locator = VolumeLocator(
            len(self), sizes, self.device, voxel_size, volume_translation, align_corners, dtype=dtype
        )
        self._features: Tensor | None = None
        if features is not None:
            self._set_features(features)

    def __len__(self) -> int:
        return self._densities.shape[0]

    def __getitem__(self, index: int | list[int] | slice | Tensor) -> "Volumes":
        """Select volumes by an int, a slice, a list of ints, or a tensor (N,) of bools or ints."""
        if isinstance(index, Tensor):
            if index.dim() != 1 or index.is_floating_point():
                raise IndexError(index)
        elif not isinstance(index, (int, slice, list, tuple)):
            raise IndexError(index)
        rows = [index] if isinstance(index, int) else list(index) if isinstance(index, tuple) else index
        selected = copies.copy(self)
        selected._densities = self._densities[rows]
        selected._features = None if self._features is None else self._features[rows]
        selected.locator = self.locator[rows]
        return selected

    def densities(self) -> Tensor:
        """Densities (N, C, D, H, W)."""
        return self._densities

    def features(self) -> Tensor | None:
        """Features (N, C, D, H, W), or None."""
        return self._features

    def densities_list(self) -> list[Tensor]:
        """Densities as a list of tensors (C, D_n, H_n, W_n)."""
        return self._as_list(self._densities)

    def features_list(self) -> list[Tensor] | None:
        """Features as a list of tensors (C, D_n, H_n, W_n), or None."""
        return None if self._features is None else self._as_list(self._features)

    def _as_list(self, padded: Tensor) -> list[Tensor]:
        return padded_to_list(padded, [[padded.shape[1], *size] for size in self.get_grid_sizes().tolist()])

    def update_padded(self, new_densities: Tensor, new_features: Tensor | None = None) -> "Volumes":
        """Copy with new densities (N, C, D, H, W) and features (N, C, D, H, W); without features if they are None."""
        other = copies.copy(self)
        other._set_densities(new_densities)
        other._features = None
        if new_features is not None:
            other._set_features(new_features)
        return other

    def _set_densities(self, densities: Any) -> None:
        self._densities = self._checked("densities", densities)

    def _set_features(self, features: Any) -> None:
        self._features = self._checked("features", features)

    def _checked(self, name: str, given: Any) -> Tensor:
        """Padded tensor of the same device and sizes as the densities."""
        padded, sizes = _padded(name, given)
        if padded.device != self.device:
            raise ValueError(f"{name} must be on the device of the volumes, {self.device}, got {padded.device}")
        expected = self.get_grid_sizes().tolist()
        is_list = not isinstance(given, Tensor)
        if (
            padded.shape[0] != len(self)
            or padded.shape[2:] != self.locator._resolution
            or (is_list and sizes.tolist() != expected)
        ):
            raise ValueError(f"{name} must have grids of sizes {expected}, got {sizes.tolist()}")
        return padded

    def clone(self) -> "Volumes":
        """Copy all tensors."""
        return self.to(self.device, copy=True)

    def to(self, device: Device, copy: bool = False) -> "Volumes":
        """Move to a device, like `torch.Tensor.to`."""
        target = make_device(device)
        if not copy and self.device == target:
            return self
        other = copies.copy(self)
        other.device = target
        other._densities = self._densities.to(target, copy=True)
        other._features = None if self._features is None else self._features.to(target, copy=True)
        other.locator = self.locator.to(target, copy=True)
        return other

    def cpu(self) -> "Volumes":
        """Move to the CPU."""
        return self.to("cpu")

    def cuda(self) -> "Volumes":
        """Move to the current CUDA device."""
        return self.to("cuda")

    def get_align_corners(self) -> bool:
        """Whether -1 and 1 are the centers of the outermost voxels."""
        return self.locator._align_corners

    def get_grid_sizes(self) -> Tensor:
        """Sizes (N, 3) of the grids: (D, H, W) in each row."""
        return self.locator.get_grid_sizes()

    def get_local_to_world_coords_transform(self) -> Transform3d:
        """Transform from local to world coordinates."""
        return self.locator.get_local_to_world_coords_transform()

    def get_world_to_local_coords_transform(self) -> Transform3d:
        """Transform from world to local coordinates."""
        return self.locator.get_world_to_local_coords_transform()

    def world_to_local_coords(self, points_3d_world: Tensor) -> Tensor:
        """Convert points (N, ..., 3) from world to local coordinates."""
        return self.locator.world_to_local_coords(points_3d_world)

    def local_to_world_coords(self, points_3d_local: Tensor) -> Tensor:
        """Convert points (N, ..., 3) from local to world coordinates."""
        return self.locator.local_to_world_coords(points_3d_local)

    def get_coord_grid(self, world_coordinates: bool = True) -> Tensor:
        """Positions (N, D, H, W, 3) of the voxels, in world or local coordinates."""
        return self.locator.get_coord_grid(world_coordinates)


def _padded(name: str, given: Any) -> tuple[Tensor, Tensor]:
    """Padded tensor (N, C, D, H, W) and sizes (N, 3)."""
    if isinstance(given, Tensor):
        if given.dim() != 5:
            raise ValueError(f"{name} must be (N, C, D, H, W), got {tuple(given.shape)}")
        return given, torch.tensor([given.shape[2:]] * given.shape[0]).reshape(-1, 3)
    if not isinstance(given, (list, tuple)) or not all(isinstance(item, Tensor) for item in given):
        raise ValueError(f"{name} must be a tensor (N, C, D, H, W) or a list of tensors, got {type(given).__name__}")
    if any(item.dim() != 4 for item in given) or len({item.shape[0] for item in given}) != 1:
        shapes = [tuple(item.shape) for item in given]
        raise ValueError(f"{name} must be tensors (C, D, H, W) with the same number of channels C, got {shapes}")
    return list_to_padded(given), torch.tensor([item.shape[1:] for item in given])


def _sizes(given: Any, batch_size: int) -> Tensor:
    """Sizes (N, 3) int64."""
    if isinstance(given, Tensor):
        sizes = given
    elif isinstance(given, Sequence) and given and all(isinstance(size, int) for size in given):
        sizes = torch.tensor(given).expand(batch_size, -1)
    elif isinstance(given, Sequence) and all(isinstance(size, (Tensor, Sequence)) for size in given):
        sizes = torch.tensor([[int(extent) for extent in size] for size in given])
    else:
        raise ValueError(f"grid_sizes must be (D, H, W), a list of them or a tensor, got {type(given).__name__}")
    if sizes.shape != (batch_size, 3):
        raise ValueError(f"grid_sizes must be (N, 3) = ({batch_size}, 3), got {tuple(sizes.shape)}")
    return sizes.long()


def _vectors(
    name: str, given: Any, batch_size: int, device: torch.device, dtype: torch.dtype, numbers: tuple[int, ...]
) -> Tensor:
    """Vectors (N, 3) from a number (if `numbers` has 1), three numbers, or a tensor."""
    single = 1 in numbers
    if isinstance(given, (int, float)) and single:
        return torch.full((batch_size, 3), given, device=device, dtype=dtype)
    if isinstance(given, (list, tuple)) and len(given) == 3:
        return torch.tensor(given, device=device, dtype=dtype).expand(batch_size, 3)
    if isinstance(given, Tensor):
        if given.dim() in (0, 1) and given.numel() in numbers:
            return given.to(device, dtype).expand(batch_size, 3)
        if given.dim() == 2 and given.shape[0] in (1, batch_size) and given.shape[1] in numbers:
            return given.to(device, dtype).expand(batch_size, 3)
    shape = tuple(given.shape) if isinstance(given, Tensor) else given
    allowed = "a number, three numbers, (N, 1) or (N, 3)" if single else "three numbers or (N, 3)"
    raise ValueError(f"{name} must be {allowed} with N = {batch_size}, got {shape}")


def _transformed(transform: Transform3d, points: Tensor) -> Tensor:
    flat = points.reshape(points.shape[0], -1, 3)
    return transform.to(points.device, dtype=points.dtype).transform_points(flat).reshape(points.shape)

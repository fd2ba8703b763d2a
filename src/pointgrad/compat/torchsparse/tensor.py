"""Sparse tensors and points."""

from typing import Any

import torch
from torch import Tensor

from pointgrad.ops import checks

from .utils import make_ntuple, to_dense
from .utils.tensor_cache import (
    TensorCache,
    TensorCacheMode,
    get_global_tensor_cache,
    get_tensor_cache_mode,
    set_global_tensor_cache,
)

__all__ = ["PointTensor", "SparseTensor", "get_allow_negative_coordinates", "set_allow_negative_coordinates"]

_allow_negative_coordinates = False


def get_allow_negative_coordinates() -> bool:
    """Return the setting of `set_allow_negative_coordinates`."""
    return _allow_negative_coordinates


def set_allow_negative_coordinates(allow_negative_coordinates: bool) -> None:
    """Set whether strided convolutions with overlapping windows may have voxels and outputs below 0."""
    global _allow_negative_coordinates
    _allow_negative_coordinates = allow_negative_coordinates


class SparseTensor:
    """Features of voxels.

    Args:
        feats: (N, C) features.
        coords: (N, 4) int: batch, x, y, z. A voxel occurs once. After a convolution with stride 2 coordinates are
            half as large, in contrast to TorchSparse 1.4.
        stride: Size of a voxel in voxels of the input.
        spatial_range: (batch size, X, Y, Z), the size of the grid, if known. Outputs of strided convolutions stay
            inside, as on a dense grid.
    """

    def __init__(
        self,
        feats: Tensor,
        coords: Tensor,
        stride: int | tuple[int, ...] = 1,
        spatial_range: tuple[int, ...] | None = None,
    ) -> None:
        self.feats = feats
        self.coords = coords
        self.stride = make_ntuple(stride, ndim=3)
        self.spatial_range = None if spatial_range is None else make_ntuple(spatial_range, ndim=len(spatial_range))
        self._caches = TensorCache()
        if get_tensor_cache_mode() == TensorCacheMode.GLOBAL_TENSOR_CACHE:
            shared = get_global_tensor_cache()
            if shared is None:
                set_global_tensor_cache(self._caches)
            else:
                self._caches = shared

    @property
    def F(self) -> Tensor:
        """The features."""
        return self.feats

    @F.setter
    def F(self, feats: Tensor) -> None:
        self.feats = feats

    @property
    def C(self) -> Tensor:
        """The coordinates."""
        return self.coords

    @C.setter
    def C(self, coords: Tensor) -> None:
        self.coords = coords

    @property
    def s(self) -> tuple[int, ...]:
        """The stride."""
        return self.stride

    @s.setter
    def s(self, stride: int | tuple[int, ...]) -> None:
        self.stride = make_ntuple(stride, ndim=3)

    @property
    def cmaps(self) -> dict[Any, Any]:
        """Coordinates of each stride; a name of TorchSparse 1.4."""
        return self._caches.cmaps

    @cmaps.setter
    def cmaps(self, cmaps: dict[Any, Any]) -> None:
        self._caches = TensorCache(cmaps, self._caches.kmaps)

    @property
    def kmaps(self) -> dict[Any, Any]:
        """Kernel maps that were built; a name of TorchSparse 1.4."""
        return self._caches.kmaps

    @kmaps.setter
    def kmaps(self, kmaps: dict[Any, Any]) -> None:
        self._caches = TensorCache(self._caches.cmaps, kmaps)

    def cpu(self) -> "SparseTensor":
        """Move features and coordinates to the CPU, in place."""
        return self.to("cpu", non_blocking=False)

    def cuda(self) -> "SparseTensor":
        """Move features and coordinates to the GPU, in place."""
        self.coords, self.feats = self.coords.cuda(), self.feats.cuda()
        return self

    def half(self) -> "SparseTensor":
        """Convert the features to float16, in place."""
        self.feats = self.feats.half()
        return self

    def detach(self) -> "SparseTensor":
        """Detach the features, in place."""
        self.feats = self.feats.detach()
        return self

    def to(self, device: torch.device | str, non_blocking: bool = True) -> "SparseTensor":
        """Move features and coordinates, in place."""
        self.coords = self.coords.to(device, non_blocking=non_blocking)
        self.feats = self.feats.to(device, non_blocking=non_blocking)
        return self

    def dense(self) -> Tensor:
        """Return the features on a grid of size `spatial_range`: (B, X, Y, Z, C)."""
        if self.spatial_range is None:
            raise ValueError("spatial_range must be given to convert a SparseTensor to a dense one, got None")
        return to_dense(self.feats, self.coords, self.spatial_range)

    def __add__(self, other: "SparseTensor") -> "SparseTensor":
        rows = len(self.feats)
        checks.value(len(other.feats) == rows, "other", f"{rows} voxels", len(other.feats), verb="have")
        return with_feats(self, self.feats + other.feats)


class PointTensor:
    """Features of points, with the results of searches that networks of points and voxels keep.

    Args:
        feats: (N, C) features.
        coords: (N, 4) coordinates.
        idx_query: Results of searches.
        weights: Weights of interpolations.
    """

    def __init__(
        self,
        feats: Tensor,
        coords: Tensor,
        idx_query: dict[Any, Any] | None = None,
        weights: dict[Any, Any] | None = None,
    ) -> None:
        self.F = feats
        self.C = coords
        self.idx_query = {} if idx_query is None else idx_query
        self.weights = {} if weights is None else weights
        self.additional_features: dict[str, dict[Any, Any]] = {"idx_query": {}, "counts": {}}

    def cuda(self) -> "PointTensor":
        """Move features and coordinates to the GPU, in place."""
        self.F, self.C = self.F.cuda(), self.C.cuda()
        return self

    def detach(self) -> "PointTensor":
        """Detach features and coordinates, in place."""
        self.F, self.C = self.F.detach(), self.C.detach()
        return self

    def to(self, device: torch.device | str, non_blocking: bool = True) -> "PointTensor":
        """Move features and coordinates, in place."""
        self.F = self.F.to(device, non_blocking=non_blocking)
        self.C = self.C.to(device, non_blocking=non_blocking)
        return self

    def __add__(self, other: "PointTensor") -> "PointTensor":
        total = PointTensor(self.F + other.F, self.C, self.idx_query, self.weights)
        total.additional_features = self.additional_features
        return total


def with_feats(tensor: SparseTensor, feats: Tensor) -> SparseTensor:
    """The same voxels with other features."""
    changed = SparseTensor(feats, tensor.coords, tensor.stride, tensor.spatial_range)
    changed._caches = tensor._caches
    return changed

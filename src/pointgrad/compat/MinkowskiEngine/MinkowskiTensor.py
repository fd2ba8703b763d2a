"""Base class of sparse tensors and tensor fields, and the modes of their construction."""

from collections.abc import Callable
from enum import Enum
from typing import Any

import torch

from .MinkowskiCommon import CoordinateMapKey
from .MinkowskiCoordinateManager import CoordinateManager


class SparseTensorOperationMode(Enum):
    """Whether all new tensors share one coordinate manager."""

    SEPARATE_COORDINATE_MANAGER = 0
    SHARE_COORDINATE_MANAGER = 1


class SparseTensorQuantizationMode(Enum):
    """Features of a voxel that occurs several times. RANDOM_SUBSAMPLE takes the first row."""

    RANDOM_SUBSAMPLE = 0
    UNWEIGHTED_AVERAGE = 1
    UNWEIGHTED_SUM = 2
    NO_QUANTIZATION = 3
    MAX_POOL = 4
    SPLAT_LINEAR_INTERPOLATION = 5


_mode = SparseTensorOperationMode.SEPARATE_COORDINATE_MANAGER
_shared: CoordinateManager | None = None


def set_sparse_tensor_operation_mode(operation_mode: SparseTensorOperationMode) -> None:
    """Set whether new tensors share a coordinate manager, which must then be cleared after each step."""
    global _mode
    _mode = SparseTensorOperationMode(operation_mode)


def sparse_tensor_operation_mode() -> SparseTensorOperationMode:
    """Return the setting of `set_sparse_tensor_operation_mode`."""
    return _mode


def global_coordinate_manager() -> CoordinateManager | None:
    """Return the coordinate manager that new tensors share."""
    return _shared


def set_global_coordinate_manager(coordinate_manager: CoordinateManager | None) -> None:
    """Set the coordinate manager that new tensors share."""
    global _shared
    _shared = coordinate_manager


def clear_global_coordinate_manager() -> None:
    """Discard the coordinate manager that new tensors share."""
    set_global_coordinate_manager(None)


def new_manager(dimension: int) -> CoordinateManager:
    """The coordinate manager of a new tensor."""
    if _mode == SparseTensorOperationMode.SEPARATE_COORDINATE_MANAGER:
        return CoordinateManager(D=dimension)
    if _shared is None:
        set_global_coordinate_manager(CoordinateManager(D=dimension))
    assert _shared is not None
    return _shared


class Tensor:
    """Features (N, C) with coordinates (N, D + 1) in a coordinate manager. The batch index is the first column."""

    _F: torch.Tensor
    _manager: CoordinateManager
    coordinate_map_key: CoordinateMapKey

    @property
    def coordinate_manager(self) -> CoordinateManager:
        """The coordinate manager."""
        return self._manager

    @property
    def tensor_stride(self) -> list[int]:
        """Distance between voxels."""
        return self.coordinate_map_key.get_tensor_stride()

    @property
    def coordinates(self) -> torch.Tensor:
        """Coordinates (N, D + 1)."""
        return self._manager.get_coordinates(self.coordinate_map_key)

    @property
    def C(self) -> torch.Tensor:
        """Coordinates (N, D + 1)."""
        return self.coordinates

    @property
    def features(self) -> torch.Tensor:
        """Features (N, C)."""
        return self._F

    @property
    def F(self) -> torch.Tensor:
        """Features (N, C)."""
        return self._F

    @property
    def D(self) -> int:
        """The number of axes."""
        return self._manager.D

    dimension = D

    @property
    def decomposition_permutations(self) -> list[torch.Tensor]:
        """The rows of each cloud."""
        return self._manager.origin_map(self.coordinate_map_key)[1]

    @property
    def decomposed_coordinates(self) -> list[torch.Tensor]:
        """The coordinates (n, D) of each cloud."""
        return [self.C[rows, 1:] for rows in self.decomposition_permutations]

    @property
    def decomposed_features(self) -> list[torch.Tensor]:
        """The features (n, C) of each cloud."""
        return [self._F[rows] for rows in self.decomposition_permutations]

    @property
    def decomposed_coordinates_and_features(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The coordinates and the features of each cloud."""
        return self.decomposed_coordinates, self.decomposed_features

    def coordinates_at(self, batch_index: int) -> torch.Tensor:
        """Return the coordinates (n, D) of a cloud."""
        return self.decomposed_coordinates[batch_index]

    def features_at(self, batch_index: int) -> torch.Tensor:
        """Return the features (n, C) of a cloud."""
        return self.decomposed_features[batch_index]

    def coordinates_and_features_at(self, batch_index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the coordinates and the features of a cloud."""
        return self.coordinates_at(batch_index), self.features_at(batch_index)

    @property
    def requires_grad(self) -> bool:
        """Whether the features require a gradient."""
        return self._F.requires_grad

    def requires_grad_(self, requires_grad: bool = True) -> None:
        """Set whether the features require a gradient."""
        self._F.requires_grad_(requires_grad)

    def float(self) -> Any:
        """Convert the features to float32, in place."""
        self._F = self._F.float()
        return self

    def double(self) -> Any:
        """Convert the features to float64, in place."""
        self._F = self._F.double()
        return self

    def detach(self) -> Any:
        """Detach the features, in place."""
        self._F = self._F.detach()
        return self

    def __len__(self) -> int:
        return len(self._F)

    def size(self) -> torch.Size:
        """Return the shape of the features."""
        return self._F.size()

    @property
    def shape(self) -> torch.Size:
        """The shape of the features."""
        return self._F.shape

    @property
    def device(self) -> torch.device:
        """The device of the features."""
        return self._F.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the features."""
        return self._F.dtype

    def get_device(self) -> int:
        """Return the number of the GPU, or -1."""
        return self._F.get_device()

    def with_features(self, features: torch.Tensor) -> Any:
        """The same coordinates with other features."""
        raise NotImplementedError

    def _binary(self, other: Any, function: Callable[[Any, Any], torch.Tensor]) -> Any:
        if not isinstance(other, Tensor):
            return self.with_features(function(self._F, other))
        if self._manager is not other._manager:
            raise ValueError("tensors must share a coordinate manager, got two")
        if self._key() == other._key():
            return self.with_features(function(self._F, other._F))
        return self._union(other, function)

    def _key(self) -> CoordinateMapKey:
        return self.coordinate_map_key

    def _union(self, other: Any, function: Callable[[Any, Any], torch.Tensor]) -> Any:
        raise ValueError("tensors must have the same coordinates, got different ones")

    def __add__(self, other: Any) -> Any:
        return self._binary(other, torch.add)

    def __sub__(self, other: Any) -> Any:
        return self._binary(other, torch.sub)

    def __mul__(self, other: Any) -> Any:
        return self._binary(other, torch.mul)

    def __truediv__(self, other: Any) -> Any:
        return self._binary(other, torch.div)

    def __pow__(self, power: Any) -> Any:
        return self.with_features(self._F**power)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(coordinates={self.C}, features={self.F})"

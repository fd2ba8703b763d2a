"""Sparse tensors."""

import warnings
from collections.abc import Callable
from typing import Any

import torch

import pointgrad
from pointgrad.ops import checks

from .. import _sparse
from .MinkowskiCommon import CoordinateMapKey, convert_to_int_list
from .MinkowskiCoordinateManager import CoordinateManager
from .MinkowskiTensor import SparseTensorQuantizationMode as Mode
from .MinkowskiTensor import Tensor, new_manager

__all__ = ["SparseTensor"]


class SparseTensor(Tensor):
    """Features of voxels.

    Args:
        features: (N, C) features.
        coordinates: (N, D + 1) int32: the batch index and the voxel. Voxels that occur several times are merged.
        tensor_stride: Distance between voxels.
        coordinate_map_key: Key of known coordinates, instead of `coordinates`.
        coordinate_manager: The manager of related tensors. By default a new one.
        quantization_mode: How voxels that occur several times are merged.
        allocator_type: No effect.
        minkowski_algorithm: No effect.
        requires_grad: Whether the features require a gradient.
        device: Device of the tensor.
    """

    def __init__(
        self,
        features: torch.Tensor,
        coordinates: torch.Tensor | None = None,
        tensor_stride: Any = 1,
        coordinate_map_key: CoordinateMapKey | None = None,
        coordinate_manager: CoordinateManager | None = None,
        quantization_mode: Mode = Mode.RANDOM_SUBSAMPLE,
        allocator_type: Any = None,
        minkowski_algorithm: Any = None,
        requires_grad: bool | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        checks.tensor("features", features)
        checks.shape(features.dim() == 2, "features", "(N, C)", features)
        if device is not None:
            features = features.to(device)
            coordinates = None if coordinates is None else coordinates.to(device)
        self.quantization_mode = quantization_mode
        if coordinates is not None:
            if coordinate_map_key is not None:
                raise ValueError("coordinates must be None if coordinate_map_key is given, got both")
            checks.tensor("coordinates", coordinates)
            rows = len(features)
            fits = coordinates.dim() == 2 and len(coordinates) == rows
            checks.shape(fits, "coordinates", f"(N, D + 1) with N = {rows}", coordinates)
            if coordinates.dtype != torch.int32:
                warnings.warn("coordinates are converted to int32; use .int() to avoid this", stacklevel=2)
                _sparse.check_int32("coordinates", coordinates)
                coordinates = coordinates.floor().int() if coordinates.is_floating_point() else coordinates.int()
            self._manager = coordinate_manager or new_manager(coordinates.shape[1] - 1)
            stride = convert_to_int_list(tensor_stride, self._manager.D)
            coordinate_map_key, (self.unique_index, self.inverse_mapping) = self._manager.insert_and_map(
                coordinates, stride
            )
            features = merge(features, self.unique_index, self.inverse_mapping, quantization_mode)
        elif coordinate_map_key is None or coordinate_manager is None:
            raise ValueError("coordinates must be given unless coordinate_map_key and coordinate_manager are, got None")
        else:
            self._manager = coordinate_manager
        if requires_grad is not None:
            features.requires_grad_(requires_grad)
        self._F = features
        self.coordinate_map_key = coordinate_map_key

    @property
    def coordinate_key(self) -> CoordinateMapKey:
        """The key of the coordinates."""
        return self.coordinate_map_key

    def with_features(self, features: torch.Tensor) -> "SparseTensor":
        """Return the same voxels with other features."""
        return SparseTensor(features, coordinate_map_key=self.coordinate_map_key, coordinate_manager=self._manager)

    def _union(self, other: Any, function: Callable[[Any, Any], torch.Tensor]) -> "SparseTensor":
        key = CoordinateMapKey(self.D + 1)
        maps = self._manager.union_map([self.coordinate_map_key, other.coordinate_map_key], key)
        left, right = (
            tensor._F.new_zeros((self._manager.size(key), tensor._F.shape[1])).index_copy(0, rows[1], tensor._F)
            for tensor, rows in zip((self, other), maps, strict=True)
        )
        inside = torch.zeros(len(left), 1, dtype=torch.bool, device=left.device).index_fill(0, maps[1][1], True)
        features = torch.where(inside, function(left, right), left)
        return SparseTensor(features, coordinate_map_key=key, coordinate_manager=self._manager)

    def dense(
        self, shape: Any = None, min_coordinate: Any = None, contract_stride: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the features on a grid (B, C, ...), its lowest coordinate and the tensor stride.

        Args:
            shape: Shape of the grid. By default up to the largest coordinate.
            min_coordinate: (D,) lowest coordinate of the grid. By default 0; then coordinates must not be negative.
            contract_stride: Divide coordinates by the tensor stride.
        """
        stride = torch.tensor(self.tensor_stride, dtype=torch.int32)
        voxels = self.C[:, 1:]
        lowest = voxels.new_zeros(self.D) if min_coordinate is None else min_coordinate
        voxels = voxels - torch.as_tensor(lowest, device=voxels.device)
        if len(voxels) and int(voxels.min()) < 0:
            raise ValueError(
                f"coordinates must be at least min_coordinate, got {voxels.min(0).values.tolist()} below it"
            )
        if contract_stride:
            voxels = voxels // stride.to(voxels.device)
        if shape is None:
            checks.value(len(voxels) > 0, "shape", "given for a tensor without voxels", None)
            shape = (int(self.C[:, 0].max()) + 1, self._F.shape[1], *(voxels.max(0).values + 1).tolist())
        grid = self._F.new_zeros((shape[0], *shape[2:], self._F.shape[1]))
        grid = grid.index_put((self.C[:, 0].long(), *voxels.long().unbind(1)), self._F)
        return grid.movedim(-1, 1), torch.as_tensor(lowest), stride

    def slice(self, X: Any) -> Any:
        """Return the features at the points or duplicate voxels from which the coordinates were made."""
        from .MinkowskiTensorField import TensorField

        if isinstance(X, TensorField):
            return X.with_features(self._F[X.inverse_mapping(self.coordinate_map_key)])
        if X.coordinate_map_key != self.coordinate_map_key:
            raise ValueError("X must have the coordinates of this tensor, got different ones")
        rows = X.inverse_mapping
        return TensorField(self._F[rows], self.C[rows].float(), coordinate_manager=self._manager)

    def cat_slice(self, X: Any) -> Any:
        """Return `slice` followed by the features of the tensor field."""
        sliced = self.slice(X)
        return sliced.with_features(torch.cat([sliced.F, X.F], 1))

    def features_at_coordinates(self, query_coordinates: torch.Tensor) -> torch.Tensor:
        """Interpolate linearly at (M, D + 1) coordinates: (M, C). Missing voxels count as 0."""
        index, weights = self._manager.corners(self.coordinate_map_key, query_coordinates)
        return pointgrad.interpolate_at(self._F, index, weights.to(self._F.dtype))

    def interpolate(self, X: Any) -> Any:
        """Interpolate linearly at the points of a tensor field."""
        return X.with_features(self.features_at_coordinates(X.C))


def merge(features: torch.Tensor, first: torch.Tensor, inverse: torch.Tensor, mode: Mode) -> torch.Tensor:
    """Features of voxels from those of rows."""
    if mode == Mode.RANDOM_SUBSAMPLE or len(first) == len(features):
        return features[first]
    if mode == Mode.UNWEIGHTED_AVERAGE:
        return pointgrad.scatter(features, inverse, len(first), "mean")
    if mode == Mode.UNWEIGHTED_SUM:
        return pointgrad.scatter(features, inverse, len(first))
    if mode == Mode.MAX_POOL:
        return pointgrad.scatter(features, inverse, len(first), "max")
    raise NotImplementedError(f"pointgrad.compat does not provide {mode}")


def output_key(input: SparseTensor, coordinates: Any) -> CoordinateMapKey | None:
    """The key of coordinates that a program requests as output of a layer."""
    if coordinates is None or isinstance(coordinates, CoordinateMapKey):
        return coordinates
    if isinstance(coordinates, SparseTensor):
        return coordinates.coordinate_map_key
    return input.coordinate_manager.insert_and_map(coordinates)[0]

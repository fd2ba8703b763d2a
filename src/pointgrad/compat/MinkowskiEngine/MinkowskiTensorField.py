"""Features of points."""

from typing import Any

import torch

from .MinkowskiCommon import CoordinateMapKey, convert_to_int_list
from .MinkowskiCoordinateManager import CoordinateManager
from .MinkowskiSparseTensor import SparseTensor, merge
from .MinkowskiTensor import SparseTensorQuantizationMode as Mode
from .MinkowskiTensor import Tensor, new_manager

__all__ = ["TensorField"]


class TensorField(Tensor):
    """Features of points with coordinates in units of voxels.

    Args:
        features: (N, C) features.
        coordinates: (N, D + 1) floats: the batch index and the point.
        tensor_stride: Tensor stride of the key.
        coordinate_field_map_key: Key of known points, instead of `coordinates`.
        coordinate_manager: The manager of related tensors. By default a new one.
        quantization_mode: How `sparse` merges the points of a voxel.
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
        coordinate_field_map_key: CoordinateMapKey | None = None,
        coordinate_manager: CoordinateManager | None = None,
        quantization_mode: Mode = Mode.UNWEIGHTED_AVERAGE,
        allocator_type: Any = None,
        minkowski_algorithm: Any = None,
        requires_grad: bool | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if device is not None:
            features = features.to(device)
            coordinates = None if coordinates is None else coordinates.to(device)
        self.quantization_mode = quantization_mode
        if coordinates is not None:
            self._manager = coordinate_manager or new_manager(coordinates.shape[1] - 1)
            stride = convert_to_int_list(tensor_stride, self._manager.D)
            coordinate_field_map_key = self._manager.insert_field(coordinates.float(), stride)
        elif coordinate_field_map_key is None or coordinate_manager is None:
            raise ValueError(
                "coordinates must be given unless coordinate_field_map_key and coordinate_manager are, got None"
            )
        else:
            self._manager = coordinate_manager
        if requires_grad is not None:
            features.requires_grad_(requires_grad)
        self._F = features
        self.coordinate_field_map_key = coordinate_field_map_key
        self._inverse: dict[CoordinateMapKey, torch.Tensor] = {}

    @property
    def coordinate_key(self) -> CoordinateMapKey:
        """The key of the points."""
        return self.coordinate_field_map_key

    @property
    def coordinates(self) -> torch.Tensor:
        """Coordinates (N, D + 1)."""
        return self._manager.get_coordinate_field(self.coordinate_field_map_key)

    def _key(self) -> CoordinateMapKey:
        return self.coordinate_field_map_key

    def with_features(self, features: torch.Tensor) -> "TensorField":
        """Return the same points with other features."""
        field = TensorField(
            features,
            coordinate_field_map_key=self.coordinate_field_map_key,
            coordinate_manager=self._manager,
            quantization_mode=self.quantization_mode,
        )
        field._inverse = self._inverse
        return field

    def sparse(
        self,
        tensor_stride: Any = 1,
        coordinate_map_key: CoordinateMapKey | None = None,
        quantization_mode: Mode | None = None,
    ) -> SparseTensor:
        """Convert to a sparse tensor."""
        if coordinate_map_key is not None:
            raise NotImplementedError("pointgrad.compat does not provide TensorField.sparse with a coordinate_map_key")
        key, (first, inverse) = self._manager.field_to_sparse_insert_and_map(
            self.coordinate_field_map_key, convert_to_int_list(tensor_stride, self._manager.D)
        )
        self._inverse[key] = inverse
        features = merge(self._F, first, inverse, quantization_mode or self.quantization_mode)
        return SparseTensor(features, coordinate_map_key=key, coordinate_manager=self._manager)

    def inverse_mapping(self, sparse_tensor_map_key: CoordinateMapKey) -> torch.Tensor:
        """Return the voxel of each point (N,)."""
        if sparse_tensor_map_key not in self._inverse:
            voxel, point = self._manager.field_to_sparse_map(self.coordinate_field_map_key, sparse_tensor_map_key)
            if len(point) != len(self._F):
                raise ValueError("every point must lie in a voxel of the sparse tensor, got points outside")
            self._inverse[sparse_tensor_map_key] = voxel
        return self._inverse[sparse_tensor_map_key]

"""Functions of tensors."""

from typing import Any

import torch

from .MinkowskiCommon import MinkowskiModuleBase
from .MinkowskiSparseTensor import SparseTensor
from .MinkowskiTensorField import TensorField

__all__ = ["MinkowskiToFeature", "MinkowskiToSparseTensor", "cat", "dense_coordinates", "to_sparse", "to_sparse_all"]


def cat(*sparse_tensors: Any) -> Any:
    """Concatenate the channels of tensors with the same coordinates."""
    tensors = sparse_tensors[0] if len(sparse_tensors) == 1 else sparse_tensors
    for tensor in tensors:
        if tensor.coordinate_manager is not tensors[0].coordinate_manager or tensor._key() != tensors[0]._key():
            raise ValueError("tensors must have the same coordinates, got different ones")
    return tensors[0].with_features(torch.cat([tensor.F for tensor in tensors], -1))


def dense_coordinates(shape: Any) -> torch.Tensor:
    """Return all coordinates of a grid (B, C, ...): (N, D + 1) int32."""
    axes = [torch.arange(size) for size in (shape[0], *shape[2:])]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes)).int()


def to_sparse(x: torch.Tensor, format: str | None = None, coordinates: Any = None, device: Any = None) -> SparseTensor:
    """Convert the nonzero entries of a grid (B, C, ...). `format` names the axes, such as "BXXXC"."""
    last = x.movedim(1 if format is None else format.index("C"), -1)
    voxels = (last != 0).any(-1).nonzero()
    return SparseTensor(last[tuple(voxels.unbind(1))], voxels.int(), device=device)


def to_sparse_all(dense_tensor: torch.Tensor, coordinates: torch.Tensor | None = None) -> SparseTensor:
    """Convert all entries of a grid (B, C, ...)."""
    voxels = dense_coordinates(dense_tensor.shape) if coordinates is None else coordinates
    return SparseTensor(dense_tensor.movedim(1, -1).flatten(0, -2), voxels.to(dense_tensor.device))


class MinkowskiToSparseTensor(MinkowskiModuleBase):
    """Convert a tensor field or a grid to a sparse tensor."""

    def __init__(self, remove_zeros: bool = True, coordinates: torch.Tensor | None = None) -> None:
        super().__init__()
        self.remove_zeros, self.coordinates = remove_zeros, coordinates

    def forward(self, input: Any) -> SparseTensor:
        """Apply the layer."""
        if isinstance(input, TensorField):
            return input.sparse()
        if self.remove_zeros and self.coordinates is None:
            return to_sparse(input)
        return to_sparse_all(input, self.coordinates)


class MinkowskiToFeature(MinkowskiModuleBase):
    """Return the features."""

    def forward(self, x: Any) -> torch.Tensor:
        """Apply the layer."""
        features: torch.Tensor = x.F
        return features

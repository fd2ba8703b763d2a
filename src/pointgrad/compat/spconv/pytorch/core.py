"""The sparse tensor of spconv, and the kernel maps that it carries."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pointgrad
from pointgrad import KernelMap
from pointgrad.ops import checks

from ..core import ConvAlgo

__all__ = ["ImplicitGemmIndiceData", "IndiceData", "SparseConvTensor", "expand_nd", "scatter_nd"]


@dataclass(eq=False)
class IndiceData:
    """A kernel map in `SparseConvTensor.indice_dict`, with the settings of the layer that created it.

    Attributes:
        out_indices: (M, 1 + ndim) int32, the voxels of the outputs.
        indices: (N, 1 + ndim) int32, the voxels of the inputs.
        map: Kernel map from inputs to outputs.
        order: (N,) order of the inputs in which the map numbers them, by batch index; None if that is their own order.
        spatial_shape: Size of the grid of the inputs.
        out_spatial_shape: Size of the grid of the outputs.
        is_subm: Whether the outputs are the inputs.
        algo: As given to the layer.
        ksize: Kernel size.
        stride: Stride.
        padding: Padding.
        dilation: Dilation.
    """

    out_indices: Tensor
    indices: Tensor
    map: KernelMap
    order: Tensor | None
    spatial_shape: list[int]
    out_spatial_shape: list[int]
    is_subm: bool
    algo: ConvAlgo
    ksize: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]

    def convolve(self, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve features (N, C) of the inputs with weight (K, C, D): (M, D)."""
        return self._restored(pointgrad.sparse_conv(self._ordered(features), weight, self.map, bias=bias))

    def convolve_back(self, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve features (M, C) of the outputs along the inverse map: (N, D)."""
        out = pointgrad.sparse_conv(features, weight, self.map.inverse(), bias=bias)
        return out if self.order is None else out.index_select(0, self.order.argsort())

    def pool(self, features: Tensor, reduce: Any) -> Tensor:
        """Reduce features (N, C) of the inputs to the outputs: (M, C)."""
        return self._restored(pointgrad.sparse_pool(self._ordered(features), self.map, reduce))

    def _ordered(self, features: Tensor) -> Tensor:
        return features if self.order is None else features.index_select(0, self.order)

    def _restored(self, out: Tensor) -> Tensor:
        return out.index_select(0, self.order.argsort()) if self.is_subm and self.order is not None else out


ImplicitGemmIndiceData = IndiceData


class SparseConvTensor:
    """Features of the occupied voxels of a batch of grids.

    Args:
        features: (N, C), in any floating dtype.
        indices: (N, 1 + ndim) int32: batch index, then the voxel, from the slowest axis to the fastest (z, y, x).
            Rows may be in any order.
        spatial_shape: Size of the grid along each axis.
        batch_size: Number of grids.
        grid: Kept as an attribute, not used.
        voxel_num: Kept as an attribute, not used.
        indice_dict: Kernel maps by `indice_key`.
        benchmark: Kept as an attribute, not used.
        permanent_thrust_allocator: Ignored.
        enable_timer: Ignored.
        force_algo: Kept as an attribute, not used.

    Example:
        >>> indices = torch.tensor([[0, 0, 0, 1], [0, 0, 0, 0]], dtype=torch.int32)
        >>> x = SparseConvTensor(torch.tensor([[3.0], [4.0]]), indices, [1, 1, 2], 1)
        >>> x.dense()
        tensor([[[[[4., 3.]]]]])
    """

    def __init__(
        self,
        features: Tensor,
        indices: Tensor,
        spatial_shape: Sequence[int] | Any,
        batch_size: int,
        grid: Tensor | None = None,
        voxel_num: Tensor | None = None,
        indice_dict: dict[str, IndiceData] | None = None,
        benchmark: bool = False,
        permanent_thrust_allocator: bool = False,
        enable_timer: bool = False,
        force_algo: ConvAlgo | None = None,
    ) -> None:
        checks.tensor("features", features)
        checks.tensor("indices", indices)
        checks.shape(features.dim() == 2, "features", "(N, C)", features)
        checks.shape(indices.dim() == 2, "indices", "(N, 1 + ndim)", indices)
        checks.dtype("indices", indices, (torch.int32,))
        self.spatial_shape = [int(size) for size in spatial_shape]
        contract = f"{indices.shape[1] - 1} sizes, one for each axis of indices"
        fits = len(self.spatial_shape) == indices.shape[1] - 1
        checks.value(fits, "spatial_shape", contract, self.spatial_shape)
        checks.value(batch_size > 0, "batch_size", "positive", batch_size)
        self._features = features
        self.indices = indices
        self.batch_size = batch_size
        self.indice_dict: dict[str, IndiceData] = {} if indice_dict is None else indice_dict
        self.grid: Tensor | None = torch.Tensor() if grid is None else grid
        self.voxel_num = voxel_num
        self.benchmark = benchmark
        self.benchmark_record: dict[str, Any] = {}
        self.thrust_allocator: Any = None
        self._timer: Any = None
        self.force_algo = force_algo
        self.int8_scale: Any = None

    def __repr__(self) -> str:
        return f"SparseConvTensor[shape={self._features.shape}]"

    @property
    def features(self) -> Tensor:
        """(N, C) features. To change them, use `replace_feature`."""
        return self._features

    @features.setter
    def features(self, value: Tensor) -> None:
        raise ValueError("features must not be assigned: use `x = x.replace_feature(features)`")

    @property
    def spatial_size(self) -> Any:
        """Number of voxels of one grid."""
        return np.prod(self.spatial_shape)

    @property
    def sparity(self) -> float:
        """Occupied part of the grids."""
        return self.indices.shape[0] / math.prod(self.spatial_shape) / self.batch_size

    def replace_feature(self, feature: Tensor) -> "SparseConvTensor":
        """Return a tensor with the same voxels and kernel maps, and other features (N, D)."""
        other = self.shadow_copy()
        other._features = feature
        return other

    def shadow_copy(self) -> "SparseConvTensor":
        """Return a tensor that shares all attributes with this one."""
        return copy.copy(self)

    def select_by_index(self, valid_indices: Tensor) -> "SparseConvTensor":
        """Return the rows with these numbers, or those where a mask is true, without kernel maps."""
        other = self.replace_feature(self.features[valid_indices])
        other.indices = self.indices[valid_indices]
        other.indice_dict = {}
        return other

    def minus(self) -> "SparseConvTensor":
        """Return the tensor with negated features."""
        return self.replace_feature(-self.features)

    @classmethod
    def from_dense(cls, x: Tensor) -> "SparseConvTensor":
        """Collect the voxels of dense grids (B, ..., C) that have a nonzero value."""
        occupied = (x != 0).any(-1)
        return cls(x[occupied], occupied.nonzero().int(), list(x.shape[1:-1]), x.shape[0])

    def dense(self, channels_first: bool = True) -> Tensor:
        """Return dense grids (B, C, ...), or (B, ..., C) without `channels_first`, with zeros in empty voxels."""
        shape = [int(self.batch_size), *self.spatial_shape, self.features.shape[1]]
        grids = scatter_nd(self.indices.to(self.features.device).long(), self.features, shape)
        return grids.movedim(-1, 1).contiguous() if channels_first else grids

    def find_indice_pair(self, key: str | None) -> IndiceData | None:
        """Return the kernel map with this key, or None."""
        return None if key is None else self.indice_dict.get(key)

    def __add__(self, other: "SparseConvTensor | Tensor") -> "SparseConvTensor":
        return self.replace_feature(self.features + (other if isinstance(other, Tensor) else other.features))

    __radd__ = __add__


def scatter_nd(indices: Tensor, updates: Tensor, shape: Sequence[int]) -> Tensor:
    """Write rows into zeros.

    Args:
        indices: (..., D) int64, a position along the first D axes of the result.
        updates: (..., *shape[D:]), the values. If a position occurs several times, one of its values is written.
        shape: Shape of the result.

    Returns:
        Tensor of this shape in the dtype of `updates`.
    """
    depth = indices.shape[-1]
    places = tuple(indices.reshape(-1, depth).unbind(1))
    return updates.new_zeros(list(shape)).index_put(places, updates.reshape(-1, *shape[depth:]))


def expand_nd(ndim: int, val: Any) -> list[int]:
    """Return one int for each of `ndim` axes, from a single int or a sequence."""
    sizes = [val] * ndim if checks.is_integer(val) else list(val)
    checks.value(len(sizes) == ndim, "a size", f"one int or {ndim}", f"{len(sizes)} ints")
    return [int(size) for size in sizes]

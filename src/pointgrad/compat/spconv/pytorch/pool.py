"""Pooling of sparse tensors."""

from typing import Any, ClassVar, Literal

from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ..core import ConvAlgo
from . import _maps
from .conv import CountsVoxels, default_algo
from .core import SparseConvTensor, expand_nd
from .modules import SparseModule

__all__ = [
    "SparseAvgPool",
    "SparseAvgPool1d",
    "SparseAvgPool2d",
    "SparseAvgPool3d",
    "SparseGlobalAvgPool",
    "SparseGlobalMaxPool",
    "SparseMaxPool",
    "SparseMaxPool1d",
    "SparseMaxPool2d",
    "SparseMaxPool3d",
    "SparseMaxPool4d",
]


class _Pool(CountsVoxels):
    """Reduction of the voxels in each window.

    Args:
        ndim: Number of axes, 1 to 3.
        kernel_size: Size of a window, or one number per axis.
        stride: Distance between adjacent windows; None for the kernel size.
        padding: Distance of the first window from voxel 0.
        dilation: Distance between adjacent voxels of a window.
        indice_key: Name of the kernel map, for an inverse convolution.
        subm: The outputs are the input voxels.
        algo: Kept as an attribute, not used.
        record_voxel_count: Record the largest number of outputs in a buffer.
        name: Kept as an attribute, not used.
    """

    _reduce: ClassVar[Literal["max", "mean"]]

    def __init__(
        self,
        ndim: int,
        kernel_size: Any = 3,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        indice_key: str | None = None,
        subm: bool = False,
        algo: ConvAlgo | None = None,
        record_voxel_count: bool = False,
        name: str | None = None,
    ) -> None:
        if not 1 <= ndim <= 3:
            raise NotImplementedError(f"pointgrad.compat.spconv supports 1 to 3 axes, got {ndim}")
        super().__init__(name)
        self.ndim = ndim
        self.kernel_size = expand_nd(ndim, kernel_size)
        self.stride = list(self.kernel_size) if stride is None else expand_nd(ndim, stride)
        self.padding = expand_nd(ndim, padding)
        self.dilation = expand_nd(ndim, dilation)
        self.indice_key = indice_key
        self.subm = subm
        self.algo = default_algo(self.kernel_size) if algo is None else algo
        self.record_voxel_count = record_voxel_count
        self._record_voxel_count(record_voxel_count and not subm)

    def extra_repr(self) -> str:
        """Describe the settings."""
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"algo={self.algo}"
        )

    def forward(self, input: SparseConvTensor) -> SparseConvTensor:
        """Reduce the voxels in each window.

        Args:
            input: Sparse tensor.

        Returns:
            Sparse tensor whose voxels are all windows with an input, sorted by batch index and coordinates, with the
            kernel map as `indice_dict[indice_key]`.
        """
        checks.kind(isinstance(input, SparseConvTensor), "input", "a SparseConvTensor", input)
        if input.find_indice_pair(self.indice_key) is not None:
            raise ValueError(f"indice_key {self.indice_key!r} already exists: a pool creates a kernel map of its own")
        settings = (self.kernel_size, self.stride, self.padding, self.dilation, [0] * self.ndim)
        data = _maps.build(input, self.algo, *settings, self.subm)
        out = input.replace_feature(data.pool(input.features, self._reduce))
        out.indices, out.spatial_shape = data.out_indices, data.out_spatial_shape
        if self.indice_key is not None:
            out.indice_dict = {**input.indice_dict, self.indice_key: data}
        self._count_voxels(len(out.indices))
        return out


class SparseMaxPool(_Pool):
    """Maximum of the voxels in each window; empty voxels do not count."""

    _reduce = "max"


class SparseAvgPool(_Pool):
    """Mean of the voxels in each window; empty voxels do not count."""

    _reduce = "mean"


class _WithAxes(_Pool):
    """Constructor of the classes for one number of axes."""

    _ndim: ClassVar[int]

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        indice_key: str | None = None,
        algo: ConvAlgo | None = None,
        record_voxel_count: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            self._ndim, kernel_size, stride, padding, dilation, indice_key,
            algo=algo, record_voxel_count=record_voxel_count, name=name,
        )  # fmt: skip


class SparseMaxPool1d(_WithAxes, SparseMaxPool):
    __doc__ = SparseMaxPool.__doc__
    _ndim = 1


class SparseMaxPool2d(_WithAxes, SparseMaxPool):
    __doc__ = SparseMaxPool.__doc__
    _ndim = 2


class SparseMaxPool3d(_WithAxes, SparseMaxPool):
    __doc__ = SparseMaxPool.__doc__
    _ndim = 3


class SparseMaxPool4d(_WithAxes, SparseMaxPool):
    __doc__ = SparseMaxPool.__doc__
    _ndim = 4


class SparseAvgPool1d(_WithAxes, SparseAvgPool):
    __doc__ = SparseAvgPool.__doc__
    _ndim = 1


class SparseAvgPool2d(_WithAxes, SparseAvgPool):
    __doc__ = SparseAvgPool.__doc__
    _ndim = 2


class SparseAvgPool3d(_WithAxes, SparseAvgPool):
    __doc__ = SparseAvgPool.__doc__
    _ndim = 3


class _GlobalPool(SparseModule):
    _reduce: ClassVar[Literal["max", "mean"]]

    def forward(self, input: SparseConvTensor) -> Tensor:
        """Return (batch_size, C), with zeros for a grid without voxels."""
        checks.kind(isinstance(input, SparseConvTensor), "input", "a SparseConvTensor", input)
        batch = input.indices[:, 0].to(input.features.device)
        return pointgrad.scatter(input.features, batch, int(input.batch_size), self._reduce)


class SparseGlobalMaxPool(_GlobalPool):
    """Maximum of all voxels of each grid."""

    _reduce = "max"


class SparseGlobalAvgPool(_GlobalPool):
    """Mean of all voxels of each grid."""

    _reduce = "mean"

"""Pooling, broadcasts, pruning and unions."""

from typing import Any, Literal

import torch
from torch import nn

import pointgrad

from .MinkowskiCommon import CoordinateMapKey, MinkowskiModuleBase, PoolingMode, RegionType
from .MinkowskiKernelGenerator import KernelGenerator
from .MinkowskiSparseTensor import SparseTensor, output_key
from .MinkowskiTensorField import TensorField

__all__ = [
    "MinkowskiAvgPooling",
    "MinkowskiBroadcast",
    "MinkowskiBroadcastAddition",
    "MinkowskiBroadcastConcatenation",
    "MinkowskiBroadcastMultiplication",
    "MinkowskiGlobalAvgPooling",
    "MinkowskiGlobalMaxPooling",
    "MinkowskiGlobalPooling",
    "MinkowskiGlobalSumPooling",
    "MinkowskiMaxPooling",
    "MinkowskiPoolingTranspose",
    "MinkowskiPruning",
    "MinkowskiSumPooling",
    "MinkowskiUnion",
]


class MinkowskiPoolingBase(MinkowskiModuleBase):
    """Base class. Voxels that do not exist do not count."""

    reduce: Literal["max", "mean", "sum"] = "mean"
    is_transpose = False

    def __init__(
        self, kernel_size: Any = -1, stride: Any = 1, dilation: Any = 1,
        kernel_generator: KernelGenerator | None = None, dimension: int = -1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_generator = kernel_generator or KernelGenerator(kernel_size, stride, dilation, dimension=dimension)
        self.dimension = dimension
        if self.kernel_generator.region_type != RegionType.HYPER_CUBE:
            raise NotImplementedError("pointgrad.compat provides pooling with RegionType.HYPER_CUBE only")

    def forward(self, input: SparseTensor, coordinates: Any = None) -> SparseTensor:
        """Apply the layer; outputs are at `coordinates`, if given."""
        manager, generator, key = input.coordinate_manager, self.kernel_generator, input.coordinate_map_key
        target = output_key(input, coordinates) or manager.output_key(key, generator, self.is_transpose)
        found = manager.site_map(
            key, target, generator.kernel_size, generator.kernel_stride, generator.kernel_dilation,
            self.is_transpose, pool=True,
        )  # fmt: skip
        return SparseTensor(found.pool(input.F, self.reduce), coordinate_map_key=target, coordinate_manager=manager)


class MinkowskiAvgPooling(MinkowskiPoolingBase):
    """Mean of the voxels that exist."""


class MinkowskiSumPooling(MinkowskiPoolingBase):
    """Sum of the voxels that exist."""

    reduce = "sum"


class MinkowskiMaxPooling(MinkowskiPoolingBase):
    """Maximum of the voxels that exist."""

    reduce = "max"


class MinkowskiPoolingTranspose(MinkowskiPoolingBase):
    """Copy features to the finer voxels, and add them where several arrive, as the original does on the CPU."""

    reduce = "sum"
    is_transpose = True

    def __init__(
        self, kernel_size: Any, stride: Any, dilation: Any = 1, kernel_generator: KernelGenerator | None = None,
        expand_coordinates: bool = False, dimension: int = -1,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, dilation, kernel_generator, dimension)
        self.kernel_generator.expand_coordinates |= expand_coordinates


class MinkowskiGlobalPooling(MinkowskiModuleBase):
    """Reduce each cloud to one row. Rows are sorted by cloud."""

    default = PoolingMode.GLOBAL_AVG_POOLING_PYTORCH_INDEX

    def __init__(self, mode: PoolingMode | None = None) -> None:
        super().__init__()
        self.pooling_mode = self.default if mode is None else mode

    def forward(self, input: SparseTensor | TensorField, coordinates: Any = None) -> SparseTensor:
        """Apply the layer."""
        if coordinates is not None:
            raise NotImplementedError("pointgrad.compat does not provide global pooling with coordinates")
        manager = input.coordinate_manager
        rows = manager.cloud_rows(input._key(), isinstance(input, TensorField))
        key = manager.origin()
        name = self.pooling_mode.name.split("_")[1]
        reduce: Any = {"SUM": "sum", "AVG": "mean", "MAX": "max"}[name]
        features = pointgrad.scatter(input.F, rows, manager.size(key), reduce)
        return SparseTensor(features, coordinate_map_key=key, coordinate_manager=manager)


class MinkowskiGlobalAvgPooling(MinkowskiGlobalPooling):
    """Mean of each cloud."""


class MinkowskiGlobalSumPooling(MinkowskiGlobalPooling):
    """Sum of each cloud."""

    default = PoolingMode.GLOBAL_SUM_POOLING_PYTORCH_INDEX


class MinkowskiGlobalMaxPooling(MinkowskiGlobalPooling):
    """Maximum of each cloud."""

    default = PoolingMode.GLOBAL_MAX_POOLING_PYTORCH_INDEX


class MinkowskiBroadcast(MinkowskiModuleBase):
    """Copy the row of each cloud to its voxels."""

    def forward(self, input: SparseTensor, input_glob: SparseTensor) -> SparseTensor:
        """Apply the layer."""
        rows = input.coordinate_manager.cloud_rows(input.coordinate_map_key)
        return input.with_features(self.combine(input.F, input_glob.F[rows]))

    def combine(self, features: torch.Tensor, copied: torch.Tensor) -> torch.Tensor:
        """Features of the result."""
        return copied


class MinkowskiBroadcastAddition(MinkowskiBroadcast):
    """Add the row of each cloud to its voxels."""

    def combine(self, features: torch.Tensor, copied: torch.Tensor) -> torch.Tensor:
        """Features of the result."""
        return features + copied


class MinkowskiBroadcastMultiplication(MinkowskiBroadcast):
    """Multiply the voxels of each cloud by its row."""

    def combine(self, features: torch.Tensor, copied: torch.Tensor) -> torch.Tensor:
        """Features of the result."""
        return features * copied


class MinkowskiBroadcastConcatenation(MinkowskiBroadcast):
    """Append the row of each cloud to its voxels."""

    def combine(self, features: torch.Tensor, copied: torch.Tensor) -> torch.Tensor:
        """Features of the result."""
        return torch.cat([features, copied], 1)


class MinkowskiPruning(MinkowskiModuleBase):
    """Remove voxels. Those that remain keep their order."""

    def forward(self, input: SparseTensor, mask: torch.Tensor) -> SparseTensor:
        """Keep the voxels where `mask` (N,) is True."""
        mask = mask.to(input.device)
        manager = input.coordinate_manager
        key = manager.add(input.C[mask], input.tensor_stride, "pruned")
        return SparseTensor(input.F[mask], coordinate_map_key=key, coordinate_manager=manager)


class MinkowskiUnion(nn.Module):
    """Add tensors with different voxels. The result has the voxels of all."""

    def forward(self, *inputs: SparseTensor) -> SparseTensor:
        """Apply the layer."""
        manager, key = inputs[0].coordinate_manager, CoordinateMapKey(inputs[0].D + 1)
        maps = manager.union_map([tensor.coordinate_map_key for tensor in inputs], key)
        features = torch.cat([tensor.F for tensor in inputs])
        total = pointgrad.scatter(features, torch.cat([rows[1] for rows in maps]), manager.size(key))
        return SparseTensor(total, coordinate_map_key=key, coordinate_manager=manager)

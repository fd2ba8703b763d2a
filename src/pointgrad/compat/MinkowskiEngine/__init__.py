"""The interface of MinkowskiEngine 0.5.4, as far as networks for segmentation use it; see README.md."""

from typing import NoReturn

import torch

from . import MinkowskiFunctional, MinkowskiOps, modules, utils
from .MinkowskiCommon import (
    BroadcastMode,
    ConvolutionMode,
    CoordinateMapKey,
    CoordinateMapType,
    GPUMemoryAllocatorType,
    MinkowskiAlgorithm,
    MinkowskiModuleBase,
    PoolingMode,
    RegionType,
    convert_to_int_list,
    convert_to_int_tensor,
)
from .MinkowskiConvolution import (
    MinkowskiChannelwiseConvolution,
    MinkowskiConvolution,
    MinkowskiConvolutionTranspose,
    MinkowskiGenerativeConvolutionTranspose,
)
from .MinkowskiCoordinateManager import CoordinateManager, CoordsManager, set_gpu_allocator, set_memory_manager_backend
from .MinkowskiKernelGenerator import KernelGenerator, get_kernel_volume
from .MinkowskiNetwork import MinkowskiNetwork
from .MinkowskiNonlinearity import (
    MinkowskiAlphaDropout,
    MinkowskiBatchNorm,
    MinkowskiCELU,
    MinkowskiDropout,
    MinkowskiELU,
    MinkowskiGELU,
    MinkowskiHardshrink,
    MinkowskiHardsigmoid,
    MinkowskiHardswish,
    MinkowskiHardtanh,
    MinkowskiInstanceNorm,
    MinkowskiLeakyReLU,
    MinkowskiLinear,
    MinkowskiLogSigmoid,
    MinkowskiLogSoftmax,
    MinkowskiPReLU,
    MinkowskiReLU,
    MinkowskiReLU6,
    MinkowskiRReLU,
    MinkowskiSELU,
    MinkowskiSigmoid,
    MinkowskiSiLU,
    MinkowskiSoftmax,
    MinkowskiSoftmin,
    MinkowskiSoftplus,
    MinkowskiSoftshrink,
    MinkowskiSoftsign,
    MinkowskiSyncBatchNorm,
    MinkowskiTanh,
    MinkowskiTanhshrink,
    MinkowskiThreshold,
)
from .MinkowskiOps import MinkowskiToFeature, MinkowskiToSparseTensor, cat, dense_coordinates, to_sparse, to_sparse_all
from .MinkowskiPooling import (
    MinkowskiAvgPooling,
    MinkowskiBroadcast,
    MinkowskiBroadcastAddition,
    MinkowskiBroadcastConcatenation,
    MinkowskiBroadcastMultiplication,
    MinkowskiGlobalAvgPooling,
    MinkowskiGlobalMaxPooling,
    MinkowskiGlobalPooling,
    MinkowskiGlobalSumPooling,
    MinkowskiMaxPooling,
    MinkowskiPoolingTranspose,
    MinkowskiPruning,
    MinkowskiSumPooling,
    MinkowskiUnion,
)
from .MinkowskiSparseTensor import SparseTensor
from .MinkowskiTensor import (
    SparseTensorOperationMode,
    SparseTensorQuantizationMode,
    clear_global_coordinate_manager,
    global_coordinate_manager,
    set_global_coordinate_manager,
    set_sparse_tensor_operation_mode,
    sparse_tensor_operation_mode,
)
from .MinkowskiTensorField import TensorField

__version__ = "0.5.4"  # the version whose interface is provided

# Layers of an installed MinkowskiEngine could not read the tensors of this package.
HIDES_ORIGINAL = True

__all__ = [
    "BroadcastMode",
    "ConvolutionMode",
    "CoordinateManager",
    "CoordinateMapKey",
    "CoordinateMapType",
    "CoordsManager",
    "GPUMemoryAllocatorType",
    "KernelGenerator",
    "MinkowskiAlgorithm",
    "MinkowskiAlphaDropout",
    "MinkowskiAvgPooling",
    "MinkowskiBatchNorm",
    "MinkowskiBroadcast",
    "MinkowskiBroadcastAddition",
    "MinkowskiBroadcastConcatenation",
    "MinkowskiBroadcastMultiplication",
    "MinkowskiCELU",
    "MinkowskiChannelwiseConvolution",
    "MinkowskiConvolution",
    "MinkowskiConvolutionTranspose",
    "MinkowskiDropout",
    "MinkowskiELU",
    "MinkowskiFunctional",
    "MinkowskiGELU",
    "MinkowskiGenerativeConvolutionTranspose",
    "MinkowskiGlobalAvgPooling",
    "MinkowskiGlobalMaxPooling",
    "MinkowskiGlobalPooling",
    "MinkowskiGlobalSumPooling",
    "MinkowskiHardshrink",
    "MinkowskiHardsigmoid",
    "MinkowskiHardswish",
    "MinkowskiHardtanh",
    "MinkowskiInstanceNorm",
    "MinkowskiLeakyReLU",
    "MinkowskiLinear",
    "MinkowskiLogSigmoid",
    "MinkowskiLogSoftmax",
    "MinkowskiMaxPooling",
    "MinkowskiModuleBase",
    "MinkowskiNetwork",
    "MinkowskiOps",
    "MinkowskiPReLU",
    "MinkowskiPoolingTranspose",
    "MinkowskiPruning",
    "MinkowskiRReLU",
    "MinkowskiReLU",
    "MinkowskiReLU6",
    "MinkowskiSELU",
    "MinkowskiSiLU",
    "MinkowskiSigmoid",
    "MinkowskiSoftmax",
    "MinkowskiSoftmin",
    "MinkowskiSoftplus",
    "MinkowskiSoftshrink",
    "MinkowskiSoftsign",
    "MinkowskiSumPooling",
    "MinkowskiSyncBatchNorm",
    "MinkowskiTanh",
    "MinkowskiTanhshrink",
    "MinkowskiThreshold",
    "MinkowskiToFeature",
    "MinkowskiToSparseTensor",
    "MinkowskiUnion",
    "PoolingMode",
    "RegionType",
    "SparseTensor",
    "SparseTensorOperationMode",
    "SparseTensorQuantizationMode",
    "TensorField",
    "__version__",
    "cat",
    "clear_global_coordinate_manager",
    "convert_to_int_list",
    "convert_to_int_tensor",
    "dense_coordinates",
    "get_kernel_volume",
    "global_coordinate_manager",
    "is_cuda_available",
    "modules",
    "set_global_coordinate_manager",
    "set_gpu_allocator",
    "set_memory_manager_backend",
    "set_sparse_tensor_operation_mode",
    "sparse_tensor_operation_mode",
    "to_sparse",
    "to_sparse_all",
    "utils",
]


def is_cuda_available() -> bool:
    """Whether torch can use a GPU."""
    return torch.cuda.is_available()


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"pointgrad.compat does not provide MinkowskiEngine.{name}")

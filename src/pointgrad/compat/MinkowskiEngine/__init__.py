"""The interface of MinkowskiEngine 0.5.4, as far as networks for segmentation use it; see README.md."""

from typing import NoReturn

from . import MinkowskiFunctional, MinkowskiOps, modules, utils  # noqa: F401
from .MinkowskiCommon import *  # noqa: F403
from .MinkowskiConvolution import *  # noqa: F403
from .MinkowskiCoordinateManager import *  # noqa: F403
from .MinkowskiKernelGenerator import *  # noqa: F403
from .MinkowskiNetwork import *  # noqa: F403
from .MinkowskiNonlinearity import *  # noqa: F403
from .MinkowskiOps import *  # noqa: F403
from .MinkowskiPooling import *  # noqa: F403
from .MinkowskiSparseTensor import *  # noqa: F403
from .MinkowskiTensor import *  # noqa: F403
from .MinkowskiTensor import (  # noqa: F401
    SparseTensorOperationMode,
    SparseTensorQuantizationMode,
    clear_global_coordinate_manager,
    global_coordinate_manager,
    set_global_coordinate_manager,
    set_sparse_tensor_operation_mode,
    sparse_tensor_operation_mode,
)
from .MinkowskiTensorField import *  # noqa: F403
from .modules import resnet_block  # noqa: F401

__version__ = "0.5.4"  # the version whose interface is provided

# Layers of an installed MinkowskiEngine could not read the tensors of this package.
HIDES_ORIGINAL = True

__all__ = sorted(
    name for name in dict(globals()) if not name.startswith("_") and name not in ("NoReturn", "HIDES_ORIGINAL")
)


def is_cuda_available() -> bool:
    """Whether torch can use a GPU."""
    import torch

    return torch.cuda.is_available()


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"pointgrad.compat does not provide MinkowskiEngine.{name}")

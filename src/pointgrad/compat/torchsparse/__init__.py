"""The interface of TorchSparse 2.1.0, as far as networks for segmentation use it; see README.md."""

from typing import NoReturn

from . import backend, backends, nn, operators, tensor, utils
from .operators import cat, generative_add
from .tensor import PointTensor, SparseTensor
from .version import __version__

# Layers of an installed TorchSparse could not read the tensors of this package.
HIDES_ORIGINAL = True

__all__ = [
    "PointTensor",
    "SparseTensor",
    "__version__",
    "backend",
    "backends",
    "cat",
    "generative_add",
    "nn",
    "operators",
    "tensor",
    "utils",
]


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"pointgrad.compat does not provide torchsparse.{name}")

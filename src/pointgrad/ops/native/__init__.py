"""The door to the C++ kernels: the module if it was built, and how tensors are handed to it."""

import importlib
import math
from collections.abc import Sequence
from typing import Any

import torch

module: Any
why_missing = ""
try:
    module = importlib.import_module("pointgrad._native")
except ImportError as error:  # a checkout that was not built, or a build that does not load
    module, why_missing = None, str(error)

# The order of with_float_type and with_number_type in numbers.h.
DTYPE_CODES = {
    torch.float32: 0,
    torch.float64: 1,
    torch.float16: 2,
    torch.bfloat16: 3,
    torch.int64: 4,
    torch.int32: 5,
}


# From here on mapping fresh pages costs more than a tensor from torch is worth.
_LARGE = 4 * 2**20


def empty(like: torch.Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """`like.new_empty(shape)`; if it is large, on memory that was used before (see `large.cpp`)."""
    dtype = like.dtype if dtype is None else dtype
    size = math.prod(shape) * dtype.itemsize
    if size >= 2**48:  # more than a processor addresses
        raise MemoryError(f"a result of shape {tuple(shape)} in {dtype} has {size} bytes")
    if size < _LARGE or not hasattr(module, "large_buffer"):
        return like.new_empty(shape, dtype=dtype)
    storage = module.large_buffer(size).untyped_storage()
    # Not a view of the buffer, which autograd would not let be changed in place.
    return like.new_empty(0, dtype=dtype).set_(storage).resize_(shape)


def bounds(index: torch.Tensor) -> tuple[int, int]:
    """The smallest and largest entry of an int64 tensor that is not empty."""
    if module is None:
        lowest, highest = torch.aminmax(index)
        return int(lowest), int(highest)
    index = index.contiguous()
    return module.bounds(index.data_ptr(), index.numel(), torch.get_num_threads())


def address(tensor: torch.Tensor | None) -> int:
    """Where a contiguous tensor's data begins; 0 for an argument that was not given."""
    return 0 if tensor is None else tensor.data_ptr()

"""The door to the C++ kernels: the module if it was built, and how tensors are handed to it."""

from types import ModuleType

import torch

module: ModuleType | None
try:
    from pointgrad import _native as module
except ImportError:  # a checkout that was not built, or a platform without a compiler
    module = None

# The order of with_float_type in numbers.h.
DTYPE_CODES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}


def address(tensor: torch.Tensor | None) -> int:
    """Where a contiguous tensor's data begins; 0 for an argument that was not given."""
    return 0 if tensor is None else tensor.data_ptr()

"""The C++ kernels: the compiled module, if it was built, and memory for its results.

Kernels are called with keyword arguments, `native.module.gather(out=out, features=features, ...)`. Tensors, None and
dtypes are passed directly (module.h). A kernel reads raw memory, so its tensors must be contiguous.
"""

import importlib
import math
import os
from collections.abc import Sequence
from typing import Any

import torch

module: Any
why_missing = ""
try:
    module = importlib.import_module("pointgrad._native")
except ImportError as error:  # a checkout that was not built, or a build that does not load
    module, why_missing = None, str(error)
else:
    # The order of with_float_type and with_number_type in numbers.h.
    _DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32]
    module.use_torch(_DTYPES, torch.get_num_threads)

# A fresh tensor of this many bytes or more costs more than a reused buffer, because its pages must be mapped.
_LARGE = 4 * 2**20
_REUSES_BUFFERS = hasattr(module, "large_buffer") and os.environ.get("POINTGRAD_REUSE_BUFFERS", "1") != "0"


def empty(like: torch.Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """`like.new_empty(shape)`, in a reused buffer if it is large (see `large.cpp`)."""
    dtype = like.dtype if dtype is None else dtype
    size = math.prod(shape) * dtype.itemsize
    if size >= 2**48:  # more than a processor can address
        raise MemoryError(f"a result of shape {tuple(shape)} in {dtype} has {size} bytes")
    if size < _LARGE or not _REUSES_BUFFERS:
        return like.new_empty(shape, dtype=dtype)
    storage = module.large_buffer(size).untyped_storage()
    # A view of the buffer would not work: autograd forbids in-place changes of views that custom functions return.
    return like.new_empty(0, dtype=dtype).set_(storage).resize_(shape)


def release_buffers() -> None:
    """Return the memory of large CPU results that are no longer in use to the system.

    Large results of the C++ kernels are written into buffers that are kept for the next call, because mapping fresh
    memory takes longer than writing it. At most eight buffers and 1 GiB are kept, the most recent ones. The system may
    reclaim them at any time; until then they count as resident memory of the process. `POINTGRAD_REUSE_BUFFERS=0` in
    the environment turns this off. Tensors that are in use are not affected.

    Example:
        >>> pointgrad.release_buffers()
    """
    if hasattr(module, "release_buffers"):
        module.release_buffers()


def bounds(index: torch.Tensor) -> tuple[int, int]:
    """The smallest and the largest entry of a non-empty int64 tensor."""
    if module is None:
        lowest, highest = torch.aminmax(index)
        return int(lowest), int(highest)
    return module.bounds(index=index.contiguous(), count=index.numel())

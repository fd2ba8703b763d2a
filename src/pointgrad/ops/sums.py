"""The dtype in which sums are kept, and a sum in a fixed order."""

import torch
from torch import Tensor

_SHARED = 2**15  # torch divides a sum of at least this many numbers into one among its threads
_ROW = 256

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """At least float32 for floating dtypes; integers keep their dtype.

    >>> sum_dtype(torch.bfloat16), sum_dtype(torch.float64), sum_dtype(torch.int32)
    (torch.float32, torch.float64, torch.int32)
    """
    return _WIDER.get(dtype, dtype)


def fixed_sum(values: Tensor) -> Tensor:
    """The sum of all elements with the same bits for any number of threads, of 16-bit numbers in float32."""
    wide = _WIDER.get(values.dtype)
    while values.numel() >= _SHARED and values.device.type == "cpu":
        values = values.reshape(-1)
        whole = values.shape[0] // _ROW * _ROW
        rows = values[:whole].reshape(-1, _ROW).sum(1, dtype=wide)  # each row is summed by one thread
        values = torch.cat([rows, values[whole:].to(rows.dtype)])
    return values.sum(dtype=wide)

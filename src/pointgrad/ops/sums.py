"""The dtype in which sums are kept."""

import torch

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """At least float32 for floating dtypes; integers keep their dtype.

    >>> sum_dtype(torch.bfloat16), sum_dtype(torch.float64), sum_dtype(torch.int32)
    (torch.float32, torch.float64, torch.int32)
    """
    return _WIDER.get(dtype, dtype)

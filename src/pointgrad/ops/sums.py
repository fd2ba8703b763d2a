"""The dtype in which sums are kept."""

import torch


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """At least float32 for floating dtypes; integers keep their dtype.

    >>> sum_dtype(torch.bfloat16), sum_dtype(torch.float64), sum_dtype(torch.int32)
    (torch.float32, torch.float64, torch.int32)
    """
    return torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype

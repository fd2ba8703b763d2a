"""Parameters of torch-cluster's tests."""

from typing import Any

import torch
from torch import Tensor

dtypes = [torch.half, torch.bfloat16, torch.float, torch.double, torch.int, torch.long]
grad_dtypes = [torch.half, torch.float, torch.double]
floating_dtypes = [*grad_dtypes, torch.bfloat16]
devices: list[torch.device]


def tensor(x: Any, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """Convert nested lists to a tensor; None remains None."""
    return None if x is None else torch.tensor(x, dtype=dtype, device=device)


def __getattr__(name: str) -> Any:
    if name == "devices":  # determined when it is needed: importing this module does not touch the GPU
        return [torch.device("cpu"), *([torch.device("cuda:0")] if torch.cuda.is_available() else [])]
    raise AttributeError(f"module {__name__} has no attribute {name}")

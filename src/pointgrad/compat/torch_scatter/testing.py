"""Parameters of torch-scatter's tests."""

from typing import Any

import torch
from torch import Tensor

reductions = ["sum", "add", "mean", "min", "max"]
dtypes = [torch.half, torch.bfloat16, torch.float, torch.double, torch.int, torch.long]
grad_dtypes = [torch.float, torch.double]
devices: list[torch.device]


def tensor(x: Any, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """Convert nested lists to a tensor; None remains None."""
    return None if x is None else torch.tensor(x, device=device).to(dtype)


def __getattr__(name: str) -> Any:
    if name == "devices":  # determined when it is needed: importing this module does not touch the GPU
        return [torch.device("cpu"), *([torch.device("cuda:0")] if torch.cuda.is_available() else [])]
    raise AttributeError(f"module {__name__} has no attribute {name}")

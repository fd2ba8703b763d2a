"""The device that a command is told to use."""

import torch

from .fail import line


def device(name: str) -> torch.device:
    """name: as torch has it, or "auto" for a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise ValueError(f"--device must be cpu, or cuda where there is a GPU, got {name}: {line(error)}") from None
    return device

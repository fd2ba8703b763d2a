"""The --device flag."""

import torch

from pointgrad.errors import one_line


def device(name: str) -> torch.device:
    """Return a device that can be used. `name`: a torch device, or "auto" for a GPU if one is available."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises AssertionError
        raise ValueError(
            f"--device must be cpu, or cuda if a GPU is available, got {name}: {one_line(error)}"
        ) from None
    return device

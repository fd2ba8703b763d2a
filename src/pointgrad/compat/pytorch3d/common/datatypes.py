"""Devices given as names or objects."""

from typing import Any

import torch
from torch import Tensor

__all__ = ["get_device", "make_device"]

Device = str | torch.device


def make_device(device: Device) -> torch.device:
    """Convert a name to a device; "cuda" without a number becomes the current CUDA device.

    Args:
        device: Name or device.

    Returns:
        The device.

    Example:
        >>> make_device("cpu")
        device(type='cpu')
    """
    found = torch.device(device)
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found


def get_device(x: Any, device: Device | None = None) -> torch.device:
    """Choose the device of a value: `device` if given, otherwise that of a tensor, otherwise the CPU.

    Args:
        x: A tensor or any other value.
        device: Device that takes precedence.

    Returns:
        The device.

    Example:
        >>> get_device(1.0)
        device(type='cpu')
    """
    if device is not None:
        return make_device(device)
    return x.device if isinstance(x, Tensor) else torch.device("cpu")

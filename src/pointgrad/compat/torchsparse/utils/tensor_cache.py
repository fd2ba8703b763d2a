"""Coordinates and kernel maps that belong to tensors."""

from enum import Enum
from typing import Any

__all__ = [
    "TensorCache",
    "TensorCacheMode",
    "clear_global_tensor_cache",
    "get_global_tensor_cache",
    "get_tensor_cache_mode",
    "set_global_tensor_cache",
    "set_tensor_cache_mode",
]


class TensorCacheMode(Enum):
    """Whether all new tensors share one cache."""

    SEPARATE_TENSOR_CACHE = 0
    GLOBAL_TENSOR_CACHE = 1


class TensorCache:
    """State that the convolutions of related tensors share.

    Attributes:
        cmaps: Coordinates and spatial range of each stride.
        kmaps: Kernel maps by stride, kernel size, stride of the kernel and dilation.
        hashmaps: Not used.
    """

    def __init__(self, cmaps: dict[Any, Any] | None = None, kmaps: dict[Any, Any] | None = None) -> None:
        self.cmaps = {} if cmaps is None else cmaps
        self.kmaps = {} if kmaps is None else kmaps
        self.hashmaps: dict[Any, Any] = {}


_mode = TensorCacheMode.SEPARATE_TENSOR_CACHE
_shared: TensorCache | None = None


def set_tensor_cache_mode(mode: TensorCacheMode) -> None:
    """Set whether new tensors share a cache, which must then be cleared after each step."""
    global _mode
    if not isinstance(mode, TensorCacheMode):
        raise TypeError(f"mode must be a TensorCacheMode, got {type(mode).__name__}")
    _mode = mode


def get_tensor_cache_mode() -> TensorCacheMode:
    """Return the setting of `set_tensor_cache_mode`."""
    return _mode


def get_global_tensor_cache() -> TensorCache | None:
    """Return the cache that new tensors share."""
    return _shared


def set_global_tensor_cache(tensor_cache: TensorCache | None) -> None:
    """Set the cache that new tensors share."""
    global _shared
    _shared = tensor_cache


def clear_global_tensor_cache() -> None:
    """Discard the cache that new tensors share."""
    set_global_tensor_cache(None)

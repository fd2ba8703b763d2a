"""Configuration of convolutions.

Two entries change results, `kmap_mode` and `downsample_mode`; see `conv3d`. The others are those of the original's
kernels and have no effect.
"""

from enum import Enum
from typing import Any

from .conv_mode import ConvMode

__all__ = [
    "Dataflow",
    "clear_global_conv_config",
    "get_default_conv_config",
    "get_global_conv_config",
    "set_global_conv_config",
]


class Dataflow(Enum):
    """The original's kernels."""

    ImplicitGEMM = 0
    GatherScatter = 1
    FetchOnDemand = 2
    CodedCSR = 3


class _Config(dict[str, Any]):
    """A dict whose entries are also attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the configuration has no entry {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


_DEFAULT = {
    "dataflow": Dataflow.ImplicitGEMM,
    "ifsort": False,
    "kmap_mode": "hashmap_on_the_fly",
    "downsample_mode": "spconv",
    "split_mask_num": 1,
    "split_mask_num_bwd": 3,
    "epsilon": 0.0,
    "mm_thresh": 0,
    "FOD_fusion": True,
}
_global: dict[str, Any] | None = None


def get_default_conv_config(conv_mode: ConvMode = ConvMode.mode0, training: bool = False) -> dict[str, Any]:
    """Return a new default configuration."""
    return _Config(_DEFAULT)


def get_global_conv_config() -> dict[str, Any] | None:
    """Return the setting of `set_global_conv_config`."""
    return _global


def set_global_conv_config(conv_config: dict[str, Any]) -> None:
    """Set the configuration of layers that have none. Missing entries are added to it."""
    global _global
    for name, value in _DEFAULT.items():
        conv_config.setdefault(name, value)
    _global = conv_config


def clear_global_conv_config() -> None:
    """Return to the default configuration."""
    global _global
    _global = None

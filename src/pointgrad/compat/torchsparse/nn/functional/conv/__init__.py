"""Convolution and its configuration."""

from . import conv_config, conv_mode
from .conv import conv3d
from .conv_config import (
    Dataflow,
    clear_global_conv_config,
    get_default_conv_config,
    get_global_conv_config,
    set_global_conv_config,
)
from .conv_mode import (
    ConvMode,
    get_conv_mode,
    get_downsample_mode,
    get_kmap_mode,
    set_conv_mode,
    set_downsample_mode,
    set_kmap_mode,
)

__all__ = [
    "ConvMode",
    "Dataflow",
    "clear_global_conv_config",
    "conv3d",
    "conv_config",
    "conv_mode",
    "get_conv_mode",
    "get_default_conv_config",
    "get_downsample_mode",
    "get_global_conv_config",
    "get_kmap_mode",
    "set_conv_mode",
    "set_downsample_mode",
    "set_global_conv_config",
    "set_kmap_mode",
]

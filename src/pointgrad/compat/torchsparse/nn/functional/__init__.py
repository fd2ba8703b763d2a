"""Functions of sparse tensors, voxels and points."""

from typing import NoReturn

from .activation import leaky_relu, relu, silu
from .conv import (
    ConvMode,
    Dataflow,
    clear_global_conv_config,
    conv3d,
    conv_config,
    conv_mode,
    get_conv_mode,
    get_default_conv_config,
    get_downsample_mode,
    get_global_conv_config,
    get_kmap_mode,
    set_conv_mode,
    set_downsample_mode,
    set_global_conv_config,
    set_kmap_mode,
)
from .count import spcount
from .crop import spcrop
from .devoxelize import calc_ti_weights, spdevoxelize
from .downsample import spdownsample
from .hash import sphash
from .pooling import global_avg_pool, global_max_pool
from .query import sphashquery
from .voxelize import spvoxelize

__all__ = [
    "ConvMode",
    "Dataflow",
    "calc_ti_weights",
    "clear_global_conv_config",
    "conv3d",
    "conv_config",
    "conv_mode",
    "get_conv_mode",
    "get_default_conv_config",
    "get_downsample_mode",
    "get_global_conv_config",
    "get_kmap_mode",
    "global_avg_pool",
    "global_max_pool",
    "leaky_relu",
    "relu",
    "set_conv_mode",
    "set_downsample_mode",
    "set_global_conv_config",
    "set_kmap_mode",
    "silu",
    "spcount",
    "spcrop",
    "spdevoxelize",
    "spdownsample",
    "sphash",
    "sphashquery",
    "spvoxelize",
]


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"pointgrad.compat does not provide torchsparse.nn.functional.{name}")

"""Layers."""

from typing import NoReturn

from . import functional, modules, utils
from .modules import (
    BatchNorm,
    Conv3d,
    GlobalAvgPool,
    GlobalMaxPool,
    GroupNorm,
    InstanceNorm,
    LeakyReLU,
    ReLU,
    SiLU,
    SparseCrop,
)

__all__ = [
    "BatchNorm",
    "Conv3d",
    "GlobalAvgPool",
    "GlobalMaxPool",
    "GroupNorm",
    "InstanceNorm",
    "LeakyReLU",
    "ReLU",
    "SiLU",
    "SparseCrop",
    "functional",
    "modules",
    "utils",
]


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"pointgrad.compat does not provide torchsparse.nn.{name}")

"""Blocks of residual networks."""

from . import resnet_block

__all__ = ["resnet_block"]

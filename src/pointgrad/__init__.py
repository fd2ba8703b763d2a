"""Differentiable point-cloud operators for PyTorch."""

from pointgrad.ops.gather import gather as gather
from pointgrad.ops.gather import group as group
from pointgrad.ops.registry import backend as backend

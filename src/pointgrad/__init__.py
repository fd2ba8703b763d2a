"""Differentiable point-cloud operators for PyTorch."""

from pointgrad.ops.gather import gather as gather
from pointgrad.ops.gather import group as group
from pointgrad.ops.registry import backend as backend
from pointgrad.ops.interpolate import trilinear as trilinear
from pointgrad.ops.sampling import farthest_point_sampling as farthest_point_sampling
from pointgrad.ops.sampling import random_sampling as random_sampling
from pointgrad.ops.sampling import voxel_sampling as voxel_sampling

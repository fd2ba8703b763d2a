"""Differentiable point-cloud operators for PyTorch, with the proof of their gradients.

Layouts, indices and errors are the same everywhere: see CONTRIBUTING.md, "The contract".
"""

from pointgrad.ops.gather import gather as gather
from pointgrad.ops.gather import group as group
from pointgrad.ops.interpolate import trilinear as trilinear
from pointgrad.ops.registry import backend as backend
from pointgrad.ops.sampling import FarthestSamples as FarthestSamples
from pointgrad.ops.sampling import VoxelSamples as VoxelSamples
from pointgrad.ops.sampling import farthest_point_sampling as farthest_point_sampling
from pointgrad.ops.sampling import random_sampling as random_sampling
from pointgrad.ops.sampling import voxel_sampling as voxel_sampling
from pointgrad.ops.scatter import Extremes as Extremes
from pointgrad.ops.scatter import histogram as histogram
from pointgrad.ops.scatter import scatter as scatter
from pointgrad.ops.scatter import segment as segment
from pointgrad.ops.scatter import segment_softmax as segment_softmax
from pointgrad.ops.voxels import Voxels as Voxels
from pointgrad.ops.voxels import voxelize as voxelize

__version__ = "0.1.0"

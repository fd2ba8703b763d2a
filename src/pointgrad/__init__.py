"""Differentiable point-cloud operators for PyTorch, with tested gradients.

All operators share one contract for layouts, indices and errors: see CONTRIBUTING.md, "The contract".
"""

from pointgrad import data as data
from pointgrad import functional as functional
from pointgrad import inspect as inspect
from pointgrad import models as models
from pointgrad import nn as nn
from pointgrad import predict as predict
from pointgrad import render as render
from pointgrad import train as train
from pointgrad import view as view
from pointgrad.ops.attention import aggregate as aggregate
from pointgrad.ops.attention import masked_softmax as masked_softmax
from pointgrad.ops.attention import neighbor_attention as neighbor_attention
from pointgrad.ops.curves import Serialization as Serialization
from pointgrad.ops.curves import serialize as serialize
from pointgrad.ops.curves import space_filling_curve as space_filling_curve
from pointgrad.ops.distance import NearestDistances as NearestDistances
from pointgrad.ops.distance import chamfer_distance as chamfer_distance
from pointgrad.ops.gather import gather as gather
from pointgrad.ops.gather import group as group
from pointgrad.ops.interpolate import grid_sample as grid_sample
from pointgrad.ops.interpolate import interpolate as interpolate
from pointgrad.ops.interpolate import interpolate_at as interpolate_at
from pointgrad.ops.interpolate import splat as splat
from pointgrad.ops.interpolate import trilinear as trilinear
from pointgrad.ops.native import release_buffers as release_buffers
from pointgrad.ops.neighbors import NeighborIndex as NeighborIndex
from pointgrad.ops.neighbors import Neighbors as Neighbors
from pointgrad.ops.neighbors import ball_query as ball_query
from pointgrad.ops.neighbors import knn as knn
from pointgrad.ops.neighbors import to_edges as to_edges
from pointgrad.ops.patches import patch_attention as patch_attention
from pointgrad.ops.patches import patch_index as patch_index
from pointgrad.ops.patches import rotary_embedding as rotary_embedding
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
from pointgrad.ops.sparse import KernelMap as KernelMap
from pointgrad.ops.sparse import sparse_conv as sparse_conv
from pointgrad.ops.sparse import sparse_pool as sparse_pool
from pointgrad.ops.sparse import strided_map as strided_map
from pointgrad.ops.sparse import submanifold_map as submanifold_map
from pointgrad.ops.sparse import transposed_map as transposed_map
from pointgrad.ops.voxels import UniqueVoxels as UniqueVoxels
from pointgrad.ops.voxels import Voxels as Voxels
from pointgrad.ops.voxels import unique_voxels as unique_voxels
from pointgrad.ops.voxels import voxelize as voxelize

__version__ = "0.1.0"

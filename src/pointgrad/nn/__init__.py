"""Modules for networks on point clouds."""

from pointgrad.nn.attention import GlobalContext as GlobalContext
from pointgrad.nn.attention import TransitionDown as TransitionDown
from pointgrad.nn.attention import TransitionUp as TransitionUp
from pointgrad.nn.attention import VectorAttention as VectorAttention
from pointgrad.nn.edge_conv import EdgeConv as EdgeConv
from pointgrad.nn.inverted import InvResMLP as InvResMLP
from pointgrad.nn.level import Level as Level
from pointgrad.nn.patches import PatchEmbedding as PatchEmbedding
from pointgrad.nn.set_abstraction import FeaturePropagation as FeaturePropagation
from pointgrad.nn.set_abstraction import SetAbstraction as SetAbstraction
from pointgrad.nn.shared_mlp import SharedMLP as SharedMLP

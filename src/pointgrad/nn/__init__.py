"""Modules for networks on point clouds. They compose operators; no kernels live here."""

from pointgrad.nn.level import Level as Level
from pointgrad.nn.set_abstraction import FeaturePropagation as FeaturePropagation
from pointgrad.nn.set_abstraction import SetAbstraction as SetAbstraction
from pointgrad.nn.shared_mlp import SharedMLP as SharedMLP

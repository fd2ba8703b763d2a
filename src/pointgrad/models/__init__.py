"""Whole networks, in the sizes of their papers."""

from pointgrad.models.catalog import build as build
from pointgrad.models.catalog import names as names
from pointgrad.models.network import Network as Network
from pointgrad.models.pointnet2 import pointnet2 as pointnet2

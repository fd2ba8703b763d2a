"""Layers on octrees, which are not provided."""

from ._missing import Missing

__all__ = ["OctreeConv", "OctreeDWConv", "OctreeDeconv", "OctreeGroupConv", "OctreeInterp"]


class OctreeConv(Missing):
    """Not provided."""


class OctreeDeconv(Missing):
    """Not provided."""


class OctreeGroupConv(Missing):
    """Not provided."""


class OctreeDWConv(Missing):
    """Not provided."""


class OctreeInterp(Missing):
    """Not provided."""

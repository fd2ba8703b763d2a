"""The z-order keys of ocnn, by which some versions of Point Transformer V3 sort points.

Octrees and their layers can be imported, because programs compare types with them, and raise an error when they are
created. An installed ocnn takes precedence.
"""

from . import nn, octree

__all__ = ["nn", "octree"]

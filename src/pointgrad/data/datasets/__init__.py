"""Data sets: each gives a `Cloud` for an index, and knows its classes and its task."""

from pointgrad.data.datasets.arrays import Arrays as Arrays
from pointgrad.data.datasets.shapes import Shapes as Shapes

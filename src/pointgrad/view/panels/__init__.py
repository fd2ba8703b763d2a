"""Operators made visible on the open cloud, each computed live by the library."""

from pointgrad.view.panels.neighbors import Neighborhood
from pointgrad.view.panels.panel import Panel as Panel
from pointgrad.view.panels.sampling import FarthestPoints, Voxels

PANELS: tuple[type[Panel], ...] = (FarthestPoints, Voxels, Neighborhood)  # in the order of the dropdown

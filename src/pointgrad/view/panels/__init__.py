"""Operators made visible on the open cloud, each computed live by the library."""

from pointgrad.view.panels.panel import Panel as Panel
from pointgrad.view.panels.sampling import FarthestPoints

PANELS: tuple[type[Panel], ...] = (FarthestPoints,)  # in the order of the dropdown

"""Panels that show what operators compute on the open cloud."""

from pointgrad.view.panels.attention import Attention
from pointgrad.view.panels.curves import SpaceFillingCurve
from pointgrad.view.panels.groups import Groups
from pointgrad.view.panels.interpolation import Interpolation
from pointgrad.view.panels.neighbors import Neighborhood
from pointgrad.view.panels.panel import Panel as Panel
from pointgrad.view.panels.saliency import Saliency
from pointgrad.view.panels.sampling import FarthestPoints, Voxels
from pointgrad.view.panels.sparse import SparseConvolution

# In the order of the dropdown.
PANELS: tuple[type[Panel], ...] = (
    FarthestPoints, Voxels, Neighborhood, Groups, Interpolation, SparseConvolution, SpaceFillingCurve, Attention,
    Saliency,
)  # fmt: skip

"""Colours of points, shared by still pictures and the viewer."""

from pointgrad.render.colors import Scale as Scale
from pointgrad.render.colors import choices as choices
from pointgrad.render.colors import paint as paint
from pointgrad.render.colors import scale as scale

"""Screenshot of a batch of labelled shapes that `pointgrad.view` shows. Needs viser, playwright and Chromium."""

import numpy as np
import torch

import pointgrad
from pointgrad.data.datasets.shapes.kinds import KINDS
from pointgrad.data.datasets.shapes.surface import Surface

from . import photo
from .style import ROOT

SHOWN = ("chair", "mug", "lamp", "airplane", "sofa", "rocket")
POINTS = 4096


def draw() -> None:
    if why := photo.missing():
        print(f"  {why}")
        return
    rng = np.random.default_rng(0)
    shapes = []
    for name in (name for name in KINDS if name in SHOWN):
        surface = Surface()
        KINDS[name].build(surface, rng.random(12).tolist())
        points, parts = surface.sample(POINTS, rng)
        shapes.append((torch.from_numpy(points.T.copy()), torch.from_numpy(parts).long()))
    points, labels = (torch.stack(column) for column in zip(*shapes, strict=True))
    window = pointgrad.view(points, labels=labels)
    try:
        window.viewer.wait()
        with photo.page(window.address) as page:
            page.get_by_text("Side by side").wait_for()
            photo.save(page, ROOT / "docs" / "images" / "view_python.png")
    finally:
        window.close()

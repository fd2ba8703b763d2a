"""Shared by the figures of the operator pages: synthetic objects, panels, and saving."""

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pointgrad.data.datasets.shapes.kinds import KINDS
from pointgrad.data.datasets.shapes.surface import Surface

from .style import ROOT

IMAGES = ROOT / "docs" / "images" / "operators"
PALE = "#c8ced6"
INK = "#2b3036"


def sample_shape(kind: str, count: int, seed: int = 4) -> tuple[Tensor, Tensor]:
    """Points (N, 3) on an object of `Shapes`, upright and without noise, and the part (N,) of each."""
    rng = np.random.default_rng(seed)
    surface = Surface()
    KINDS[kind].build(surface, [0.5, 0.5, *rng.random(10)])
    points, parts = surface.sample(count, rng)
    return torch.from_numpy(np.ascontiguousarray(points.T)).float(), torch.from_numpy(parts)


def panels(count: int, height: float = 3.3, width: float = 10.0) -> tuple[Figure, list[Axes]]:
    """Square panels without axes; 10 inches wide, so that text of 12 points is legible at 700 pixels."""
    figure, axes = plt.subplots(1, count, figsize=(width, height), squeeze=False)
    for one in axes[0]:
        one.set_aspect("equal")
        one.axis("off")
    return figure, list(axes[0])


def save_png(figure: Figure, name: str) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    figure.savefig(IMAGES / f"{name}.png", dpi=140, facecolor="white", bbox_inches="tight", pad_inches=0.12)
    plt.close(figure)

"""Figure of space-filling curves: the four curves on an aerial laser scan of a house, and patches along them."""

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from torch import Tensor

import pointgrad
from benchmarks.data import DATA
from pointgrad import data
from pointgrad.ops.curves import CURVES
from pointgrad.render.camera import Frame, View
from pointgrad.render.canvas import Canvas
from pointgrad.render.colors import PALETTE

from .figures import INK, save_png

SCAN = DATA / "scans" / "house.laz"
COARSE, COARSE_BITS = 2.7, 4  # the edge of a voxel in metres, in the row of lines
FINE, FINE_BITS = 0.3, 8
PATCH = 1024


def draw() -> None:
    if not SCAN.exists():
        print(f"  needs {SCAN}; set POINTGRAD_TEST_DATA to the folder that holds scans")
        return
    points = data.read(SCAN).points.float()
    points = points - points.amin(0)
    lines, patches = (pointgrad.voxelize(points, edge).coordinates for edge in (COARSE, FINE))
    along = pointgrad.serialize(lines, bits=COARSE_BITS).order
    found = pointgrad.serialize(patches, bits=FINE_BITS)
    figure, axes = plt.subplots(2, 4, figsize=(10, 5.2), height_ratios=(1, 0.8))
    for k, name in enumerate(CURVES):
        _draw_line(axes[0, k], lines[along[k]].float())
        axes[0, k].set_title(f'"{name}"', fontsize=12, color=INK)
        _draw_patches(axes[1, k], FINE * patches, found.inverse[k] // PATCH)
    labels = f"{len(lines):,} voxels\nin order", f"patches of\n{PATCH:,} voxels"
    for one, label in zip(axes[:, 0], labels, strict=True):
        one.text(-0.04, 0.5, label, transform=one.transAxes, fontsize=11, color=INK, ha="right", va="center")
    figure.tight_layout(h_pad=0.3, w_pad=0.6)
    save_png(figure, "curves")


def _draw_line(axes: Axes, path: Tensor) -> None:
    """Draw a line through voxels in order, from above; higher voxels are moved up a little, so that lines differ."""
    flat = path[:, :2] + path[:, 2:] * torch.tensor([0.06, 0.1])
    segments = torch.stack([flat[:-1], flat[1:]], 1).numpy()
    axes.add_collection(LineCollection(list(segments), array=np.arange(len(segments)), cmap="turbo", linewidths=0.9))
    axes.set_aspect("equal")
    axes.autoscale_view()
    axes.axis("off")


def _draw_patches(axes: Axes, points: Tensor, patch: Tensor) -> None:
    frame = Frame(700, 560, 10)
    camera = View(-60, 38).fit(points.double(), points.double().mean(0), frame)
    canvas = Canvas(frame.width, frame.height)
    colors = PALETTE[(patch % len(PALETTE)).numpy()]
    canvas.add(camera.project(points, torch.zeros(3, dtype=torch.float64)), colors, 3.0, camera.distance)
    image = canvas.image(20 * camera.distance / frame.focal)
    rows, columns = (np.flatnonzero(image[..., 3].any(axis)) for axis in (1, 0))
    axes.imshow(image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])
    axes.axis("off")

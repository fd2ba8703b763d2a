"""Helpers for the tests of the panels."""

import numpy as np
import torch

from pointgrad.view.levels import Part
from pointgrad.view.stage import Picked

TITLES = (
    "farthest points", "voxel sampling", "neighbours", "groups", "interpolation", "sparse convolution",
    "space-filling curve",
)  # fmt: skip


class Recorder:
    """Replacement of the overlay that records drawings by name."""

    def __init__(self):
        self.drawn = {}

    def points(self, name, stage, places, colors, size=3.0):
        assert places.dtype == np.float32
        assert np.isfinite(places).all()
        assert size > 0
        assert np.broadcast_shapes(np.shape(colors), places.shape) == places.shape
        self._draw(name, places, colors)

    def lines(self, name, starts, ends, colors, width=2.0):
        assert np.isfinite(starts).all()
        assert np.isfinite(ends).all()
        self._draw(name, ends, colors, width)

    def balls(self, name, places, radius, color, opacity=0.2):
        self._draw(name, places if radius > 0 else places[:0], radius)

    def label(self, name, text, place):
        self.drawn[name] = text

    def _draw(self, name, places, *more):
        self.remove(name)
        if len(places):
            self.drawn[name] = (places, *more)

    def remove(self, name):
        for other in [key for key in self.drawn if key == name or key.startswith(f"{name}/")]:
            del self.drawn[other]

    def clear(self):
        self.drawn.clear()


def show(viewer, title, click=None, **controls):
    """Drawings and text of a panel with these values of its controls; click: row of the clicked point."""
    panel = viewer.operators.panels[title]
    viewer.operators.choice.value = title
    viewer.picked = None
    viewer.operators.update()  # fits the ranges of the controls
    for name, value in controls.items():
        getattr(panel, f"_{name}").value = value
    if click is not None:
        cloud, number = viewer.sample.cloud, viewer.sample.number
        place = viewer.stage.place(cloud.points[click : click + 1])[0]
        viewer.picked = Picked(place, Part(cloud.select(torch.tensor([click])), number[click : click + 1]))
    viewer.operators.update()
    return viewer.overlay.drawn, panel.text.content


def sample(viewer):
    """The points that the panels compute on, in float64, and their scene positions."""
    points = viewer.sample.cloud.points
    return points.double(), viewer.stage.place(points)


def rows(places, all_places):
    """Indices of the points that were drawn."""
    index = torch.cdist(torch.from_numpy(places).double(), torch.from_numpy(all_places).double()).min(1)
    assert float(index.values.max()) < 1e-4
    return index.indices

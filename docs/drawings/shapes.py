"""Figure of the twelve kinds of `Shapes`, complete and from the test split, coloured by part."""

import matplotlib.pyplot as plt
import numpy as np

from pointgrad.data import Shapes
from pointgrad.data.datasets.shapes.kinds import KINDS
from pointgrad.data.datasets.shapes.surface import Surface

from .style import BLUE, GRAY, GREEN, ORANGE, ROOT

COLORS = np.array([GRAY, BLUE, ORANGE, GREEN, "#8b5fbf"])  # the first is for outliers
SCANNED = {
    "airplane": 5,
    "lamp": 3,
    "mug": 4,
    "vase": 1,
}  # a clearer example of the kind


def panel(figure: plt.Figure, place: int, points: np.ndarray, parts: np.ndarray, title: str, size: float) -> None:
    axes = figure.add_subplot(4, 6, place, projection="3d")
    points = points - (points.max(0) + points.min(0)) / 2
    reach = np.abs(points).max()
    axes.scatter(*points.T, s=size, c=COLORS[parts + 1], linewidths=0, depthshade=False)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), zlim=(-reach, reach))
    axes.set_title(title, fontsize=10, y=0.98)
    axes.view_init(20, -60)
    axes.set_box_aspect((1, 1, 1), zoom=1.12)
    axes.set_axis_off()


def draw() -> None:
    data = Shapes("test", "segmentation", points=1024)
    figure = plt.figure(figsize=(12, 8.4))
    rng = np.random.default_rng(4)
    for number, (name, kind) in enumerate(KINDS.items()):
        surface = Surface()
        kind.build(surface, [0.5, 0.5, *rng.random(10)])
        points, parts = surface.sample(4000, rng)
        panel(figure, 2 * number + 1, points.T, parts, name, 1.2)
        cloud = data[number + len(KINDS) * SCANNED.get(name, 0)]
        labels = cloud.labels.numpy()
        parts = np.where(labels < 0, -1, labels - data.parts[number][0])
        panel(figure, 2 * number + 2, cloud.points.numpy(), parts, f"{name}, scanned", 2.2)
    figure.subplots_adjust(0, 0, 1, 0.97, 0, 0.08)
    figure.savefig(ROOT / "docs" / "images" / "shapes.png", dpi=100, facecolor="white")

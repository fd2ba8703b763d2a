"""Figures of operators that select points: sampling, neighbours, voxels."""

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Circle, Rectangle
from torch import Tensor

import pointgrad

from .figures import INK, PALE, panels, sample_shape, save_png
from .style import BLUE, GRAY, GREEN, ORANGE

COVERED = "#dfe9f4"


def uneven() -> Tensor:
    """Top view (N, 2) of an airplane whose point density increases from one wing to the other."""
    torch.manual_seed(0)
    points, _ = sample_shape("airplane", 9000)
    across = points[:, 1]
    share = (across - across.min()) / (across.max() - across.min())
    return points[torch.rand(len(points)) < 0.05 + 0.35 * share**2, :2]


def sampling() -> None:
    cloud = uneven()
    flat = torch.nn.functional.pad(cloud, (0, 1))
    size = 0.16
    voxels = pointgrad.voxel_sampling(flat, size).index
    count = len(voxels)
    picks = {
        "random_sampling": pointgrad.random_sampling(flat, count),
        f"voxel_sampling, size {size}": voxels,
        "farthest_point_sampling": pointgrad.farthest_point_sampling(cloud, count),
    }
    figure, axes = panels(3, 3.6)
    for one, (title, index) in zip(axes, picks.items(), strict=True):
        reach = pointgrad.knn(cloud[index], 1, cloud).distance2.max().sqrt()
        for center in cloud[index]:
            one.add_patch(Circle(center.tolist(), float(reach), facecolor=COVERED, linewidth=0))
        one.scatter(*cloud.T, s=1.5, c=GRAY, linewidths=0)
        one.scatter(*cloud[index].T, s=16, c=ORANGE, linewidths=0, zorder=3)
        one.set_title(f"{title}\n{count} of {len(cloud):,}, covering radius {reach:.2f}", fontsize=12, color=INK)
        margin = 0.3
        (left, low), (right, high) = cloud.min(0).values.tolist(), cloud.max(0).values.tolist()
        one.set(xlim=(left - margin, right + margin), ylim=(low - margin, high + margin))
    figure.tight_layout(w_pad=1.0)
    save_png(figure, "sampling")


def neighbors() -> None:
    torch.manual_seed(3)
    cloud = torch.rand(320, 2)
    query = torch.tensor([[0.52, 0.5]])
    radius, k = 0.22, 10
    found = {
        f"knn, k = {k}": pointgrad.knn(cloud, k, query),
        'ball_query, "nearest"': pointgrad.ball_query(cloud, radius, k, query),
        'ball_query, "first"': pointgrad.ball_query(cloud, radius, k, query, select="first"),
        'ball_query, "random"': pointgrad.ball_query(cloud, radius, k, query, select="random"),
    }
    figure, axes = panels(4, 3.1)
    for one, (title, lists) in zip(axes, found.items(), strict=True):
        near = cloud[lists.index[0]]
        if title.startswith("ball"):
            one.add_patch(Circle(query[0].tolist(), radius, facecolor=BLUE, alpha=0.09, linewidth=0))
            one.add_patch(Circle(query[0].tolist(), radius, fill=False, edgecolor=BLUE, linewidth=1))
        for end in near:
            one.plot(*torch.stack([query[0], end]).T, color=ORANGE, linewidth=0.9, alpha=0.8, zorder=2)
        one.scatter(*cloud.T, s=7, c=PALE, linewidths=0, zorder=1)
        one.scatter(*near.T, s=26, c=BLUE, linewidths=0, zorder=3)
        one.scatter(*query.T, s=70, c=ORANGE, marker="X", linewidths=0, zorder=4)
        one.set_title(title, fontsize=12, color=INK)
        one.set(xlim=(0.22, 0.82), ylim=(0.2, 0.8))
    figure.tight_layout(w_pad=0.6)
    save_png(figure, "neighbors")


def voxels() -> None:
    cloud = uneven()
    size = 0.2
    flat = torch.nn.functional.pad(cloud, (0, 1))
    grid = pointgrad.voxelize(flat, size)
    means = pointgrad.scatter(flat, grid.inverse, len(grid.count), "mean")
    figure = plt.figure(figsize=(10, 4.1))
    left = figure.add_subplot(1, 2, 1)
    _cells(left, grid.coordinates, grid.count, size)
    left.scatter(*cloud.T, s=2.5, c=GRAY, linewidths=0)
    left.scatter(*grid.centers[:, :2].T, s=26, marker="+", c=GREEN, linewidths=1.3, label="centers")
    left.scatter(*means[:, :2].T, s=20, c=ORANGE, linewidths=0, label="means (scatter)", zorder=3)
    left.set_title(f"{len(grid.count)} voxels of {len(cloud):,} points, size {size}", fontsize=12, color=INK)
    left.legend(loc="lower left", fontsize=11, frameon=False, handletextpad=0.1, bbox_to_anchor=(-0.02, 0.0))
    left.set_aspect("equal")
    left.axis("off")

    right = figure.add_subplot(1, 2, 2, projection="3d")
    points, _ = sample_shape("chair", 20_000)
    solid = pointgrad.voxelize(points, 0.09)
    places = solid.coordinates - solid.coordinates.min(0).values
    filled = torch.zeros((places.max(0).values + 1).tolist(), dtype=torch.bool)
    filled[tuple(places.T)] = True
    share = solid.count / solid.count.max()
    colors = torch.zeros(*filled.shape, 4)
    colors[tuple(places.T)] = torch.stack([shade_of(value) for value in share])
    right.voxels(filled.numpy(), facecolors=colors.numpy(), edgecolor="#ffffff", linewidth=0.25)
    title = f"{len(places)} voxels of a chair, stronger blue: more points"
    figure.text(0.76, 0.945, title, fontsize=12, color=INK, ha="center")
    right.view_init(18, -55)
    right.set_box_aspect(filled.shape, zoom=1.1)
    right.set_axis_off()
    figure.subplots_adjust(0, 0, 1, 0.92, 0.02)
    save_png(figure, "voxels")


def shade_of(share: Tensor) -> Tensor:
    return torch.tensor(plt.get_cmap("Blues")(0.25 + 0.75 * float(share)), dtype=torch.float32)


def _cells(axes: Axes, coordinates: Tensor, count: Tensor, size: float) -> None:
    for (x, y, _), points in zip(coordinates.tolist(), count.tolist(), strict=True):
        shade = 0.06 + 0.34 * points / int(count.max())
        axes.add_patch(Rectangle((x * size, y * size), size, size, facecolor=BLUE, alpha=shade, linewidth=0))
        axes.add_patch(Rectangle((x * size, y * size), size, size, fill=False, edgecolor=PALE, linewidth=0.8))


def draw() -> None:
    sampling()
    neighbors()
    voxels()

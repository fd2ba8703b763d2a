"""Figures of operators that compute values between points: interpolation, attention, distance."""

import torch
from matplotlib.axes import Axes
from torch import Tensor

import pointgrad

from .figures import INK, PALE, panels, sample_shape, save_png
from .style import BLUE, GRAY, GREEN, ORANGE

PIXELS = 160
PARTS = (BLUE, GREEN, GRAY, "#8a5aa8")


def plane() -> Tensor:
    """Centres (PIXELS^2, 2) of the pixels of [-1, 1]^2, row by row."""
    line = (torch.arange(PIXELS) + 0.5) / PIXELS * 2 - 1
    return torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).reshape(-1, 2)


def show(axes: Axes, values: Tensor) -> None:
    extent = (-1, 1, -1, 1)
    axes.imshow(values.reshape(PIXELS, PIXELS), extent=extent, origin="lower", cmap="Blues", vmin=-0.1, vmax=1.1)


def dots(axes: Axes, points: Tensor, values: Tensor) -> None:
    style = {"cmap": "Blues", "vmin": -0.1, "vmax": 1.1, "s": 60, "linewidths": 1.4, "edgecolors": ORANGE, "zorder": 3}
    axes.scatter(*points.T, c=values, **style)


def interpolate() -> None:
    points = torch.tensor([[-0.7, -0.6], [0.6, -0.7], [-0.1, 0.1], [-0.5, 0.75], [0.75, 0.5]])
    values = torch.tensor([[0.0], [0.7], [1.0], [0.3], [0.1]])
    pixels = plane()
    figure, axes = panels(4, 3.0)
    for one, power in zip(axes, (1, 2), strict=False):
        show(one, pointgrad.interpolate(values, points, pixels, k=5, power=power))
        dots(one, points, values[:, 0])
        one.set_title(f"interpolate, power={power}", fontsize=12, color=INK)

    torch.manual_seed(2)
    size = 4
    grid = torch.rand(1, 1, 1, size, size)
    at = torch.nn.functional.pad(pixels, (0, 1)).unsqueeze(0)
    show(axes[2], pointgrad.grid_sample(grid, at, padding_mode="border"))
    centers = (torch.arange(size) + 0.5) / size * 2 - 1
    places = torch.stack(torch.meshgrid(centers, centers, indexing="xy"), -1).reshape(-1, 2)
    dots(axes[2], places, grid.flatten())
    axes[2].set_title("grid_sample, 4 by 4", fontsize=12, color=INK)

    few = torch.tensor([[-0.5, 0.35], [0.62, -0.1], [0.3, -0.8]])
    weights = pointgrad.splat(torch.ones(1, len(few), 1), torch.nn.functional.pad(few, (0, 1))[None], (1, 6, 6))
    axes[3].imshow(weights[0, 0, 0], extent=(-1, 1, -1, 1), origin="lower", cmap="Blues", vmin=-0.03, vmax=0.9)
    for line in torch.linspace(-1, 1, 7).tolist():
        axes[3].plot([-1, 1], [line, line], color=PALE, linewidth=0.8)
        axes[3].plot([line, line], [-1, 1], color=PALE, linewidth=0.8)
    axes[3].scatter(*few.T, s=45, c=ORANGE, linewidths=0, zorder=3)
    axes[3].set_title("splat, 6 by 6", fontsize=12, color=INK)
    figure.tight_layout(w_pad=0.8)
    save_png(figure, "interpolate")


def attention() -> None:
    """Weights of one query: the gradient of the output with respect to the values."""
    points, parts = sample_shape("airplane", 4000)
    points = points[:, :2].contiguous()  # from above
    at_the_root = torch.tensor([[0.1, 0.2]])
    query = pointgrad.knn(points, 1, at_the_root).index[0]
    found = pointgrad.knn(points, 400, points[query])
    kinds = torch.nn.functional.one_hot(parts, int(parts.max()) + 1).float().unsqueeze(1)
    bias = (-found.distance2 / (found.distance2.max() / 3)).unsqueeze(-1)
    figure, axes = panels(3, 3.3)
    colors = torch.arange(len(PARTS))[parts]
    axes[0].scatter(*points.T, s=4, c=[PARTS[part] for part in colors], linewidths=0)
    axes[0].set_title("parts of an airplane", fontsize=12, color=INK)
    for one, sharpness in zip(axes[1:], (0.0, 6.0), strict=True):
        value = torch.zeros(len(points), 1, 1, requires_grad=True)
        out = pointgrad.neighbor_attention(sharpness * kinds[query], kinds, value, found.index, bias, scale=1.0)
        (weights,) = torch.autograd.grad(out.sum(), value)
        share = (weights.flatten()[found.index[0]] / weights.max()).sqrt()
        one.scatter(*points.T, s=4, c=PALE, linewidths=0)
        style = {"cmap": "Blues", "vmin": -0.25, "vmax": 1.0, "linewidths": 0, "zorder": 2}
        one.scatter(*points[found.index[0]].T, s=5 + 24 * share, c=share, **style)
    axes[1].set_title("bias: minus distance²", fontsize=12, color=INK)
    axes[2].set_title("plus keys that encode the part", fontsize=12, color=INK)
    (x, y), reach = points[query][0].tolist(), 0.34
    for one in axes:
        one.scatter(x, y, s=110, c=ORANGE, marker="X", linewidths=1, edgecolors="white", zorder=4)
        one.set(xlim=(x - reach, x + reach), ylim=(y - reach, y + reach))
    figure.tight_layout(w_pad=0.8)
    save_png(figure, "attention")


def distance() -> None:
    """Correspondences in both directions, and the negative gradient of each point."""
    torch.manual_seed(1)
    angle = torch.linspace(0, 2 * torch.pi, 27)[:-1]
    targets = torch.stack([angle.cos(), 0.72 * angle.sin()], 1) * (1 + 0.22 * (3 * angle).cos()).unsqueeze(1)
    sparse = angle[::2] + 0.1
    points = (0.75 * torch.stack([sparse.cos(), sparse.sin()], 1) + torch.tensor([0.22, 0.08])).requires_grad_()
    forth = pointgrad.knn(targets, 1, points).index[:, 0]
    back = pointgrad.knn(points, 1, targets).index[:, 0]
    (slope,) = torch.autograd.grad(pointgrad.chamfer_distance(points, targets), points)
    points = points.detach()
    figure, axes = panels(3, 3.1)
    pairs = ((points, targets[forth], 'direction="to_targets"'), (targets, points[back], 'direction="to_points"'))
    for one, (start, end, title) in zip(axes, pairs, strict=False):
        for a, b in zip(start.tolist(), end.tolist(), strict=True):
            one.plot(*zip(a, b, strict=True), color=GRAY, linewidth=1)
        one.set_title(title, fontsize=12, color=INK)
    axes[2].quiver(*points.T, *(-slope.T), color=ORANGE, width=0.009, angles="xy", scale_units="xy", scale=0.24)
    axes[2].set_title("negative gradient of both", fontsize=12, color=INK)
    for one in axes:
        one.scatter(*targets.T, s=26, c=BLUE, linewidths=0, zorder=3)
        one.scatter(*points.T, s=26, c=ORANGE, linewidths=0, zorder=3)
        one.set(xlim=(-1.2, 1.45), ylim=(-0.95, 0.95))
    axes[0].scatter([], [], s=26, c=ORANGE, label="points")
    axes[0].scatter([], [], s=26, c=BLUE, label="targets")
    figure.legend(loc="lower center", ncols=2, fontsize=12, frameon=False, handletextpad=0.1)
    figure.tight_layout(rect=(0, 0.09, 1, 1), w_pad=0.8)
    save_png(figure, "distance")


def draw() -> None:
    interpolate()
    attention()
    distance()

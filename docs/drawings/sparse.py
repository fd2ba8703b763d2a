"""Figures of sparse convolution: the kernel map of a synthetic LiDAR sweep, and the kinds of maps."""

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

import pointgrad
from pointgrad import data
from pointgrad.ops.sparse.reference import TILE
from pointgrad.render.camera import Frame, View
from pointgrad.render.canvas import Canvas

from .figures import INK, PALE, save_png
from .style import BLUE, GRAY, ORANGE

VOXEL = 0.2
SEEN = 8.0  # metres on each side of the sensor that the picture shows
SENSOR = torch.tensor([30.0, 0.0, 1.8])
KERNEL_AT = torch.tensor([29.9, 2.5, 0.9])  # an edge of a car


def sweep() -> Tensor:
    """Points (N, 3) of a street that a scanner with 64 rings sees from its middle."""
    points = data.street(3_000_000, length=60.0, seed=3).points
    ray = points - SENSOR
    distance = ray.norm(dim=1)
    around = torch.atan2(ray[:, 1], ray[:, 0]).rad2deg() + 180
    height = torch.asin(ray[:, 2] / distance).rad2deg() + 25
    ring = (height / 0.45).round()
    on_ring = (ring >= 0) & (ring < 64) & ((height / 0.45 - ring).abs() < 0.12)
    pixel = (around / 0.5).long() * 200 + ((height + 65) / 0.9).long()
    nearest = torch.full((int(pixel.max()) + 1,), torch.inf).scatter_reduce(0, pixel, distance, "amin")
    return points[on_ring & (distance < nearest[pixel] + 0.35)]


def kernel_map() -> None:
    """A sweep by number of neighbours, the inputs that one output reads, and the map before and after sorting."""
    voxels = pointgrad.voxelize(sweep(), VOXEL)
    found = pointgrad.submanifold_map(voxels.coordinates, 3)
    used = found.sources >= 0
    figure = plt.figure(figsize=(10, 7.2))
    grid = figure.add_gridspec(2, 2, height_ratios=(1.12, 1), width_ratios=(1.5, 1), hspace=0.16, wspace=0.04)
    top, corner = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1], projection="3d")
    _draw_sweep(figure, top, voxels.centers, used.sum(1))
    top.set_title(f"{len(used):,} voxels; colour: inputs that an output reads", fontsize=12, color=INK)
    output = int((voxels.centers - KERNEL_AT).norm(dim=1).argmin())
    read = _draw_window(corner, voxels.coordinates, found.sources[output], output)
    corner.set_title(f"one output reads {read} of 27 positions", fontsize=12, color=INK)
    tables = grid[1, :].subgridspec(1, 2, wspace=0.08)
    order = found.source_schedule[: len(used)].long()
    orders = {"in order of x, y, z": used, "in order of the schedule": used[order]}
    for place, (title, rows) in enumerate(orders.items()):
        _draw_table(figure.add_subplot(tables[place]), title, rows, labeled=place == 0)
    save_png(figure, "sparse")


def _draw_sweep(figure: plt.Figure, axes: Axes, centers: Tensor, neighbors: Tensor) -> None:
    """Render the voxels near the sensor, coloured by the number of inputs that their outputs read."""
    shown = ((centers - SENSOR).abs() < torch.tensor([13.0, SEEN, 9.0])).all(1)
    shade = plt.get_cmap("viridis_r")(neighbors[shown].numpy() / 27)[:, :3]
    frame = Frame(1200, 800, 10)
    points = centers[shown]
    camera = View(-62, 40).fit(points.double(), points.double().mean(0), frame)
    canvas = Canvas(frame.width, frame.height)
    origin = torch.zeros(3, dtype=torch.float64)
    canvas.add(camera.project(points, origin), (255 * shade).astype(np.uint8), 4.0, camera.distance)
    image = canvas.image(20 * camera.distance / frame.focal)
    rows, columns = (np.flatnonzero(image[..., 3].any(axis)) for axis in (1, 0))
    axes.imshow(image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])
    axes.axis("off")
    colors = plt.cm.ScalarMappable(plt.Normalize(0, 27), "viridis_r")
    figure.colorbar(colors, ax=axes, shrink=0.6, pad=0.02, ticks=(1, 9, 18, 27))


def _draw_window(axes: Axes, coordinates: Tensor, sources: Tensor, output: int) -> int:
    """Draw the voxels around one output and its kernel window; return how many inputs it reads."""
    reach = 2
    low = coordinates[output] - reach
    near = coordinates[((coordinates - coordinates[output]).abs() <= reach).all(1)] - low
    read = coordinates[sources[sources >= 0].long()] - low
    filled = np.zeros((2 * reach + 1,) * 3, bool)
    colors = np.empty(filled.shape, object)
    for places, color in ((near, "#c8ced650"), (read, BLUE), (near.new_full((1, 3), reach), ORANGE)):
        index = tuple(places.T.numpy())
        filled[index], colors[index] = True, color
    axes.voxels(filled, facecolors=colors, edgecolor="#ffffff", linewidth=0.4)
    ends = (reach - 1, reach + 2)
    corners = np.array([(x, y, z) for x in ends for y in ends for z in ends])
    for first in range(8):
        for second in range(first):
            if (corners[first] != corners[second]).sum() == 1:
                axes.plot(*corners[[first, second]].T, color=INK, linewidth=1.3, zorder=10)
    axes.view_init(28, -62)
    axes.set_box_aspect((1, 1, 1), zoom=1.25)
    axes.set_axis_off()
    return len(read)


def _draw_table(axes: Axes, title: str, used: Tensor, labeled: bool) -> None:
    """Draw how many rows of each tile use each kernel position; white: none."""
    tiles = -(-len(used) // TILE)
    padded = used.new_zeros(tiles * TILE, used.shape[1])
    padded[: len(used)] = used
    share = padded.reshape(tiles, TILE, -1).float().mean(1)
    needed = (share > 0).sum()
    image = plt.get_cmap("Blues")(0.15 + 0.8 * share.numpy())
    image[share.numpy() == 0] = 1.0
    axes.imshow(image, aspect="auto", interpolation="nearest")
    text = f"{title}:\na tile multiplies at {needed / tiles:.1f} of 27 positions"
    axes.set_title(text, fontsize=12, color=INK)
    axes.set_xlabel("kernel position", fontsize=12, color=INK)
    axes.set(xticks=(0, 13, 26), yticks=())
    if labeled:
        axes.set_ylabel(f"tiles of {TILE} outputs", fontsize=12, color=INK)
    for side in axes.spines.values():
        side.set_color(PALE)


def outline() -> Tensor:
    """(N, 3) voxels along a curve in the plane z = 0."""
    turn = torch.linspace(0.0, 1.0, 200)
    x, y = 1 + 9.8 * turn, 6 + 3.6 * torch.sin(5.2 * turn)
    return torch.unique(torch.stack([x, y, 0 * x], 1).floor().long(), dim=0)


def maps() -> None:
    """The five kinds of maps on the same voxels."""
    voxels = outline()
    coarse = pointgrad.strided_map(voxels, (2, 2, 1), stride=(2, 2, 1))
    cases = (
        ("submanifold_map, kernel 3", pointgrad.submanifold_map(voxels, (3, 3, 1)), 1, 1, (6, 6)),
        ("strided_map, kernel 3, stride 1", pointgrad.strided_map(voxels, (3, 3, 1), padding=(1, 1, 0)), 1, 1, (6, 8)),
        ("strided_map, kernel 2, stride 2", coarse, 1, 2, (1, 4)),
        (
            "transposed_map, kernel 2, stride 2",
            pointgrad.transposed_map(coarse.coordinates, (2, 2, 1), stride=(2, 2, 1)), 2, 1, (3, 9),
        ),
        ("inverse() of the strided map", coarse.inverse(), 2, 1, (3, 9)),
    )  # fmt: skip
    figure, axes = plt.subplots(2, 3, figsize=(10, 6.4))
    for one, (title, found, fine, large, chosen) in zip(axes.flat, cases, strict=False):
        _draw_map(one, found, fine, large, chosen)
        counts = f"{len(found.input_coordinates)} inputs, {len(found.coordinates)} outputs"
        one.set_title(f"{title}\n{counts}", fontsize=12, color=INK)
    legend = [
        Patch(facecolor=PALE, label="inputs"),
        Patch(facecolor="none", edgecolor=GRAY, linewidth=1.4, label="outputs"),
        Patch(facecolor="none", edgecolor=ORANGE, linewidth=3.4, label="one output"),
        Patch(facecolor=BLUE, label="the inputs that it reads"),
    ]
    axes.flat[5].legend(handles=legend, loc="center", fontsize=13, frameon=False, labelspacing=1.0)
    for one in axes.flat:
        one.set(xlim=(-0.4, 12.4), ylim=(0.6, 11.4), aspect="equal")
        one.axis("off")
    figure.tight_layout(h_pad=1.5, w_pad=0.5)
    save_png(figure, "sparse_maps")


def _draw_map(
    axes: Axes, found: pointgrad.KernelMap, input_size: int, output_size: int, chosen: tuple[int, int]
) -> None:
    """Draw inputs and outputs as squares with edges of these sizes, and what the output at `chosen` reads."""
    place = [row[:2] for row in found.coordinates.tolist()].index(list(chosen))
    read = {row for row in found.sources[place].tolist() if row >= 0}
    for number, (x, y, _) in enumerate(found.input_coordinates.tolist()):
        face = BLUE if number in read else PALE
        _square(axes, x, y, input_size, facecolor=face, edgecolor="white", linewidth=1.0)
    for number, (x, y, _) in enumerate(found.coordinates.tolist()):
        chosen_style = {"edgecolor": ORANGE, "linewidth": 3.4, "zorder": 5} if number == place else {}
        _square(axes, x, y, output_size, **{"fill": False, "edgecolor": GRAY, "linewidth": 1.4, **chosen_style})


def _square(axes: Axes, x: int, y: int, size: int, **style: object) -> None:
    inset = 0.04 if style.get("fill", True) else 0.1
    corner = (x * size + inset, y * size + inset)
    axes.add_patch(Rectangle(corner, size - 2 * inset, size - 2 * inset, **style))


def draw() -> None:
    kernel_map()
    maps()

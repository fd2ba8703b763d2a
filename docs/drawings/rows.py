"""Figures of operators that move rows: gather and group, scatter and segment. All numbers are computed."""

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle
from torch import Tensor

import pointgrad

from .figures import IMAGES, INK, PALE
from .style import BLUE, GRAY, GREEN, ORANGE, save_svg

PURPLE = "#8a5aa8"
ROWS = (BLUE, ORANGE, GREEN, PURPLE, GRAY)


def blank_panel(figsize: tuple[float, float], width: float, height: float) -> tuple[plt.Figure, Axes]:
    """One panel without axes, in units of cells, with the origin at the top left."""
    figure, axes = plt.subplots(figsize=figsize)
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    axes.axis("off")
    return figure, axes


def cells(axes: Axes, x: float, y: float, texts: list[str], color: str | None, size: float = 1.0) -> None:
    """A row of boxes."""
    for place, text in enumerate(texts):
        corner = (x + place * size, y)
        face = {"facecolor": color or "white", "alpha": 0.28 if color else 1.0}
        axes.add_patch(Rectangle(corner, size, 1, linewidth=0, **face))
        axes.add_patch(Rectangle(corner, size, 1, fill=False, edgecolor=PALE, linewidth=0.8))
        axes.text(corner[0] + size / 2, y + 0.5, text, ha="center", va="center", fontsize=12, color=INK)


def label(axes: Axes, x: float, y: float, text: str, **style: object) -> None:
    axes.text(x, y, text, **{"fontsize": 12, "ha": "center", "va": "center", "color": INK, **style})


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str) -> None:
    style = {"arrowstyle": "-|>", "mutation_scale": 12, "linewidth": 1.6, "shrinkA": 2, "shrinkB": 3}
    axes.add_patch(FancyArrowPatch(start, end, color=color, **style))


def texts(row: Tensor) -> list[str]:
    return [f"{value:g}" for value in row.tolist()]


def gather() -> None:
    """Features, an index, the resulting groups, and the gradient."""
    features = torch.tensor([[1.0, 10], [2, 20], [3, 30], [4, 40]], requires_grad=True)
    index = torch.tensor([[0, 2], [2, 1], [2, -1]])
    grouped = pointgrad.group(features, index)
    grouped.sum().backward()
    figure, axes = blank_panel((10, 4.2), 21.4, 9)
    label(axes, 2, 0.5, "features (N, C)")
    label(axes, 7, 0.5, "index (M, K)")
    label(axes, 12.8, 0.5, "group: (M, K, C)")
    label(axes, 19.4, 0.5, "gradient of the sum")
    for row in range(4):
        cells(axes, 1, 1.5 + row, texts(features[row]), ROWS[row])
        label(axes, 0.6, 2 + row, str(row), color=GRAY)
        cells(axes, 18.4, 1.5 + row, texts(features.grad[row]), ROWS[row])
        label(axes, 18, 2 + row, str(row), color=GRAY)
    for m in range(3):
        for k in range(2):
            source = int(index[m, k])
            color = ROWS[source] if source >= 0 else None
            cells(axes, 6 + k, 1.5 + m, [str(source)], color)
            cells(axes, 11.8, 1.5 + m * 2.2 + k, texts(grouped[m, k]), color)
        label(axes, 5.6, 2 + m, str(m), color=GRAY)
        label(axes, 11.4, 2.5 + m * 2.2, str(m), color=GRAY)
        arrow(axes, (8.2, 2 + m), (11.1, 2.5 + m * 2.2), GRAY)
    arrow(axes, (3.2, 3.0), (5.2, 3.0), GRAY)
    for m, k in index.ge(0).nonzero().tolist():
        source = int(index[m, k])
        arrow(axes, (13.9, 2 + m * 2.2 + k), (17.7, 2 + source), ROWS[source])
    label(axes, 12.8, 8.5, "-1: zeros, no gradient", color=GRAY)
    label(axes, 19.4, 6.3, "row 2 was read 3 times,\nrow 3 never", color=GRAY, va="top")
    save_svg(figure, IMAGES / "gather.svg")
    plt.close(figure)


def scatter() -> None:
    """Rows are added into groups by an index in any order, and reduced between offsets."""
    values = torch.tensor([[3.0], [1], [4], [1], [5], [9], [2], [6]])
    index = torch.tensor([2, 0, 2, 3, 0, 2, -1, 3])
    added = pointgrad.scatter(values, index, 4)
    most = pointgrad.scatter(values, index, 4, "max")
    offsets = torch.tensor([0, 3, 3, 5, 8])
    reduced = pointgrad.segment(values, offsets)
    figure, axes = blank_panel((10, 4.7), 22.6, 10.6)
    label(axes, 1.8, 0.5, "index")
    label(axes, 4.1, 0.5, "values")
    label(axes, 9.6, 0.5, "sum")
    label(axes, 11.2, 0.5, "max")
    for row, group in enumerate(index.tolist()):
        color = ROWS[group] if group >= 0 else None
        cells(axes, 1.3, 1.5 + row, [str(group)], color)
        cells(axes, 3.6, 1.5 + row, texts(values[row]), color)
        if group >= 0:
            arrow(axes, (4.7, 2 + row), (8.6, 2.75 + 2 * group), ROWS[group])
    for group in range(4):
        cells(axes, 9.1, 2.25 + 2 * group, texts(added[group]), ROWS[group])
        cells(axes, 10.7, 2.25 + 2 * group, texts(most[group]), ROWS[group])
        label(axes, 8.8, 2.75 + 2 * group, str(group), color=GRAY)
    label(axes, 6.4, 10.1, "scatter: group 1 is empty, row 6 is ignored", color=GRAY)
    label(axes, 16.1, 0.5, "values")
    label(axes, 20.3, 0.5, "sum")
    colors = [ROWS[part] for part in (0, 1, 2, 3)]
    for part in range(4):
        first, last = offsets[part].item(), offsets[part + 1].item()
        for row in range(first, last):
            cells(axes, 15.5, 1.5 + row, texts(values[row]), colors[part])
            arrow(axes, (16.6, 2 + row), (19.3, 2.75 + 2 * part), colors[part])
        cells(axes, 19.8, 2.25 + 2 * part, texts(reduced[part]), colors[part])
        label(axes, 19.5, 2.75 + 2 * part, str(part), color=GRAY)
    for number, offset in enumerate(offsets.tolist()):
        if offsets.tolist().index(offset) == number:
            shown = ", ".join(str(o) for o in offsets.tolist() if o == offset)
            axes.plot([14.6, 15.4], [1.5 + offset] * 2, color=INK, linewidth=1)
            label(axes, 14.4, 1.5 + offset, shown, ha="right")
    label(axes, 13.6, 0.5, "offsets")
    label(axes, 17.9, 10.1, "segment 1 is empty", color=GRAY)
    save_svg(figure, IMAGES / "scatter.svg")
    plt.close(figure)


def draw() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    gather()
    scatter()

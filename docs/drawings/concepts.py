"""Figures of the pages on concepts and architecture: layouts, indices, ties, gradients, and the path of a call."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from .style import BLUE, GRAY, GREEN, ORANGE, ROOT, save_svg

IMAGES = ROOT / "docs" / "images"
SIZES = (4, 2, 3)
COLORS = (BLUE, ORANGE, GREEN)
INK, QUIET, PALE = "#222222", "#5c6670", "#eef1f4"


def canvas(width: float, height: float) -> Axes:
    """One unit is a fifth of an inch, y downwards."""
    figure = plt.figure(figsize=(width / 5, height / 5))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    return axes


def cell(axes: Axes, x: float, y: float, text: str, color: str, size: float = 1.8) -> None:
    empty = color == PALE
    axes.add_patch(Rectangle((x, y), size, size, facecolor=color, edgecolor="white", linewidth=2))
    axes.text(
        x + size / 2, y + size / 2, text, ha="center", va="center", fontsize=10, color=QUIET if empty else "white"
    )


def write(axes: Axes, x: float, y: float, text: str, size: float = 10, color: str = INK, **style: str) -> None:
    axes.text(x, y, text, fontsize=size, color=color, **{"ha": "left", "va": "center", **style})


def box(axes: Axes, x: float, y: float, width: float, height: float, lines: Sequence[str], color: str) -> None:
    """A rounded box of text whose first line is bold."""
    shape = FancyBboxPatch(
        (x, y),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.5",
        facecolor="white",
        edgecolor=color,
        linewidth=1.6,
    )
    axes.add_patch(shape)
    for number, line in enumerate(lines):
        middle = y + height * (number + 0.5) / len(lines) + (0.25 if len(lines) > 1 else 0) * (0.5 - number)
        weight = "bold" if number == 0 else "normal"
        axes.text(
            x + width / 2, middle, line, ha="center", va="center", fontsize=10 if number == 0 else 9, weight=weight,
            color=(QUIET if color == GRAY else color) if number == 0 else INK,
        )  # fmt: skip


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str, style: str = "-") -> None:
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12, color=color, linewidth=1.6, linestyle=style,
                        shrinkA=0, shrinkB=0)
    )  # fmt: skip


def layouts() -> None:
    """Three clouds, packed and padded."""
    axes = canvas(44, 15.5)
    write(axes, 0.5, 1, "packed: points (9, 3)", weight="bold")
    write(axes, 0.5, 2.6, "offsets (4,): the start of each cloud, and the end", 9, QUIET)
    start = 0
    for cloud, (size, color) in enumerate(zip(SIZES, COLORS, strict=True)):
        for row in range(size):
            cell(axes, 1 + 1.9 * (start + row), 4.2, str(start + row), color)
        write(axes, 1 + 1.9 * (start + size / 2), 7.2, f"cloud {cloud}", 9, color, ha="center")
        start += size
    for offset in (0, 4, 6, 9):
        x = 0.95 + 1.9 * offset
        axes.plot([x, x], [6.2, 8.6], color=INK, linewidth=1)
        write(axes, x, 9.4, str(offset), 10, ha="center", weight="bold")
    write(axes, 0.5, 11.3, "offsets = [0, 4, 6, 9]", family="monospace")
    write(axes, 0.5, 13.4, "rows are numbered through all clouds", 9, QUIET)

    write(axes, 24.5, 1, "padded: points (3, 4, 3)", weight="bold")
    write(axes, 24.5, 2.6, "lengths (3,): the number of points of each cloud", 9, QUIET)
    for cloud, (size, color) in enumerate(zip(SIZES, COLORS, strict=True)):
        y = 4.2 + 1.9 * cloud
        for row in range(max(SIZES)):
            cell(axes, 25 + 1.9 * row, y, str(row) if row < size else "·", color if row < size else PALE)
        write(axes, 33.4, y + 0.9, f"cloud {cloud}: {size} of 4", 9, color)
    write(axes, 24.5, 11.3, "lengths = [4, 2, 3]", family="monospace")
    write(axes, 24.5, 13.4, "rows are numbered within each cloud; padding is never read", 9, QUIET)
    save_svg(axes.figure, IMAGES / "concepts_layouts.svg")


def indices() -> None:
    """Indices of the same neighbours in both layouts."""
    axes = canvas(44, 16)
    write(axes, 0.5, 1, "the 3 nearest points of the first point of each cloud", weight="bold")
    tables = {
        "packed: index (3, 3), global": (1, ("0  2  1", "4  5  -1", "6  8  7")),
        "padded: index (3, 3), local": (24.5, ("0  2  1", "0  1  -1", "0  2  1")),
    }
    for title, (left, rows) in tables.items():
        write(axes, left, 3.2, title, 10, INK)
        for cloud, (row, color) in enumerate(zip(rows, COLORS, strict=True)):
            for column, text in enumerate(row.split()):
                cell(axes, left + 0.2 + 2.3 * column, 4.6 + 2.3 * cloud, text, PALE if text == "-1" else color, 2.2)
            write(axes, left + 7.6, 5.7 + 2.3 * cloud, f"cloud {cloud}", 9, color)
    write(
        axes,
        1,
        12.8,
        "-1: cloud 1 has only two points. Gathering a missing entry gives zeros and no gradient.",
        9.5,
    )
    write(axes, 1, 14.6, "global = local + offsets[cloud]", family="monospace", size=9.5)
    save_svg(axes.figure, IMAGES / "concepts_indices.svg")


def ties() -> None:
    """Equal distances: the smallest index comes first."""
    axes = canvas(44, 12)
    axes.plot([2, 20], [6, 6], color=GRAY, linewidth=1)
    for place, (index, color) in {4: ("1", BLUE), 11: ("0", GRAY), 18: ("2", GRAY)}.items():
        axes.scatter(place, 6, s=150, color=color, zorder=3)
        write(axes, place, 6.05, index, 9, "white", ha="center", zorder=4)
    axes.scatter(11, 3.3, s=60, color=ORANGE, marker="v", zorder=3)
    write(axes, 11, 2, "query", 9.5, ORANGE, ha="center")
    for place in (4, 18):
        axes.annotate("", (place, 8.2), (11, 8.2), arrowprops={"arrowstyle": "<->", "color": INK})
    write(axes, 7.5, 9.3, "7.0", 9.5, ha="center")
    write(axes, 14.5, 9.3, "7.0", 9.5, ha="center")
    write(axes, 24.5, 3, "knn(points, 2, query).index", family="monospace", size=10)
    cell(axes, 24.5, 4.4, "0", GRAY, 2.2)
    cell(axes, 26.8, 4.4, "1", BLUE, 2.2)
    write(axes, 24.5, 8.2, "points 1 and 2 are equally far away:", 9.5)
    write(axes, 24.5, 9.8, "point 1 is returned, on every backend", 9.5)
    save_svg(axes.figure, IMAGES / "concepts_ties.svg")


def gradients() -> None:
    """Gradient flow in a set abstraction."""
    axes = canvas(56, 21)
    box(axes, 1, 3, 9, 3.4, ["points", "(N, 3)"], BLUE)
    box(axes, 1, 14, 9, 3.4, ["features", "(N, C)"], BLUE)
    box(axes, 15, 3, 14, 3.4, ["farthest_point_sampling", "index (M,)"], GRAY)
    box(axes, 15, 8.5, 14, 3.4, ["knn", "index, distance2 (M, K)"], GREEN)
    box(axes, 15, 14, 14, 3.4, ["group", "(M, K, C)"], GREEN)
    box(axes, 34, 3, 9, 3.4, ["gather", "centers (M, 3)"], GREEN)
    box(axes, 46, 11.2, 9, 3.4, ["loss", "a number"], ORANGE)
    forward = [((10, 4.7), (15, 4.7)), ((29, 4.7), (34, 4.7)), ((22, 11.9), (22, 14)), ((10, 15.1), (15, 15.1))]
    forward += [((4.5, 6.4), (15, 9.6)), ((35, 6.4), (29, 9.4))]
    back = [((46, 13.6), (29, 15.7)), ((46, 12.2), (29, 11)), ((15, 16.4), (10, 16.4))]
    back += [((15, 10.8), (6.5, 6.4)), ((29, 10.2), (37.5, 6.4))]
    for start, end in forward:
        arrow(axes, start, end, GRAY)
    for start, end in back:
        arrow(axes, start, end, ORANGE)
    arrow(axes, (38.5, 3), (8.5, 3), ORANGE)
    axes.patches[-1].set_connectionstyle("arc3,rad=0.1")
    write(axes, 22.5, 12.95, "index: stops", 8.5, QUIET)
    write(axes, 31.5, 3.9, "stops", 8.5, QUIET, ha="center")
    write(axes, 36, 10.5, "distance2", 8.5, ORANGE)
    write(axes, 1, 19.6, "grey: forward", 9, QUIET)
    write(axes, 12, 19.6, "orange: first and second derivatives", 9, ORANGE)
    write(axes, 34, 19.6, "an index is an integer and has no gradient", 9, QUIET)
    save_svg(axes.figure, IMAGES / "concepts_gradients.svg")


def call() -> None:
    """From the public function to a kernel, and back."""
    axes = canvas(58, 27)
    box(axes, 1, 1.5, 26, 4, ["pointgrad.gather(features, index)", "__init__.py: type, shape, dtype, device"], BLUE)
    box(axes, 1, 8.5, 26, 4, ["torch.ops.pointgrad.gather", "register.py: schema, fake, autograd, autocast"], BLUE)
    box(axes, 1, 15.5, 26, 4, ["dispatch by device", "registry.py: checks values on a CPU"], BLUE)
    backends = [["reference.py", "PyTorch"], ["cpu.py", "cpu.cpp"], ["kernels.py", "Triton"]]
    for x, lines, color in zip((1, 10, 19), backends, (GRAY, GREEN, GREEN), strict=True):
        box(axes, x, 22, 8, 4, lines, color)
        arrow(axes, (14, 19.5), (x + 4, 22), GRAY)
    arrow(axes, (14, 5.5), (14, 8.5), GRAY)
    arrow(axes, (14, 12.5), (14, 15.5), GRAY)
    box(axes, 36, 1.5, 21, 4, ["torch.compile, torch.export", "see one operator and its fake"], GRAY)
    box(axes, 36, 8.5, 21, 4, ["save(ctx, inputs, output)", "only what the gradients need"], ORANGE)
    box(axes, 36, 15.5, 21, 4, ["backward(ctx, grad)", "calls registered operators"], ORANGE)
    arrow(axes, (36, 4.2), (27, 9.2), GRAY)
    arrow(axes, (27, 10.5), (36, 10.5), ORANGE)
    arrow(axes, (46.5, 12.5), (46.5, 15.5), ORANGE)
    arrow(axes, (36, 17), (27, 11.6), ORANGE)
    write(axes, 36, 22.6, "backward consists of registered operators,", 9)
    write(axes, 36, 24.2, "so it can be differentiated again", 9)
    save_svg(axes.figure, IMAGES / "call.svg")


def draw() -> None:
    IMAGES.mkdir(exist_ok=True)
    for figure in (layouts, indices, ties, gradients, call):
        figure()
        plt.close("all")

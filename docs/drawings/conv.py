"""Figures of unfold, fold, conv2d and max_pool2d. All numbers are computed."""

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

from pointgrad import functional

from .style import BLUE, BOOK, GRAY, GREEN, ORANGE, save_svg

PURPLE = "#8a5aa8"
WINDOWS = (BLUE, ORANGE, GREEN, PURPLE)


def grid(axes: Axes, values: Tensor, title: str = "", fill: Tensor | None = None, color: str = BLUE) -> None:
    """A table of numbers; `fill` in [0, 1] shades the cells."""
    rows, cols = values.shape
    for y in range(rows):
        for x in range(cols):
            shade = 0.0 if fill is None else float(fill[y, x])
            axes.add_patch(Rectangle((x, y), 1, 1, facecolor=color, alpha=0.75 * shade, linewidth=0))
            axes.add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor="#c8ced6", linewidth=0.8))
            axes.text(x + 0.5, y + 0.5, f"{values[y, x]:g}", ha="center", va="center", fontsize=10)
    blank(axes, cols, rows)
    axes.set_title(title, fontsize=10)


def blank(axes: Axes, cols: float, rows: float, margin: float = 0.15) -> None:
    axes.set(xlim=(-margin, cols + margin), ylim=(rows + margin, -margin), aspect="equal")
    axes.axis("off")


def outline(axes: Axes, x: float, y: float, width: float, height: float, color: str, inset: float = 0.0) -> None:
    corner, width, height = (x + inset, y + inset), width - 2 * inset, height - 2 * inset
    axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=color, linewidth=2.2))


def unfold() -> None:
    """Four windows of a 3 x 3 image become four columns."""
    image = torch.arange(1.0, 10.0).reshape(1, 3, 3)
    columns = functional.unfold(image, 2)
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.4), width_ratios=(3, 4))
    grid(left, image[0], "image (1, 3, 3)")
    grid(right, columns, "unfold(image, 2): (1 · 2 · 2, 4)")
    for window, color in enumerate(WINDOWS):
        y, x = divmod(window, 2)
        outline(left, x, y, 2, 2, color, 0.05 + 0.045 * window)
        outline(right, window, 0, 1, 4, color, 0.05)
        right.text(window + 0.5, 4.3, f"window\n({y}, {x})", ha="center", va="top", fontsize=9, color=color)
    for place in range(4):
        i, j = divmod(place, 2)
        right.text(-0.15, place + 0.5, f"value ({i}, {j})", ha="right", va="center", fontsize=9)
    right.set(xlim=(-2.0, 4.15), ylim=(5.2, -0.15))
    save_svg(figure, BOOK / "unfold.svg")


def geometry() -> None:
    """The first and second window of a row for different kernels, strides, dilations and paddings."""
    settings = [
        ("kernel_size 3", {"kernel_size": 3}),
        ("stride 2: larger steps", {"kernel_size": 3, "stride": 2}),
        ("dilation 2: values farther apart", {"kernel_size": 3, "dilation": 2}),
        ("padding 1: more windows", {"kernel_size": 3, "padding": 1}),
    ]
    figure, panels = plt.subplots(1, 4, figsize=(12, 3.6))
    size = 7
    for axes, (title, chosen) in zip(panels, settings, strict=True):
        stride, dilation, padding = chosen.get("stride", 1), chosen.get("dilation", 1), chosen.get("padding", 0)
        count = functional.unfold(torch.zeros(1, size, size), **chosen).shape[1]
        for y in range(-padding, size + padding):
            for x in range(-padding, size + padding):
                outside = not (0 <= y < size and 0 <= x < size)
                shade = "#eef0f3" if outside else "white"
                axes.add_patch(Rectangle((x, y), 1, 1, facecolor=shade, edgecolor="#c8ced6", linewidth=0.8))
                if outside:
                    axes.text(x + 0.5, y + 0.5, "0", ha="center", va="center", fontsize=7, color=GRAY)
        for window, color in ((1, ORANGE), (0, BLUE)):
            for place in range(9):
                i, j = divmod(place, 3)
                y, x = i * dilation - padding, window * stride - padding + j * dilation
                spot = 0.30 if window == 0 else 0.16
                axes.add_patch(plt.Circle((x + 0.5, y + 0.5), spot, color=color, linewidth=0, zorder=3 - window))
                if window == 1:
                    axes.add_patch(
                        plt.Circle((x + 0.5, y + 0.5), 0.38, fill=False, edgecolor=color, linewidth=1.6, zorder=4)
                    )
        blank(axes, size + 1, size + 1, 1.15)
        axes.set_title(f"{title}\nL = {int(count**0.5)} · {int(count**0.5)}", fontsize=10)
    figure.text(
        0.5, 0.12, "blue dots: window (0, 0), orange rings: window (0, 1), of a 7 x 7 image", ha="center", fontsize=10
    )
    save_svg(figure, BOOK / "unfold_geometry.svg")


def fold() -> None:
    """Number of windows that cover each pixel: fold(unfold(ones))."""
    settings = [
        ("3 x 3, kernel 2", 3, {"kernel_size": 2}),
        ("4 x 4, kernel 2", 4, {"kernel_size": 2}),
        ("4 x 4, kernel 3", 4, {"kernel_size": 3}),
        ("kernel 3, padding 1", 4, {"kernel_size": 3, "padding": 1}),
        ("5 x 5, stride 3", 5, {"kernel_size": 2, "stride": 3}),
    ]
    figure, panels = plt.subplots(1, len(settings), figsize=(12, 2.6))
    for axes, (title, size, chosen) in zip(panels, settings, strict=True):
        covered = functional.fold(functional.unfold(torch.ones(1, size, size), **chosen), size, **chosen)[0]
        grid(axes, covered, title, covered / 9)
        outline(axes, 1, 1, 1, 1, ORANGE)
    figure.text(0.5, 0.0, "orange: the pixel [1, 1]", ha="center", fontsize=10)
    save_svg(figure, BOOK / "fold.svg")


def conv2d() -> None:
    """The three products, as matrices with their shapes, for one image and one group."""
    outputs, rows, windows = 2.2, 4.6, 3.4  # O, C K and L, in units of the figure
    figure, axes = plt.subplots(figsize=(11.4, 3.7))
    x = 0.0

    def matrix(width: float, height: float, name: str, shape: str, color: str) -> None:
        nonlocal x
        axes.add_patch(Rectangle((x, -height / 2), width, height, facecolor=color, alpha=0.28, edgecolor=color))
        axes.text(x + width / 2, 0, name, ha="center", va="center", fontsize=11)
        axes.text(x + width / 2, height / 2 + 0.15, shape, ha="center", va="bottom", fontsize=8.5, color="#444c56")
        x += width + 0.25

    def sign(text: str) -> None:
        nonlocal x
        axes.text(x + 0.15, 0, text, ha="center", va="center", fontsize=13)
        x += 0.55

    def title(text: str, begin: float) -> None:
        axes.text(begin, 3.45, text, fontsize=10.5, weight="bold")

    title("forward:  y = W · unfold(x)", x)
    matrix(windows, outputs, "y", "(O, L)", GREEN)
    sign("=")
    matrix(rows, outputs, "W", "(O, CK)", ORANGE)
    matrix(windows, rows, "unfold(x)", "(CK, L)", BLUE)
    x += 1.0
    title("x̄ = fold(Wᵀ ȳ)", x)
    sign("fold")
    x += 0.25
    matrix(outputs, rows, "Wᵀ", "(CK, O)", ORANGE)
    matrix(windows, outputs, "ȳ", "(O, L)", GREEN)
    x += 1.0
    title("W̄ = ȳ · unfold(x)ᵀ", x)
    matrix(windows, outputs, "ȳ", "(O, L)", GREEN)
    matrix(rows, windows, "unfold(x)ᵀ", "(L, CK)", BLUE)
    axes.set(xlim=(-0.2, x), ylim=(-2.9, 4.2), aspect="equal")
    axes.axis("off")
    save_svg(figure, BOOK / "conv2d.svg")


def pooling() -> None:
    """The maxima, and from how many windows each pixel receives a gradient."""
    image = torch.tensor([[[3.0, 7, 1, 2], [4, 0, 5, 2], [6, 6, 2, 8], [1, 3, 2, 0]]], requires_grad=True)
    values, index = functional.max_pool2d(image, 2, stride=1, return_indices=True)
    (received,) = torch.autograd.grad(values.sum(), image)
    figure, panels = plt.subplots(1, 3, figsize=(9, 3.1), width_ratios=(4, 3, 4))
    won = torch.zeros(16)
    won[index.flatten()] = 0.6
    grid(panels[0], image.detach()[0], "image: maxima marked", won.reshape(4, 4), ORANGE)
    grid(panels[1], values.detach()[0], "max_pool2d(image, 2, stride=1)")
    grid(panels[2], received[0], "x̄ for ȳ = 1", received[0] / 4, ORANGE)
    save_svg(figure, BOOK / "max_pool2d.svg")


def draw() -> None:
    BOOK.mkdir(parents=True, exist_ok=True)
    for figure in (unfold, geometry, fold, conv2d, pooling):
        figure()
        plt.close("all")

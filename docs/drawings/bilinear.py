"""Figure of bilinear interpolation: weights as areas, and what backward returns."""

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from .style import BLUE, GRAY, GREEN, ORANGE, ROOT, save_svg

U, V = 0.25, 0.4
UPSTREAM = 2.0
CORNERS = [(0, 0), (1, 0), (0, 1), (1, 1)]
COLORS = [BLUE, GREEN, ORANGE, GRAY]
VALUES = [1.0, 3.0, 2.0, 8.0]


def gradients() -> tuple[list[float], list[float], list[float]]:
    """The weights, the gradients of the values, and those of the point."""
    values = torch.tensor(VALUES, requires_grad=True)
    point = torch.tensor([U, V], requires_grad=True)
    u, v = point
    weights = torch.stack([(1 - u) * (1 - v), u * (1 - v), (1 - u) * v, u * v])
    (values * weights).sum().backward(torch.tensor(UPSTREAM))
    assert values.grad is not None
    assert point.grad is not None
    return weights.tolist(), values.grad.tolist(), point.grad.tolist()


def cell(axes: Axes, title: str) -> None:
    axes.add_patch(Rectangle((0, 0), 1, 1, fill=False, ec="black", lw=1.2))
    axes.set_title(title, fontsize=11)
    axes.set(xlim=(-0.42, 1.42), ylim=(-0.36, 1.16), aspect="equal")
    axes.set_axis_off()


def label(axes: Axes, number: int, text: str) -> None:
    """A dot in the color of a corner, with text outside of the cell."""
    x, y = CORNERS[number]
    axes.plot(x, y, "o", color=COLORS[number], ms=9)
    axes.text(x, y + (0.07 if y else -0.07), text, ha="center", va="bottom" if y else "top", fontsize=10)


def draw() -> None:
    weights, for_values, for_point = gradients()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4))
    cell(left, "forward: opposite areas are the weights")
    for number, (x, y) in enumerate(CORNERS):
        # The rectangle between the point and the opposite corner.
        low_x, width = (U, 1 - U) if x == 0 else (0.0, U)
        low_y, height = (V, 1 - V) if y == 0 else (0.0, V)
        left.add_patch(Rectangle((low_x, low_y), width, height, fc=COLORS[number], alpha=0.35, lw=0))
        left.text(
            low_x + width / 2, low_y + height / 2, f"{weights[number]:.2f}", ha="center", va="center", fontsize=11
        )
        label(left, number, f"$f_{{{x}{y}}}$ = {VALUES[number]:g}")
    result = sum(weight * value for weight, value in zip(weights, VALUES, strict=True))
    left.plot(U, V, "o", color="black", ms=7)
    left.text(U + 0.03, V + 0.03, f"y = {result:.2f}", fontsize=10)
    left.text(U / 2, -0.25, f"u = {U}", ha="center", va="top", fontsize=10)
    left.annotate("", (0, -0.22), (U, -0.22), arrowprops={"arrowstyle": "<->", "color": "black", "lw": 0.8})
    left.text(-0.1, V / 2, f"v = {V}", ha="right", va="center", fontsize=10)
    left.annotate("", (-0.07, 0), (-0.07, V), arrowprops={"arrowstyle": "<->", "color": "black", "lw": 0.8})

    cell(right, f"backward: $\\bar y$ = {UPSTREAM:g} returns with the same weights")
    for number, (x, y) in enumerate(CORNERS):
        label(right, number, f"$\\bar f_{{{x}{y}}}$ = {for_values[number]:.2f}")
        arrow = FancyArrowPatch(
            (U, V), (x, y), arrowstyle="-|>", mutation_scale=14, shrinkA=6, shrinkB=7, color=COLORS[number],
            lw=1 + 6 * weights[number],
        )  # fmt: skip
        right.add_patch(arrow)
    right.plot(U, V, "o", color="black", ms=7)
    right.text(1.08, 0.5, f"$\\bar u$ = {for_point[0]:.2f}\n$\\bar v$ = {for_point[1]:.2f}", fontsize=11, va="center")
    save_svg(figure, ROOT / "docs" / "images" / "bilinear.svg")
    plt.close(figure)

"""Figure of hooks: when each one runs, and its arguments."""

import matplotlib.pyplot as plt

from .style import BLUE, BOOK, GRAY, GREEN, ORANGE, save_svg


def box(axes, x, y, width, text, color, *, filled=False) -> None:
    style = {"boxstyle": "round,pad=0.02,rounding_size=0.08", "linewidth": 1.4}
    axes.add_patch(
        plt.matplotlib.patches.FancyBboxPatch(
            (x, y), width, 0.62, edgecolor=color, facecolor=color if filled else "white", **style
        )
    )
    axes.text(
        x + width / 2, y + 0.31, text, ha="center", va="center", fontsize=9.5, color="white" if filled else "black"
    )


def arrow(axes, start, end, color) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": 1.4})


def timeline() -> None:
    figure, axes = plt.subplots(figsize=(10.5, 3.5))
    for number, name in enumerate(("layer 1", "layer 2")):
        left = 0.9 + 5.2 * number
        box(axes, left, 1.9, 1.15, "pre-hook", BLUE)
        box(axes, left + 1.55, 1.9, 1.2, name, GRAY, filled=True)
        box(axes, left + 3.15, 1.9, 1.15, "hook", BLUE)
        box(axes, left, 0.3, 1.15, "$\\bar x$", ORANGE)
        box(axes, left + 1.55, 0.3, 1.2, "backward", GRAY, filled=True)
        box(axes, left + 3.15, 0.3, 1.15, "$\\bar y$", ORANGE)
        axes.text(left + 0.57, 2.72, "module, inputs", ha="center", fontsize=8.5, color=BLUE)
        axes.text(left + 3.72, 2.72, "module, inputs, output", ha="center", fontsize=8.5, color=BLUE)
        for x in (left - 0.45, left + 1.15, left + 2.75):
            arrow(axes, (x + 0.03, 2.21), (x + 0.41, 2.21), BLUE)
            arrow(axes, (x + 0.41, 0.61), (x + 0.03, 0.61), ORANGE)
        axes.text(left + 0.57, 0.0, "from this call only", ha="center", fontsize=8.5, color=ORANGE)
        axes.text(left + 3.72, 0.0, "before in-place writes", ha="center", fontsize=8.5, color=ORANGE)
    arrow(axes, (10.45, 2.21), (10.95, 2.21), BLUE)
    box(axes, 11.0, 1.1, 0.7, "loss", GREEN, filled=True)
    arrow(axes, (10.95, 0.61), (10.45, 0.61), ORANGE)
    axes.plot([10.95, 11.35, 11.35], [2.21, 2.21, 1.78], color=BLUE, linewidth=1.4)
    axes.plot([11.35, 11.35, 10.95], [1.05, 0.61, 0.61], color=ORANGE, linewidth=1.4)
    axes.text(0.3, 3.2, "forward: in the order of the calls", fontsize=10.5, color=BLUE)
    axes.text(0.3, -0.5, "backward: in the opposite order, once the gradient is complete", fontsize=10.5, color=ORANGE)
    axes.set_xlim(0.2, 11.9)
    axes.set_ylim(-0.7, 3.5)
    axes.set_axis_off()
    save_svg(figure, BOOK / "hooks.svg")
    plt.close(figure)


def draw() -> None:
    BOOK.mkdir(exist_ok=True)
    timeline()

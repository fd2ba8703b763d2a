"""Figure of the corner numbers of a cell, for `trilinear`."""

import itertools

import matplotlib.pyplot as plt

from .style import BLUE, GRAY, ORANGE, ROOT, save_svg


def draw() -> None:
    figure = plt.figure(figsize=(4.6, 4.2))
    axes = figure.add_subplot(projection="3d")
    corners = list(itertools.product((-1, 1), repeat=3))
    for a, b in itertools.combinations(corners, 2):
        if sum(p != q for p, q in zip(a, b, strict=True)) == 1:
            axes.plot(*zip(a, b, strict=True), color=GRAY, linewidth=1)
    for number, corner in enumerate(corners):
        axes.scatter(*corner, color=BLUE, s=30)
        axes.text(
            *(1.18 * value for value in corner), f"{number}", fontsize=12, ha="center", va="center", weight="bold"
        )
    axes.scatter(0.3, -0.2, 0.4, color=ORANGE, s=60)
    axes.text(0.3, -0.2, 0.58, "p", fontsize=12, color=ORANGE, weight="bold")
    axes.set(xlabel="x", ylabel="y", zlabel="z", xticks=[-1, 0, 1], yticks=[-1, 0, 1], zticks=[-1, 0, 1])
    axes.set_title("corner 4x + 2y + z", fontsize=11)
    axes.view_init(22, -62)
    figure.tight_layout()
    save_svg(figure, ROOT / "docs" / "images" / "cell.svg")

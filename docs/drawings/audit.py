"""Figure of the audit: which checks find which bug, computed by running them."""

import matplotlib.pyplot as plt
import torch

from pointgrad.inspect.audit import CHECKS, Subject, rows
from tests.support.planted import PLANTED

from .style import BLUE, BOOK, GRAY, ORANGE, save_svg

BUGS = [
    "wrong sign", "gradient dropped", "missing contiguous", "transposed gradient", "float16 sum", "output is the input",
    "race in backward", "leak in a list", "needs_input_grad forgotten", "upstream ignored",
    "kept on ctx", "static output", "partly written", "second derivative frozen",
]  # fmt: skip
NAMES = [name for name in CHECKS if name not in ("reference", "opcheck", "compile", "timing", "saved", "wrong device")]


def matrix() -> None:
    torch.backends.mkldnn.enabled = False
    planted = {each.name: each for each in PLANTED}
    figure, axes = plt.subplots(figsize=(9.2, 5.4))
    for y, bug in enumerate(BUGS):
        found = {row.name: row.status for row in rows(Subject(planted[bug].bad, planted[bug].inputs), NAMES)}
        for x, name in enumerate(NAMES):
            failed = found[name] in ("failed", "crashed")
            own = name in planted[bug].rows
            color = ORANGE if failed and own else BLUE if failed else "#e6e9ec"
            axes.scatter(x, y, s=130 if failed else 26, color=color, zorder=3)
    axes.set_xticks(range(len(NAMES)), NAMES, rotation=40, ha="left", fontsize=9)
    axes.set_yticks(range(len(BUGS)), BUGS, fontsize=9)
    axes.xaxis.tick_top()
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.grid(color="#eef0f2", zorder=0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.text(0, len(BUGS) + 0.1, "● intended check fails", color=ORANGE, fontsize=9)
    axes.text(4.5, len(BUGS) + 0.1, "● another check fails", color=BLUE, fontsize=9)
    axes.text(8, len(BUGS) + 0.1, "● passes", color=GRAY, fontsize=9)
    save_svg(figure, BOOK / "audit.svg")
    plt.close(figure)


def draw() -> None:
    BOOK.mkdir(exist_ok=True)
    matrix()

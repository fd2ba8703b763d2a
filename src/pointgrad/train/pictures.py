"""Figures of a run as PNG: curves and confusion matrix, drawn with matplotlib, and example predictions."""

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from pointgrad.data import Cloud
from pointgrad.render.colors import ERROR, HEIGHT, LABEL, RIGHT_OR_WRONG, Scale
from pointgrad.render.legend import Title
from pointgrad.render.palette import Palette
from pointgrad.render.save import encode
from pointgrad.render.scene import Scene
from pointgrad.render.still import Look, compose, scene, shared_scales

from .curve_style import line_colors, loss_note
from .evaluation import Example

RED, GREEN = (192, 57, 43), (30, 132, 73)
SWATCH = 7.0  # distance of the color of a class from the confusion matrix, in points
NOTE_WIDTH = 48  # characters below a plot
CELL, LEGEND = 280, 160  # pixels of an example and of the legend


def curves(history: Sequence[Mapping[str, float]], config: Mapping[str, object]) -> bytes:
    """Plot losses, metrics and learning rate against epochs.

    Args:
        history: Metrics of each epoch.
        config: Training configuration; the plot states where it makes losses incomparable.
    """
    from matplotlib.ticker import MaxNLocator

    figure = _figure(10, 3.2)
    epochs = [row["epoch"] for row in history]
    groups = {
        "loss": [name for name in history[0] if name.endswith("loss")],
        "metrics": [name for name in history[0] if name.startswith(("train", "val")) and not name.endswith("loss")],
        "learning rate": ["lr"],
    }
    for number, (title, names) in enumerate(groups.items()):
        axes = figure.add_subplot(1, 3, number + 1)
        for name, color in line_colors(names).items():
            axes.plot(
                epochs,
                [row[name] for row in history],
                label=name.replace("_", " "),
                color=color,
                marker="." if len(epochs) < 3 else "",
            )
        axes.set(title=title, xlabel="epoch")
        if title == "loss" and len(names) > 1 and (note := loss_note(config)):
            axes.set_xlabel("\n".join(["epoch", *textwrap.wrap(note, NOTE_WIDTH)]), fontsize=8)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        axes.grid(alpha=0.3)
        if len(names) > 1:
            axes.legend(fontsize=7)
    return _png(figure)


def confusion(table: Tensor, classes: Sequence[str]) -> bytes:
    """Plot the fraction of each true class (row) that is predicted as each class (column).

    A square beside the name of a class has the color of the class in images and in the viewer.
    """
    from matplotlib.transforms import offset_copy

    counts = table.double().numpy()
    share = counts / counts.sum(1, keepdims=True).clip(min=1)
    side = max(4.0, 0.28 * len(classes) + 2)
    figure = _figure(side + 0.6, side)
    axes = figure.add_subplot()
    picture = axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    ticks = range(len(classes))
    axes.set_xticks(ticks, classes, rotation=90, fontsize=7)
    axes.set_yticks(ticks, classes, fontsize=7)
    axes.set(xlabel="predicted", ylabel="true")
    axes.tick_params(length=0, pad=2 * SWATCH)
    named = dict(enumerate(classes))
    colors = [tuple(part / 255 for part in Palette().color(number, named)) for number in ticks]
    beside = [offset_copy(axes.get_yaxis_transform(), figure, x=-SWATCH, units="points")]
    beside += [offset_copy(axes.get_xaxis_transform(), figure, y=-SWATCH, units="points")]
    bottom = len(classes) - 0.5
    for number in ticks:
        square = {"color": colors[number], "marker": "s", "markersize": SWATCH / 1.4, "clip_on": False}
        axes.plot([0], [number], transform=beside[0], **square)
        axes.plot([number], [0], transform=beside[1], **square)
    axes.set(xlim=(-0.5, bottom), ylim=(bottom, -0.5))
    if len(classes) <= 20:
        for row, column in np.argwhere(counts > 0):
            color = "white" if share[row, column] > 0.5 else "black"
            text = str(int(counts[row, column]))
            axes.text(column, row, text, ha="center", va="center", fontsize=6, color=color)
    figure.colorbar(picture, ax=axes, fraction=0.046)
    return _png(figure)


def examples(chosen: Sequence[Example], classes: Sequence[str]) -> bytes:
    """Draw clouds with their predictions; for segmentation, rows of true labels, predictions and wrong points."""
    per_point = chosen[0].target.dim() == 1
    columns = len(chosen) if per_point else min(4, len(chosen))
    rows = 3 if per_point else math.ceil(len(chosen) / columns)
    look = Look((CELL * columns + (LEGEND if per_point else 0), CELL * rows), legend=per_point)
    titles, groups = _per_point(chosen) if per_point else _per_cloud(chosen, classes)
    scenes: list[Scene] = []
    scales: list[Scale] = []
    for by, clouds in groups.items():
        found = [scene(cloud, look, by) for cloud in clouds]
        scenes += found
        scales += shared_scales(found, by, RIGHT_OR_WRONG if by == ERROR else dict(enumerate(classes)))
    return encode(".png", list(compose(scenes, scales, look, titles, columns=columns)))


def _per_cloud(chosen: Sequence[Example], classes: Sequence[str]) -> tuple[list[Title], dict[str, list[Cloud]]]:
    """Return titles, and clouds by the quantity that colors them."""
    titles = []
    for example in chosen:
        true, predicted = classes[int(example.target)], classes[int(example.predicted)]
        titles.append(Title(predicted, GREEN) if true == predicted else Title(f"{predicted}, not {true}", RED))
    return titles, {HEIGHT: [Cloud(example.points) for example in chosen]}


def _per_point(chosen: Sequence[Example]) -> tuple[list[Title], dict[str, list[Cloud]]]:
    true, predicted, wrong = [], [], []
    for example in chosen:
        kept = example.target >= 0
        points, target, label = example.points[kept], example.target[kept], example.predicted[kept]
        true.append(Cloud(points, labels=target))
        predicted.append(Cloud(points, labels=label))
        wrong.append(Cloud(points, {ERROR: (target != label).long()}))
    titles = [Title(text) for text in ("true", "predicted") for _ in chosen]
    titles += [Title(f"{100 * example.right:.1f} % right") for example in chosen]
    return titles, {LABEL: true + predicted, ERROR: wrong}


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _png(figure: Any) -> bytes:
    memory = io.BytesIO()
    figure.savefig(memory, format="png", dpi=110)
    return memory.getvalue()

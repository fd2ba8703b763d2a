"""The pictures of a run, with matplotlib: curves, confusion matrix, example predictions. Each returns a PNG."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from .evaluation import Example

WRONG, RIGHT = "#c0392b", "#1e8449"


def curves(history: Sequence[Mapping[str, float]]) -> bytes:
    """Losses, accuracies and learning rate against epochs."""
    figure = _figure(10, 3.2)
    epochs = [row["epoch"] for row in history]
    groups = {
        "loss": [name for name in history[0] if name.endswith("loss")],
        "figures": [name for name in history[0] if name.startswith(("train", "val")) and not name.endswith("loss")],
        "learning rate": ["lr"],
    }
    for number, (title, names) in enumerate(groups.items()):
        axes = figure.add_subplot(1, 3, number + 1)
        for name in names:
            axes.plot(
                epochs,
                [row[name] for row in history],
                label=name.replace("_", " "),
                marker="." if len(epochs) < 3 else "",
            )
        axes.set(title=title, xlabel="epoch")
        axes.grid(alpha=0.3)
        if len(names) > 1:
            axes.legend(fontsize=7)
    return _png(figure)


def confusion(table: Tensor, classes: Sequence[str]) -> bytes:
    """The share of each true class (row) that is predicted as each class (column)."""
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
    if len(classes) <= 20:
        for row, column in np.argwhere(counts > 0):
            colour = "white" if share[row, column] > 0.5 else "black"
            text = str(int(counts[row, column]))
            axes.text(column, row, text, ha="center", va="center", fontsize=6, color=colour)
    figure.colorbar(picture, ax=axes, fraction=0.046)
    return _png(figure)


def examples(chosen: Sequence[Example], classes: Sequence[str]) -> bytes:
    """Clouds with what the network says of them; of labelled points, the truth above and the prediction below."""
    per_point = chosen[0].target.dim() == 1
    columns = len(chosen) if per_point else min(4, len(chosen))
    rows = 2 if per_point else math.ceil(len(chosen) / columns)
    figure = _figure(2.6 * columns, 2.7 * rows)

    def cell(number: int, points: Tensor, values: Tensor, title: str, colour: str, **look: Any) -> None:
        axes: Any = figure.add_subplot(rows, columns, number + 1, projection="3d")
        x, y, z = points.double().numpy().T
        axes.scatter(x, y, z, c=values.numpy(), s=2, linewidths=0, **look)
        axes.set_box_aspect([max(float(np.ptp(side)), 1e-9) for side in (x, y, z)])
        axes.set_axis_off()
        axes.set_title(title, fontsize=8, color=colour)

    for number, example in enumerate(chosen):
        points, target, predicted = example.points, example.target, example.predicted
        if per_point:
            # Ten colours in turn: classes that follow each other, such as parts of one object, differ clearly.
            look = {"cmap": "tab10", "vmin": 0, "vmax": 9}
            kept = target >= 0
            right = f"predicted: {100 * example.right:.1f} % right"
            cell(number, points[kept], target[kept] % 10, "true", "black", **look)
            cell(columns + number, points[kept], predicted[kept] % 10, right, "black", **look)
        else:
            true, said = classes[int(target)], classes[int(predicted)]
            title, colour = (said, RIGHT) if true == said else (f"{said}, not {true}", WRONG)
            cell(number, points, points[:, 2], title, colour, cmap="viridis")
    return _png(figure)


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _png(figure: Any) -> bytes:
    memory = io.BytesIO()
    figure.savefig(memory, format="png", dpi=110)
    return memory.getvalue()

"""Charts of a run's metrics."""

import math
from typing import Any

import numpy as np

from pointgrad.train.curve_style import line_colors
from pointgrad.view.run_data import Row
from pointgrad.view.run_text import label

EPOCH_STEPS = [step * 10**power for power in range(6) for step in (1, 2, 5)]  # epochs between ticks of the x axis
LOSS, ACCURACY, RATE = "loss", "accuracy and mIoU", "learning rate"


class Curves:
    """Charts in a tab: losses, accuracies and learning rate.

    Attributes:
        plots: Charts that have data, by title.
    """

    def __init__(self, gui: Any, tab: Any) -> None:
        self._gui, self._tab = gui, tab
        self.plots: dict[str, Any] = {}

    def draw(self, history: list[Row]) -> None:
        """Draw the metrics of all epochs."""
        names = list(dict.fromkeys(name for row in history for name in row))
        metrics = [name for name in names if name.startswith(("train_", "val_"))]
        groups = {
            LOSS: [name for name in metrics if name.endswith("loss")],
            ACCURACY: [name for name in metrics if not name.endswith("loss")],
            RATE: [name for name in names if name == "lr"],
        }
        for position, (title, names_shown) in enumerate(groups.items()):
            columns = [np.array([row.get(name, math.nan) for row in history]) for name in ("epoch", *names_shown)]
            if title in self.plots and (not names_shown or len(self.plots[title].data) != len(columns)):
                self.plots.pop(title).remove()
            if not names_shown:
                continue
            unit = ""
            if title == RATE:  # tick labels have few digits
                power = _power(columns[1])
                columns[1] = columns[1] / 10.0**power
                unit = f" in 1e{power}"
            data, scales = tuple(columns), {"x": {"time": False}, "y": {"range": _range(columns[1:])}}
            if title in self.plots:
                plot = self.plots[title]
                plot.data, plot.scales, plot.title = data, scales, title + unit
            else:
                with self._tab:
                    self.plots[title] = self._plot(title + unit, names_shown, data, scales, position)

    def _plot(self, title: str, names: list[str], data: tuple[np.ndarray, ...], scales: Any, position: int) -> Any:
        lines = [{"label": label(name), "stroke": color, "width": 2} for name, color in line_colors(names).items()]
        axis = {"ticks": {"show": False}}
        return self._gui.add_uplot(
            data,
            ({"label": "epoch"}, *lines),
            title=title,
            scales=scales,
            axes=({**axis, "incrs": tuple(EPOCH_STEPS)}, {**axis, "size": 64}),
            padding=(10, 24, 0, 0),
            height=170,
            order=position + 1,
        )


def _range(columns: list[np.ndarray]) -> tuple[float, float]:
    """Range of the finite values with a margin. The browser's own range is empty if any value is not finite."""
    values = np.concatenate(columns)
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    margin = 0.08 * (high - low) or 0.1 * abs(high) or 0.1
    return low - margin, high + margin


def _power(values: np.ndarray) -> int:
    """Decimal exponent of the largest absolute value."""
    largest = float(np.max(np.abs(values), where=np.isfinite(values), initial=0.0))
    return math.floor(math.log10(largest)) if largest > 0 else 0

"""The curves of a run, as charts that grow with it."""

import math
from typing import Any

import numpy as np

from pointgrad.view.run_data import Row
from pointgrad.view.run_words import label

TRAIN = "#e07b39"
REST = ("#1f5fa8", "#3a8f5c", "#8e5aa8", "#8c603a", "#26b0c4")  # in turn
WHOLE = [step * 10**power for power in range(6) for step in (1, 2, 5)]  # epochs between two marks of an axis
LOSS, FIGURES, RATE = "loss", "accuracy and mIoU", "learning rate"


class Curves:
    """Charts in a tab: losses, accuracies, learning rate. plots: by title, those that there is something for."""

    def __init__(self, gui: Any, tab: Any) -> None:
        self._gui, self._tab = gui, tab
        self.plots: dict[str, Any] = {}

    def draw(self, history: list[Row]) -> None:
        names = list(dict.fromkeys(name for row in history for name in row))
        figures = [name for name in names if name.startswith(("train_", "val_"))]
        groups = {
            LOSS: [name for name in figures if name.endswith("loss")],
            FIGURES: [name for name in figures if not name.endswith("loss")],
            RATE: [name for name in names if name == "lr"],
        }
        for place, (title, own) in enumerate(groups.items()):
            columns = [np.array([row.get(name, math.nan) for row in history]) for name in ("epoch", *own)]
            if title in self.plots and (not own or len(self.plots[title].data) != len(columns)):
                self.plots.pop(title).remove()
            if not own:
                continue
            unit = ""
            if title == RATE:  # marks have few digits
                power = _power(columns[1])
                columns[1] = columns[1] / 10.0**power
                unit = f" in 1e{power}"
            data, scales = tuple(columns), {"x": {"time": False}, "y": {"range": _range(columns[1:])}}
            if title in self.plots:
                plot = self.plots[title]
                plot.data, plot.scales, plot.title = data, scales, title + unit
            else:
                with self._tab:
                    self.plots[title] = self._plot(title + unit, own, data, scales, place)

    def _plot(self, title: str, names: list[str], data: tuple[np.ndarray, ...], scales: Any, place: int) -> Any:
        rest = iter(REST)
        inks = [TRAIN if name.startswith("train") else next(rest, REST[0]) for name in names]
        lines = [{"label": label(name), "stroke": ink, "width": 2} for name, ink in zip(names, inks, strict=True)]
        quiet = {"ticks": {"show": False}}
        return self._gui.add_uplot(
            data,
            ({"label": "epoch"}, *lines),
            title=title,
            scales=scales,
            axes=({**quiet, "incrs": tuple(WHOLE)}, {**quiet, "size": 64}),
            padding=(10, 24, 0, 0),
            height=170,
            order=place + 1,
        )


def _range(columns: list[np.ndarray]) -> tuple[float, float]:
    """Of all finite numbers, and a little more. The browser's own would be empty if one of them is not."""
    values = np.concatenate(columns)
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    room = 0.08 * (high - low) or 0.1 * abs(high) or 0.1
    return low - room, high + room


def _power(values: np.ndarray) -> int:
    largest = float(np.max(np.abs(values), where=np.isfinite(values), initial=0.0))
    return math.floor(math.log10(largest)) if largest > 0 else 0

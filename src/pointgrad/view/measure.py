"""Marks of clicked points, and the distance between two of them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pointgrad.view.stage import Picked
from pointgrad.view.worker import Task

MARK_COLOR = (255, 0, 160)
START = "Click two points."


class Measure:
    """A check box that turns clicks into measurements, their result, and the marks of the clicked points.

    Marks are rings with a size in pixels, which nothing hides; see display.js.

    Args:
        gui, scene: viser's GUI and scene API.
        on_change: Called as `on_change(control, name, task)`; submits the task when a user changes the control.
    """

    def __init__(self, gui: Any, scene: Any, on_change: Callable[[Any, str, Task], None]) -> None:
        self._scene = scene
        self._nodes: list[Any] = []
        self._ends: list[Picked] = []
        with gui.add_folder("Measure", expand_by_default=False):
            self._on = gui.add_checkbox("Measure distances", False, hint="Click two points to see their distance")
            self._result = gui.add_markdown(START, visible=False)
        on_change(self._on, "measure", self.clear)

    def clear(self) -> None:
        """Remove the measurement and all marks."""
        self._ends = []
        self._result.visible, self._result.content = self._on.value, START
        self.mark(None)

    def add(self, picked: Picked) -> None:
        """Use a clicked point as one end of a measurement, if measuring is on."""
        if self._on.value:
            self._ends = [*self._ends, picked] if len(self._ends) == 1 else [picked]
            self._result.content = START if len(self._ends) == 1 else _table(*self._ends)

    def mark(self, picked: Picked | None) -> None:
        """Draw the marks of the clicked point and of the measurement."""
        while self._nodes:
            self._nodes.pop().remove()
        marked = self._ends or ([] if picked is None else [picked])
        for index, each in enumerate(marked):
            place = each.position[None].astype(np.float32)
            name = f"/marker/{index}"
            self._nodes.append(
                self._scene.add_point_cloud(name, place, MARK_COLOR, point_size=1.0, precision="float32")
            )
        if len(self._ends) == 2:
            places = np.stack([each.position for each in self._ends]).astype(np.float32)
            line = self._scene.add_line_segments(
                "/measure/line", places[None], MARK_COLOR, thickness=2.5, thickness_units="screen"
            )
            length = f"{np.linalg.norm(_difference(*self._ends)):,.6g}"
            label = self._scene.add_label(
                "/measure/length", length, position=places.mean(0), anchor="bottom-center", font_screen_scale=1.3
            )
            self._nodes += [line, label]


def _difference(first: Picked, second: Picked) -> np.ndarray:
    """(3,) vector from the first to the second point, in the units of the file."""
    return (second.row.cloud.points[0].double() - first.row.cloud.points[0].double()).numpy()


def _table(first: Picked, second: Picked) -> str:
    """The measurement as a Markdown table."""
    x, y, z = (float(part) for part in _difference(first, second))
    rows = {"distance": np.linalg.norm([x, y, z]), "horizontal": np.hypot(x, y), "x": x, "y": y, "z": z}
    lines = [f"| {name} | {value:,.6g} |" for name, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])

"""The clipping box: sliders that limit what is drawn along each axis."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pointgrad.view.display import Vector
from pointgrad.view.stage import FARTHEST, Stage
from pointgrad.view.worker import Task

STEPS = 200  # steps of a slider
EDGES = np.array([(a, b) for a in range(8) for b in range(8) if a < b and (a ^ b).bit_count() == 1])  # corner numbers
EDGE_COLOR = (120, 124, 130)


class Clipping:
    """A folder with a check box and a slider for each axis, in the coordinates of the file.

    A slider at its end does not limit anything, so that outliers remain visible.

    Args:
        gui, scene: viser's GUI and scene API.
        on_change: Called as `on_change(control, name, task)`; submits the task when a user changes the control.
        draw: Task that redraws the cloud.
    """

    def __init__(self, gui: Any, scene: Any, on_change: Callable[[Any, str, Task], None], draw: Task) -> None:
        self._scene, self._lines = scene, None
        with gui.add_folder("Clipping box", expand_by_default=False):
            self._on = gui.add_checkbox("Clip", False, hint="Draw only the points inside a box")
            self._sliders = [gui.add_multi_slider(axis, 0.0, 1.0, 0.01, (0.0, 1.0)) for axis in "xyz"]
        for slider in self._sliders:
            slider.visible = False

        def switched() -> None:
            for slider in self._sliders:
                slider.visible = self._on.value
            draw()

        on_change(self._on, "clip", switched)
        for slider in self._sliders:
            on_change(slider, "clip", draw)

    def fit(self, stage: Stage) -> None:
        """Set the ranges of the sliders for a newly opened cloud, and stop clipping."""
        self._on.value = False
        low, high = (stage.world(bound) for bound in (stage.levels.region.low, stage.levels.region.high))
        for axis, slider in enumerate(self._sliders):
            slider.visible = False
            extent = max(float(high[axis] - low[axis]), 1e-9 * max(1.0, abs(float(high[axis]))))
            step = 10.0 ** math.floor(math.log10(extent / STEPS))
            slider.precision, slider.step = max(0, -round(math.log10(step))), step
            ends = math.floor(low[axis] / step) * step, math.ceil(high[axis] / step) * step
            slider.min, slider.max = ends
            slider.value = ends

    def box(self, stage: Stage) -> tuple[Vector, Vector] | None:
        """Lower and upper corner of the box in the scene; None if nothing is clipped."""
        if not self._on.value:
            return None
        ends = [[slider.value[0], slider.value[-1]] for slider in self._sliders]
        low, high = stage.from_world(np.array(ends).T)
        free = [(slider.value[0] <= slider.min, slider.value[-1] >= slider.max) for slider in self._sliders]
        low = np.where([below for below, _ in free], -FARTHEST, low)
        high = np.where([above for _, above in free], FARTHEST, high)
        return _vector(low), _vector(high)

    def draw_edges(self, stage: Stage) -> None:
        """Draw the edges of the box."""
        if self._lines is not None:
            self._lines.remove()
            self._lines = None
        if self._on.value:
            ends = stage.from_world(np.array([[slider.value[0], slider.value[-1]] for slider in self._sliders]).T)
            corners = np.array([[ends[number >> axis & 1][axis] for axis in range(3)] for number in range(8)])
            self._lines = self._scene.add_line_segments(
                "/clip", corners[EDGES].astype(np.float32), EDGE_COLOR, thickness=1.5, thickness_units="screen"
            )


def _vector(values: np.ndarray) -> Vector:
    x, y, z = map(float, values)
    return x, y, z

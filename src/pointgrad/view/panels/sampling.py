"""Samples of the cloud: farthest points, voxels."""

from typing import Any

import numpy as np

import pointgrad
from pointgrad.view.panels.panel import Panel

MOST = 4096
CHOSEN = np.array([214, 48, 49], np.uint8)


class FarthestPoints(Panel):
    """Farthest point sampling step by step: the first m points, and how far any point is from them."""

    title = "farthest points"

    def build(self, gui: Any) -> None:
        self._count = gui.add_slider("m", 1, MOST, 1, 64)
        self._words = gui.add_markdown("")
        self.viewer.shows(self._count)
        self._of: object = None

    def show(self) -> None:
        work, stage = self.viewer.work, self.viewer.stage
        assert stage is not None
        if self._of is not work:  # a prefix of a sample is the sample of a smaller m: once is enough
            points = (work.cloud.points - work.cloud.points.amin(0)).float()
            most = min(MOST, len(points))
            self._index, self._radius = pointgrad.farthest_point_sampling(points, most, return_radius=True)
            self._places = stage.place(work.cloud.points[self._index])
            self._of = work
        count = min(self._count.value, len(self._index))
        self.viewer.overlay.points("chosen", stage, self._places[:count], CHOSEN, 4.0)
        radius = float(self._radius[count - 1])
        self._words.content = f"No point is farther than **{radius:.4g}** from one of the {count} chosen ones."

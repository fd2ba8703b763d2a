"""Neighbours of a clicked point."""

from typing import Any

import pointgrad
from pointgrad.render.colors import ramp
from pointgrad.view.panels.panel import CHOSEN, CLICK, OTHER, Panel, seeded

NEAREST, BALL = "k nearest", "ball"


class Neighborhood(Panel):
    """The k nearest neighbours of the clicked point, or its neighbours in a ball."""

    title = "neighbours"

    def build(self, gui: Any) -> None:
        self._kind = gui.add_dropdown("Kind", (NEAREST, BALL))
        self._k = gui.add_slider("Neighbours (k)", 1, 256, 1, 16, hint="Maximum number of neighbours")
        self._radius = gui.add_slider("Radius", 0.0, 1.0, 0.001, 0.1, hint="Ball radius, in the units of the cloud")
        self._inner = gui.add_slider("Minimum radius", 0.0, 1.0, 0.001, 0.0, hint="Points nearer than this are ignored")
        self._select = gui.add_dropdown("Select", ("nearest", "first", "random"), hint="Which k points to keep")
        self.add_zoom_button(gui)
        self.text = gui.add_markdown("")
        for control in (self._kind, self._k, self._radius, self._inner, self._select):
            self.viewer.redraw_on(control)

    def show(self) -> None:
        self.fit_radius(self._radius, usual=4.0, least=0.5)
        self.fit_radius(self._inner, usual=0.0)
        ball = self._kind.value == BALL
        for control in (self._radius, self._inner, self._select):
            control.visible = ball
        query = self.clicked
        if query is None:
            self.text.content = CLICK
            return
        points, k = self.points, self._k.value
        radius, inner, select = self._radius.value, self._inner.value, self._select.value
        if ball and inner >= radius:
            raise ValueError(f"the minimum radius must be below the radius {radius:.4g}, got {inner:.4g}")
        if ball:
            found = seeded(lambda: pointgrad.ball_query(points, radius, k, query, select=select, min_radius=inner))
        else:
            found = pointgrad.knn(points, k, query)
        index = found.index[0][found.index[0] >= 0]
        distance = found.distance2[0, : len(index)].sqrt()
        rank = distance.argsort(stable=True).argsort().numpy()
        colors = ramp(rank, 0, max(1, len(rank)))
        self.draw_points(points[index], colors, 0.8, "neighbors")
        overlay, stage = self.viewer.overlay, self.viewer.stage
        assert stage is not None
        center = self.place(query)
        overlay.lines("lines", center, self.place(points[index]), colors)
        # Draw the inner ball first: a ball hides balls that are drawn after it.
        overlay.balls("inner ball", center if ball else center[:0], inner * stage.factor, OTHER, 0.25)
        overlay.balls("ball", center if ball else center[:0], radius * stage.factor, CHOSEN, 0.15)
        farthest = self.reach = float(distance.max()) if len(distance) else 0.0
        if ball:
            self.reach = radius
        text = f"**{len(index)}** found, the farthest at **{farthest:.4g}**. Dark is near, bright is far."
        if ball:
            distance2 = (points - query).square().sum(1)
            inside = int(((distance2 <= radius**2) & (distance2 >= inner**2)).sum())
            text += f" The ball contains {inside:,} points"
            text += f"; {SELECTED[select].format(len(index))}." if inside > len(index) else "."
        if len(index) < k:
            text += f" The index has {k} entries: the remaining {k - len(index)} are **-1** (padding)."
        self.text.content = text


SELECTED = {
    "nearest": "the {} nearest are kept",
    "first": "the {} with the smallest index are kept",
    "random": "{} of them are drawn at random",
}

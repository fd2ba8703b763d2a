"""Groups: the neighbours that a network's first layer gathers around each centre."""

from typing import Any

import numpy as np
from torch import Tensor

import pointgrad
from pointgrad.ops.neighbors import Neighbors
from pointgrad.render.colors import PALETTE
from pointgrad.view.panels.panel import CHOSEN, Panel, fit_slider, share

DEFAULT_COUNT = 64  # its covering radius is the default radius


class Groups(Panel):
    """Up to K points in a ball around each of m centres, chosen by farthest point sampling."""

    title = "groups"

    def build(self, gui: Any) -> None:
        self._count = gui.add_slider(
            "Centres (m)", 1, 1024, 1, DEFAULT_COUNT, hint="Number of centres (farthest point sampling)"
        )
        self._radius = gui.add_slider("Radius", 0.0, 1.0, 0.001, 0.1, hint="Ball radius, in the units of the cloud")
        self._k = gui.add_slider(
            "Group size (K)", 1, 512, 1, 64, hint="Maximum number of points in a group; the nearest are kept"
        )
        self.add_zoom_button(gui)
        self.text = gui.add_markdown("")
        for control in (self._count, self._radius, self._k):
            self.viewer.redraw_on(control)

    def show(self) -> None:
        centers, radii = self.cached("centers", None, self._centers)
        self.cached("range", None, lambda: self._fit(radii))
        points, radius, k = self.points, self._radius.value, self._k.value
        chosen = points[centers[: min(self._count.value, len(centers))]]
        found = pointgrad.ball_query(points, radius, k, chosen)
        grouped = pointgrad.group(points, found.index, points=points, centers=chosen)
        covered, owner = _nearest_group(found)
        slots, entries = found.index.numel(), int((found.index >= 0).sum())
        self.draw_points(points[covered], PALETTE[owner % len(PALETTE)], 1.0, "members")
        self.draw_points(chosen, (20, 24, 30), self.bead_size(radius), "centers")
        number, width, channels = grouped.shape
        text = (
            f"**{share(len(covered), len(points))}** of the points are in a group, on average in "
            f"**{entries / max(1, len(covered)):.2f}** groups. Each has the colour of the group with the nearest "
            "centre; points in no group are dimmed. "
            f"{slots - entries:,} of the {slots:,} index entries ({share(slots - entries, slots)}) are padding, -1.\n\n"
            f"`ball_query`: index (M, K) = ({number}, {width})\n\n"
            f"`group`: features (N, C) with positions → (M, K, C + 3) = ({number}, {width}, {channels}); here the "
            f"features are the coordinates, C = {channels - 3}"
        )
        self.text.content = text + self._draw_group(chosen, found)

    def _centers(self) -> tuple[Tensor, Tensor]:
        most = min(1024, len(self.points))
        return pointgrad.farthest_point_sampling(self.points, most, return_radius=True)

    def _fit(self, radii: Tensor) -> None:
        radius = float(radii[min(DEFAULT_COUNT, len(radii)) - 1]) or self.spacing or 1.0
        fit_slider(self._radius, radius / 50, 3 * radius, radius)

    def _draw_group(self, chosen: Tensor, found: Neighbors) -> str:
        """Draw the group whose centre is nearest to the clicked point, and describe it."""
        query, stage, overlay = self.clicked, self.viewer.stage, self.viewer.overlay
        assert stage is not None
        if query is None:
            overlay.remove("group")
            return ""
        group = int(pointgrad.knn(chosen, 1, query).index[0, 0])
        members = found.index[group][found.index[group] >= 0]
        center = self.place(chosen[group : group + 1])
        color = np.array(PALETTE[group % len(PALETTE)])
        overlay.lines("group/lines", center, self.place(self.points[members]), color)
        overlay.balls("group/ball", center, self._radius.value * stage.factor, CHOSEN, 0.12)
        self.reach = 1.5 * self._radius.value
        return f"\n\nGroup {group}, nearest to the clicked point, has {len(members)} of {found.index.shape[1]} points."


def _nearest_group(found: Neighbors) -> tuple[np.ndarray, np.ndarray]:
    """Points that are in any group, ascending, and for each of them the group with the nearest centre."""
    neighbor, group = pointgrad.to_edges(found.index).numpy()
    order = np.argsort(found.distance2[found.index >= 0].numpy(), kind="stable")
    covered, first = np.unique(neighbor[order], return_index=True)
    return covered, group[order][first]

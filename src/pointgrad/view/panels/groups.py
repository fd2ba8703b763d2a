"""Groups: what a network's first layer gathers around each of its centres."""

from typing import Any

import numpy as np
from torch import Tensor

import pointgrad
from pointgrad.render.colors import PALETTE
from pointgrad.view.panels.panel import CHOSEN, Panel, fit_slider, share

USUAL = 64  # centres whose covering radius sets the range of radii


class Groups(Panel):
    """Farthest points as centres, and up to K points in a ball around each."""

    title = "groups"

    def build(self, gui: Any) -> None:
        self._count = gui.add_slider("m", 1, 1024, 1, USUAL, hint="Centres, by farthest point sampling")
        self._radius = gui.add_slider("radius", 0.0, 1.0, 0.001, 0.1, hint="In the units of the cloud")
        self._k = gui.add_slider("K", 1, 512, 1, 64, hint="The most points of a group, the nearest ones")
        self.closer(gui)
        self._words = gui.add_markdown("")
        for control in (self._count, self._radius, self._k):
            self.viewer.shows(control)

    def show(self) -> None:
        centers, radii = self.keep("centers", None, self._centers)
        self.keep("range", None, lambda: self._fit(radii))
        points, radius, k = self.points, self._radius.value, self._k.value
        chosen = points[centers[: min(self._count.value, len(centers))]]
        found = pointgrad.ball_query(points, radius, k, chosen)
        grouped = pointgrad.group(points, found.index, points=points, centers=chosen)
        covered, owner = _nearest_group(found)
        places, entries = found.index.numel(), int((found.index >= 0).sum())
        self.drawn(points[covered], PALETTE[owner % len(PALETTE)], 1.0, "members")
        self.drawn(chosen, (20, 24, 30), self.bead(radius), "centers")
        number, width, channels = grouped.shape
        text = (
            f"**{share(len(covered), len(points))}** of the points are in a group, each of them in "
            f"**{entries / max(1, len(covered)):.2f}** on average; its colour is that of the one whose centre is "
            "nearest, and all others are grey. "
            f"{places - entries:,} of the {places:,} places are padding, {share(places - entries, places)}: -1.\n\n"
            f"`ball_query`: index (M, K) = ({number}, {width})\n\n"
            f"`group`: features (N, C) with positions → (M, K, C + 3) = ({number}, {width}, {channels}), here with the "
            f"coordinates as features, C = {channels - 3}"
        )
        self._words.content = text + self._draw_one(chosen, found)

    def _centers(self) -> tuple[Tensor, Tensor]:
        most = min(1024, len(self.points))
        return pointgrad.farthest_point_sampling(self.points, most, return_radius=True)

    def _fit(self, radii: Tensor) -> None:
        reach = float(radii[min(USUAL, len(radii)) - 1]) or self.spacing or 1.0
        fit_slider(self._radius, reach / 50, 3 * reach, reach)

    def _draw_one(self, chosen: Tensor, found: pointgrad.Neighbors) -> str:
        """The group whose centre is nearest to the clicked point."""
        query, stage, overlay = self.clicked, self.viewer.stage, self.viewer.overlay
        assert stage is not None
        if query is None:
            overlay.remove("one")
            return ""
        group = int(pointgrad.knn(chosen, 1, query).index[0, 0])
        members = found.index[group][found.index[group] >= 0]
        center = self.place(chosen[group : group + 1])
        color = np.array(PALETTE[group % len(PALETTE)])
        overlay.lines("one/lines", center, self.place(self.points[members]), color)
        overlay.balls("one/ball", center, self._radius.value * stage.factor, CHOSEN, 0.12)
        self.reach = 1.5 * self._radius.value
        return f"\n\nThe group nearest to the clicked point, row {group}, has {len(members)} of {found.index.shape[1]}."


def _nearest_group(found: pointgrad.Neighbors) -> tuple[np.ndarray, np.ndarray]:
    """The points that are in groups, ascending, and for each of them that group whose centre is nearest."""
    neighbor, group = pointgrad.to_edges(found.index).numpy()
    order = np.argsort(found.distance2[found.index >= 0].numpy(), kind="stable")
    covered, first = np.unique(neighbor[order], return_index=True)
    return covered, group[order][first]

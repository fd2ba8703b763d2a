"""Samples of the cloud: farthest points, one point per voxel."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

import pointgrad
from pointgrad.view.panels.panel import CHOSEN, OTHER, Panel, seeded, share

MOST = 1024
BALLS = 64  # more of them hide each other
STEPS = 24  # of the curve
NEXT = (192, 57, 43)


class FarthestPoints(Panel):
    """Farthest point sampling step by step: the first m points, which one comes next, and how far any point is from
    them; beside it, a random sample of as many."""

    title = "farthest points"

    def build(self, gui: Any) -> None:
        self._count = gui.add_slider("m", 1, MOST, 1, 64, hint="How many points are chosen")
        self._balls = gui.add_checkbox("covering balls", False, hint=f"Around each chosen point, for m up to {BALLS}")
        self._random = gui.add_checkbox("random sample", False, hint="As many points, chosen at random")
        self._words = gui.add_markdown("")
        self._curve = gui.add_uplot(
            (np.array([1.0, 2.0]),) * 4,
            (
                {"label": "m"},
                {"label": "farthest", "stroke": _css(CHOSEN), "width": 2, "points": {"show": False}},
                {"label": "random", "stroke": _css(OTHER), "width": 2, "points": {"show": False}},
                {"label": "this m", "stroke": _css(NEXT), "width": 0, "points": {"show": True, "size": 9}},
            ),
            title="covering radius over m",
            scales={"x": {"time": False, "distr": 3}, "y": {"distr": 3}},
            axes=({"grid": {"width": 0.5}}, {"grid": {"width": 0.5}, "size": 60}),
            legend={"show": False},
            height=220,
        )
        for control in (self._count, self._balls, self._random):
            self.viewer.shows(control)

    def show(self) -> None:
        index, radii = self.keep("sample", None, self._sample)
        count = min(self._count.value, len(index))
        radius = float(radii[count - 1])
        chosen = self.points[index[:count]]
        self._size = self.bead(radius)
        self.drawn(chosen, CHOSEN, self._size)
        self._draw_next(chosen, index[count : count + 1])
        overlay, stage = self.viewer.overlay, self.viewer.stage
        assert stage is not None
        balls = self.place(chosen) if self._balls.value and count <= BALLS else np.zeros((0, 3))
        overlay.balls("balls", balls, radius * stage.factor, CHOSEN, 0.08)
        text = f"No point is farther than **{radius:.4g}** from the nearest of the **{count:,}** chosen ones"
        text += " (blue): the covering radius."
        if count < len(index):
            text += " The farthest one (red, with a line of that length) is chosen next."
        if self._balls.value and count > BALLS:
            text += f" Balls are drawn for m up to {BALLS}."
        overlay.remove("random")
        if self._random.value:
            other = self.keep("random", None, self._order)[:count]
            self.drawn(self.points[other], OTHER, self._size, "random")
            reached = self._covering(other)
            text += f" From a random sample of as many (orange), it is **{reached:.4g}**"
            text += f", {reached / radius:.1f} times as far." if radius > 0 else "."
        self._words.content = text
        self._draw_curve(count, radii)

    def _sample(self) -> tuple[Tensor, Tensor]:
        """A prefix of a sample is the sample of a smaller m: once is enough."""
        most = min(MOST, len(self.points))
        self._count.max = max(2, most)
        self._count.value = min(self._count.value, self._count.max)
        return pointgrad.farthest_point_sampling(self.points, most, return_radius=True)

    def _order(self) -> Tensor:
        return seeded(lambda: pointgrad.random_sampling(self.points, min(MOST, len(self.points))))

    def _covering(self, index: Tensor) -> float:
        return float(pointgrad.knn(self.points[index], 1, self.points).distance2.max().sqrt())

    def _draw_next(self, chosen: Tensor, following: Tensor) -> None:
        self.drawn(self.points[following], NEXT, 1.3 * self._size, "next")
        nearest = pointgrad.knn(chosen, 1, self.points[following]).index[:, 0]
        ends = self.place(self.points[following]), self.place(chosen[nearest])
        self.viewer.overlay.lines("line", *ends, np.array(NEXT), 3.0)

    def _draw_curve(self, count: int, radii: Tensor) -> None:
        last = len(radii)
        steps = np.unique(np.append(np.geomspace(1, last, STEPS).round().astype(int), count))
        farthest = radii.double().numpy()[steps - 1]
        steps, farthest = steps[farthest > 0], farthest[farthest > 0]  # the scale is logarithmic
        self._curve.visible = len(steps) > 1
        if len(steps) < 2:
            return
        random = np.full(len(steps), np.nan)
        if self._random.value:
            order = self.keep("random", None, self._order)
            known = self.keep("random radii", None, dict)
            for m in steps.tolist():
                if m not in known:
                    known[m] = self._covering(order[:m])
            random = np.array([known[m] or np.nan for m in steps.tolist()])
        here = np.where(steps == count, farthest, np.nan)
        highest = float(np.nanmax([farthest, random]))
        x = {"time": False, "distr": 3, "range": (1, last)}
        y = {"distr": 3, "range": (0.9 * float(farthest.min()), 1.1 * highest)}
        self._curve.scales = {"x": x, "y": y}
        self._curve.data = (steps.astype(float), farthest, random, here)


class Voxels(Panel):
    """One point per voxel: the one nearest to the middle of each cube of a grid that holds any."""

    title = "voxel sampling"

    def build(self, gui: Any) -> None:
        self._edge = gui.add_slider("edge", 0.0, 1.0, 0.001, 0.1, hint="Of a voxel, in the units of the cloud")
        self._words = gui.add_markdown("")
        self.viewer.shows(self._edge)

    def show(self) -> None:
        self.fit_radius(self._edge, usual=12.0, least=0.5)
        edge, points = self._edge.value, self.points
        kept = pointgrad.voxel_sampling(points, edge).index
        self.drawn(points[kept], CHOSEN, self.bead(edge))
        self._draw_edges(edge)
        self._words.content = (
            f"**{len(kept):,}** of {len(points):,} points are kept, {share(len(kept), len(points))}: "
            f"one of each voxel of edge {edge:.4g} that holds any. "
            f"A voxel holds **{len(points) / max(1, len(kept)):.1f}** points on average."
        )

    def _draw_edges(self, edge: float) -> None:
        """The cubes around the clicked point, or around the middle one: the grid as far as it can be looked through."""
        near = self.clicked
        if near is None:
            middle = self.points.mean(0, keepdim=True)
            near = self.points[pointgrad.knn(self.points, 1, middle).index[:, 0]]
        cells = torch.unique(pointgrad.ball_query(self.points, NEAR * edge, AROUND, near).index)
        voxels = torch.unique(torch.floor(self.points[cells[cells >= 0]] / edge), dim=0)
        corners = CORNERS[None] + voxels[:, None]  # (V, 24, 3): both ends of twelve edges
        ends = (corners * edge).reshape(-1, 2, 3)
        self.viewer.overlay.lines("grid", self.place(ends[:, 0]), self.place(ends[:, 1]), np.array(OTHER), 1.5)


NEAR, AROUND = 4.0, 512  # edges, and points, around the place whose voxels are drawn
CORNERS = torch.tensor([
    (0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 1), (1, 1, 1),
    (0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1),
    (0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1), (0, 1, 0), (0, 1, 1), (1, 1, 0), (1, 1, 1),
], dtype=torch.float32)  # fmt: skip


def _css(color: tuple[int, int, int]) -> str:
    return f"rgb{color}"

"""Sampling: farthest points, and one point per voxel."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pointgrad
from pointgrad.view.panels.panel import CHOSEN, OTHER, Panel, seeded, share

MAX_SAMPLES = 1024
MAX_BALLS = 64  # more balls hide each other
CURVE_POINTS = 24
NEXT_COLOR = (192, 57, 43)


class FarthestPoints(Panel):
    """Farthest point sampling: the first m points, the next one, and the covering radius, compared with a random
    sample."""

    title = "farthest points"

    def build(self, gui: Any) -> None:
        self._count = gui.add_slider("Samples (m)", 1, MAX_SAMPLES, 1, 64, hint="Number of sampled points")
        self._balls = gui.add_checkbox("Covering balls", False, hint=f"Around each sample, for m up to {MAX_BALLS}")
        self._random = gui.add_checkbox("Random sample", False, hint="Compare with m random points")
        self.text = gui.add_markdown("")
        self._curve = gui.add_uplot(
            (np.array([1.0, 2.0]),) * 4,
            (
                {"label": "m"},
                {"label": "farthest", "stroke": _css(CHOSEN), "width": 2, "points": {"show": False}},
                {"label": "random", "stroke": _css(OTHER), "width": 2, "points": {"show": False}},
                {"label": "this m", "stroke": _css(NEXT_COLOR), "width": 0, "points": {"show": True, "size": 9}},
            ),
            title="covering radius vs. m",
            scales={"x": {"time": False, "distr": 3}, "y": {"distr": 3}},
            axes=({"grid": {"width": 0.5}}, {"grid": {"width": 0.5}, "size": 60}),
            legend={"show": False},
            height=220,
        )
        for control in (self._count, self._balls, self._random):
            self.viewer.redraw_on(control)

    def show(self) -> None:
        index, radii = self.cached("sample", None, self._sample)
        count = min(self._count.value, len(index))
        radius = float(radii[count - 1])
        chosen = self.points[index[:count]]
        self._size = self.bead_size(radius)
        self.draw_points(chosen, CHOSEN, self._size)
        self._draw_next(chosen, index[count : count + 1])
        overlay, stage = self.viewer.overlay, self.viewer.stage
        assert stage is not None
        balls = self.place(chosen) if self._balls.value and count <= MAX_BALLS else np.zeros((0, 3))
        overlay.balls("balls", balls, radius * stage.factor, CHOSEN, 0.08)
        text = f"**{count:,}** samples (blue) have a covering radius of **{radius:.4g}**: no point is farther away."
        if count < len(index):
            text += " The farthest point (red) is sampled next; the red line to its nearest sample has this length."
        if self._balls.value and count > MAX_BALLS:
            text += f" Balls are shown for m up to {MAX_BALLS}."
        overlay.remove("random")
        if self._random.value:
            other = self.cached("random", None, self._order)[:count]
            self.draw_points(self.points[other], OTHER, self._size, "random")
            random_radius = self._covering_radius(other)
            text += f" A random sample of the same size (orange) has a covering radius of **{random_radius:.4g}**"
            text += f", {random_radius / radius:.1f} times as large." if radius > 0 else "."
        self.text.content = text
        self._draw_curve(count, radii)

    def _sample(self) -> tuple[Tensor, Tensor]:
        """Sample once with the largest m: the first m of these points are the sample for any smaller m."""
        most = min(MAX_SAMPLES, len(self.points))
        self._count.max = max(2, most)
        self._count.value = min(self._count.value, self._count.max)
        return pointgrad.farthest_point_sampling(self.points, most, return_radius=True)

    def _order(self) -> Tensor:
        return seeded(lambda: pointgrad.random_sampling(self.points, min(MAX_SAMPLES, len(self.points))))

    def _covering_radius(self, index: Tensor) -> float:
        return float(pointgrad.knn(self.points[index], 1, self.points).distance2.max().sqrt())

    def _draw_next(self, chosen: Tensor, following: Tensor) -> None:
        self.draw_points(self.points[following], NEXT_COLOR, 1.3 * self._size, "next")
        nearest = pointgrad.knn(chosen, 1, self.points[following]).index[:, 0]
        ends = self.place(self.points[following]), self.place(chosen[nearest])
        self.viewer.overlay.lines("line", *ends, np.array(NEXT_COLOR), 3.0)

    def _draw_curve(self, count: int, radii: Tensor) -> None:
        last = len(radii)
        steps = np.unique(np.append(np.geomspace(1, last, CURVE_POINTS).round().astype(int), count))
        farthest = radii.double().numpy()[steps - 1]
        steps, farthest = steps[farthest > 0], farthest[farthest > 0]  # the scale is logarithmic
        self._curve.visible = len(steps) > 1
        if len(steps) < 2:
            return
        random = np.full(len(steps), np.nan)
        if self._random.value:
            order = self.cached("random", None, self._order)
            known = self.cached("random radii", None, dict)
            for m in steps.tolist():
                if m not in known:
                    known[m] = self._covering_radius(order[:m])
            random = np.array([known[m] or np.nan for m in steps.tolist()])
        current = np.where(steps == count, farthest, np.nan)
        highest = float(np.nanmax([farthest, random]))
        x = {"time": False, "distr": 3, "range": (1, last)}
        lowest = 0.9 * float(farthest.min())
        unit = 10.0 ** math.floor(math.log10(lowest))
        lowest = unit * math.floor(lowest / unit)  # browsers place ticks relative to the lower end
        y = {"distr": 3, "range": (lowest, 1.1 * highest)}
        self._curve.scales = {"x": x, "y": y}
        self._curve.data = (steps.astype(float), farthest, random, current)


class Voxels(Panel):
    """Voxel sampling: the point nearest to the centre of each occupied voxel."""

    title = "voxel sampling"

    def build(self, gui: Any) -> None:
        self._edge = gui.add_slider("Voxel edge", 0.0, 1.0, 0.001, 0.1, hint="Edge length in the units of the cloud")
        self.text = gui.add_markdown("")
        self.viewer.redraw_on(self._edge)

    def show(self) -> None:
        self.fit_radius(self._edge, usual=12.0, least=0.5)
        edge, points = self._edge.value, self.points
        kept = pointgrad.voxel_sampling(points, edge).index
        self.draw_points(points[kept], CHOSEN, self.bead_size(edge))
        self._draw_edges(edge)
        self.text.content = (
            f"**{len(kept):,}** of {len(points):,} points ({share(len(kept), len(points))}) are kept: "
            f"one per occupied voxel of edge length {edge:.4g}. "
            f"An occupied voxel contains **{len(points) / max(1, len(kept)):.1f}** points on average."
        )

    def _draw_edges(self, edge: float) -> None:
        """Draw the voxels around the clicked point or the centre; the whole grid would hide the cloud."""
        near = self.clicked
        if near is None:
            middle = self.points.mean(0, keepdim=True)
            near = self.points[pointgrad.knn(self.points, 1, middle).index[:, 0]]
        cells = torch.unique(pointgrad.ball_query(self.points, GRID_RADIUS * edge, GRID_POINTS, near).index)
        voxels = torch.unique(torch.floor(self.points[cells[cells >= 0]] / edge), dim=0)
        self.draw_boxes(voxels * edge, edge, OTHER, "grid")


GRID_RADIUS, GRID_POINTS = 4.0, 512  # voxels are drawn within this many edge lengths, for at most this many points


def _css(color: tuple[int, int, int]) -> str:
    return f"rgb{color}"

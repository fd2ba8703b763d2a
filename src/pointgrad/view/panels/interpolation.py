"""Interpolation: values everywhere from values at a few samples."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

import pointgrad
from pointgrad.render import colors
from pointgrad.render.colors import ramp
from pointgrad.view.panels.panel import CLICK, Panel

MOST = 1024
INTERPOLATED, REAL, ERROR = "interpolated", "real", "error"
SAMPLE = (20, 24, 30)


class Interpolation(Panel):
    """A column at all points, from its values at a few: the weights of a clicked point's samples, and the error."""

    title = "interpolation"

    def build(self, gui: Any) -> None:
        self._count = gui.add_slider("m", 1, MOST, 1, 128, hint="Samples with known values, by farthest point sampling")
        self._k = gui.add_slider("k", 1, 16, 1, 3, hint="Nearest samples that a point takes its value from")
        self._power = gui.add_slider("power", 0.5, 4.0, 0.5, 1.0, hint="A sample at distance d weighs 1 / d^power")
        self._column = gui.add_dropdown("Column", ("height",))
        self._colors = gui.add_dropdown("Colours", (INTERPOLATED, REAL, ERROR))
        self.closer(gui)
        self._words = gui.add_markdown("")
        for control in (self._count, self._k, self._power, self._column, self._colors):
            self.viewer.shows(control)

    def show(self) -> None:
        self.keep("columns", tuple(colors.choices(self.viewer.work.cloud)), self._fill_columns)
        column, k, power = self._column.value, self._k.value, self._power.value
        real = colors.column(self.viewer.work.cloud, column).double()
        known = real.isfinite()
        if not bool(known.any()):
            raise ValueError(f"{column} must have finite values to interpolate, got none")
        order = self.keep("order", (column, int(known.sum())), lambda: self._order(known))
        samples = order[: min(self._count.value, len(order))]
        inside = self.points[samples]
        value = pointgrad.interpolate(real[samples, None], inside, self.points, k, power=power)[:, 0]
        error = (value - real).abs()
        self._paint(real, value, error)
        self.drawn(inside, SAMPLE, self.bead(0.5 * self._apart(inside)), "samples")
        mean, span = float(error[known].mean()), float(real[known].max() - real[known].min())
        text = f"{column} at {len(real):,} points from **{len(samples):,}** samples (black), {k} for each point: "
        text += f"wrong by **{mean:.4g}** on average"
        text += f", {mean / span:.2%} of its range." if span > 0 else "."
        lost = len(real) - int(known.sum())
        text += f" {lost:,} points have no finite value and are not counted." if lost else ""
        self._words.content = text + "\n\n" + self._draw_weights(inside, real[samples], k, power)

    def _fill_columns(self) -> None:
        """Classes have no values between them."""
        cloud = self.viewer.work.cloud
        found = [by for by in colors.choices(cloud) if by != colors.RGB and colors.scale(cloud, by).kind == "value"]
        if not found:
            raise ValueError("interpolation must have a column of values, got only classes")
        before = self._column.value
        self._column.options = tuple(found)
        self._column.value = before if before in found else found[0]

    def _order(self, known: Tensor) -> Tensor:
        rows = known.nonzero()[:, 0]
        return rows[pointgrad.farthest_point_sampling(self.points[rows], min(MOST, len(rows)))]

    def _apart(self, samples: Tensor) -> float:
        if len(samples) < 2:
            return self.spacing
        return float(pointgrad.knn(samples, 2).distance2[:, 1].median().sqrt())

    def _paint(self, real: Tensor, value: Tensor, error: Tensor) -> None:
        if self._colors.value == ERROR:
            finite = error[error.isfinite()].numpy()
            painted = ramp(error.numpy(), 0.0, float(np.quantile(finite, 0.98)))
        else:
            low, high = np.quantile(real[real.isfinite()].numpy(), (0.02, 0.98))
            painted = ramp((real if self._colors.value == REAL else value).numpy(), low, high)
        self.drawn(self.points, painted, 0.65, "values")

    def _draw_weights(self, samples: Tensor, values: Tensor, k: int, power: float) -> str:
        overlay, query = self.viewer.overlay, self.clicked
        overlay.remove("weights")
        if query is None:
            return CLICK
        index, weights = sample_weights(samples, query, k, power)
        ends, center = self.place(samples[index]), self.place(query)
        rows = ["| weight | distance | value |", "|---|---|---|"]
        for number, weight in enumerate(weights.tolist()):
            end = ends[number : number + 1]
            overlay.lines(f"weights/line {number}", center, end, np.array(WEIGHT), 3.0 + 12.0 * weight)
            if weight >= LEAST:
                overlay.word(f"weights/word {number}", f"{weight:.2f}", end[0])
            apart = float((samples[index[number]] - query[0]).norm())
            rows.append(f"| {weight:.3f} | {apart:.4g} | {float(values[index[number]]):.5g} |")
        self.reach = float((samples[index] - query).norm(dim=1).max())
        return "The clicked point takes:\n\n" + "\n".join(rows)


WEIGHT = (192, 57, 43)
LEAST = 0.01  # a smaller weight is in the table only


def sample_weights(samples: Tensor, query: Tensor, k: int, power: float) -> tuple[Tensor, Tensor]:
    """(k,) the samples that a query (1, 3) takes its value from, nearest first, and their weights: those that the
    operator gives to features of which each sample has one of its own."""
    index = pointgrad.knn(samples, min(k, len(samples)), query).index[0]
    own = torch.eye(len(index), dtype=torch.float64)
    return index, pointgrad.interpolate(own, samples[index], query, len(index), power=power)[0]

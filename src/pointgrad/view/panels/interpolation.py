"""Interpolation: values at all points computed from a few samples."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

import pointgrad
from pointgrad.render import colors
from pointgrad.render.colors import ramp
from pointgrad.view.panels.panel import CLICK, Panel

MAX_SAMPLES = 1024
INTERPOLATED, ACTUAL, ERROR = "interpolated", "actual", "error"
SAMPLE = (20, 24, 30)


class Interpolation(Panel):
    """A column interpolated from a few samples: values, errors, and the weights at a clicked point."""

    title = "interpolation"

    def build(self, gui: Any) -> None:
        self._count = gui.add_slider(
            "Samples (m)", 1, MAX_SAMPLES, 1, 128, hint="Number of samples (farthest point sampling)"
        )
        self._k = gui.add_slider("Neighbours (k)", 1, 16, 1, 3, hint="Number of nearest samples used at each point")
        self._power = gui.add_slider("Distance power", 0.5, 4.0, 0.5, 1.0, hint="Weight at distance d: 1 / d^power")
        self._column = gui.add_dropdown("Column", ("height",))
        self._colors = gui.add_dropdown("Colours", (INTERPOLATED, ACTUAL, ERROR))
        self.add_zoom_button(gui)
        self.text = gui.add_markdown("")
        for control in (self._count, self._k, self._power, self._column, self._colors):
            self.viewer.redraw_on(control)

    def show(self) -> None:
        self.cached("columns", tuple(colors.choices(self.viewer.sample.cloud)), self._fill_columns)
        column, k, power = self._column.value, self._k.value, self._power.value
        actual = colors.column(self.viewer.sample.cloud, column).double()
        known = actual.isfinite()
        if not bool(known.any()):
            raise ValueError(f"{column} must have at least one finite value to interpolate, got none")
        order = self.cached("order", (column, int(known.sum())), lambda: self._order(known))
        samples = order[: min(self._count.value, len(order))]
        inside = self.points[samples]
        value = pointgrad.interpolate(actual[samples, None], inside, self.points, k, power=power)[:, 0]
        error = (value - actual).abs()
        self._paint(actual, value, error)
        self.draw_points(inside, SAMPLE, self.bead_size(0.5 * self._spacing_of(inside)), "samples")
        mean, span = float(error[known].mean()), float(actual[known].max() - actual[known].min())
        text = f"{column} at {len(actual):,} points from **{len(samples):,}** samples (black), {k} for each point. "
        text += f"Mean error: **{mean:.4g}**"
        text += f", {mean / span:.2%} of the range." if span > 0 else "."
        unknown = len(actual) - int(known.sum())
        text += f" {unknown:,} points without a finite value are left out." if unknown else ""
        self.text.content = text + "\n\n" + self._draw_weights(inside, actual[samples], k, power)

    def _fill_columns(self) -> None:
        """Offer all columns of values; classes cannot be interpolated."""
        cloud = self.viewer.sample.cloud
        found = [by for by in colors.choices(cloud) if by != colors.RGB and colors.scale(cloud, by).kind == "value"]
        if not found:
            raise ValueError("interpolation needs a column of values, but all columns are classes")
        before = self._column.value
        self._column.options = tuple(found)
        self._column.value = before if before in found else found[0]

    def _order(self, known: Tensor) -> Tensor:
        rows = known.nonzero()[:, 0]
        return rows[pointgrad.farthest_point_sampling(self.points[rows], min(MAX_SAMPLES, len(rows)))]

    def _spacing_of(self, samples: Tensor) -> float:
        if len(samples) < 2:
            return self.spacing
        return float(pointgrad.knn(samples, 2).distance2[:, 1].median().sqrt())

    def _paint(self, actual: Tensor, value: Tensor, error: Tensor) -> None:
        if self._colors.value == ERROR:
            finite = error[error.isfinite()].numpy()
            painted = ramp(error.numpy(), 0.0, float(np.quantile(finite, 0.98)))
        else:
            low, high = np.quantile(actual[actual.isfinite()].numpy(), (0.02, 0.98))
            painted = ramp((actual if self._colors.value == ACTUAL else value).numpy(), low, high)
        self.draw_points(self.points, painted, 0.65, "values")

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
            if weight >= MIN_LABELLED:
                overlay.label(f"weights/label {number}", f"{weight:.2f}", end[0])
            distance = float((samples[index[number]] - query[0]).norm())
            rows.append(f"| {weight:.3f} | {distance:.4g} | {float(values[index[number]]):.5g} |")
        self.reach = float((samples[index] - query).norm(dim=1).max())
        return "Samples used at the clicked point:\n\n" + "\n".join(rows)


WEIGHT = (192, 57, 43)
MIN_LABELLED = 0.01  # smaller weights are listed in the table only


def sample_weights(samples: Tensor, query: Tensor, k: int, power: float) -> tuple[Tensor, Tensor]:
    """Indices (k,) of the samples that determine the value at a query (1, 3), nearest first, and their weights (k,).

    The weights come from the operator itself: it interpolates one-hot features of the samples.
    """
    index = pointgrad.knn(samples, min(k, len(samples)), query).index[0]
    one_hot = torch.eye(len(index), dtype=torch.float64)
    return index, pointgrad.interpolate(one_hot, samples[index], query, len(index), power=power)[0]

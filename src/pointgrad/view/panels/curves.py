"""Space-filling curves: voxels in the order of a curve, and patches of consecutive voxels."""

from typing import Any

import numpy as np
from torch import Tensor

import pointgrad
from pointgrad.ops.curves import CURVES, MOST_BITS
from pointgrad.render.colors import PALETTE, ramp
from pointgrad.view.panels.panel import CONTEXT, Panel

PLACE, PATCH = "place", "patch"
MAX_LINES = 30_000  # more lines hide each other


class SpaceFillingCurve(Panel):
    """The order of voxels along a space-filling curve, as colours and a line, and patches along it."""

    title = "space-filling curve"

    def build(self, gui: Any) -> None:
        self._edge = gui.add_slider("Voxel edge", 0.0, 1.0, 0.001, 0.1, hint="Edge length in the units of the cloud")
        self._curve = gui.add_dropdown("Curve", CURVES, initial_value="hilbert", hint="-trans: x and y are swapped")
        self._colors = gui.add_dropdown("Colours", (PLACE, PATCH), initial_value=PLACE)
        self._patch = gui.add_slider("Patch size", 16, 2048, 16, 256, hint="Number of consecutive voxels in a patch")
        self._line = gui.add_checkbox("Line", True, hint=f"Through the voxels in order, for at most {MAX_LINES:,}")
        self.add_zoom_button(gui)
        self.text = gui.add_markdown("")
        for control in (self._edge, self._curve, self._colors, self._patch, self._line):
            self.viewer.redraw_on(control)

    def show(self) -> None:
        self.fit_radius(self._edge, usual=8.0, least=0.5)
        edge, curve, size = self._edge.value, self._curve.value, self._patch.value
        voxels = self.cached("voxels", edge, lambda: pointgrad.voxelize(self.points, edge).coordinates)
        bits = max(int(voxels.max()).bit_length(), 1)
        if bits > MOST_BITS:
            raise ValueError(
                f"the cloud must span fewer than 2^{MOST_BITS} voxels, got 2^{bits}; increase the voxel edge"
            )
        found = self.cached("order", (edge, curve), lambda: pointgrad.serialize(voxels, [curve], bits=bits))
        order, place = found.order[0], found.inverse[0]
        patch = place // size
        centers = (voxels + 0.5) * edge
        by_place = self._colors.value == PLACE
        colors = ramp(place.numpy(), 0, len(voxels) - 1) if by_place else PALETTE[patch.numpy() % len(PALETTE)]
        self.draw_points(centers, colors, 1.5 * self.bead_size(edge), "voxels")
        self._draw_line(centers[order], colors[order.numpy()])
        shade = ", from dark to bright" if by_place else ""
        text = (
            f"**{len(voxels):,}** voxels of edge length {edge:.4g} along the curve {curve} of {bits} bits{shade}. "
            f"Consecutive voxels are **{_mean_step(centers[order]):.4g}** apart on average; in the order of x, y and "
            f"z, {_mean_step(centers):.4g}. Patches of {size:,} voxels: **{-(-len(voxels) // size):,}**."
        )
        if self._line.value and len(voxels) > MAX_LINES:
            text += f" The line is shown for at most {MAX_LINES:,} voxels."
        self.text.content = text + self._draw_patch(voxels, centers, place, patch)

    def _draw_line(self, path: Tensor, colors: np.ndarray) -> None:
        if self._line.value and len(path) <= MAX_LINES:
            places = self.place(path)
            self.viewer.overlay.lines("line", places[:-1], places[1:], colors[1:], 5.0)
        else:
            self.viewer.overlay.remove("line")

    def _draw_patch(self, voxels: Tensor, centers: Tensor, place: Tensor, patch: Tensor) -> str:
        """Draw the patch of the clicked point, and describe it."""
        if self.clicked is None:
            self.viewer.overlay.remove("patch")
            return " Click a point to see its patch."
        chosen = int(pointgrad.knn(centers, 1, self.clicked).index[0, 0])
        own = voxels[patch == patch[chosen]]
        extent = (own.amax(0) - own.amin(0) + 1) * self._edge.value
        self.draw_boxes(own * self._edge.value, self._edge.value, CONTEXT, "patch")
        self.reach = float(extent.max())
        return (
            f"\n\nThe clicked voxel has place **{int(place[chosen]):,}** and is in patch **{int(patch[chosen]):,}**, "
            f"whose {len(own):,} voxels span {' x '.join(f'{side:.4g}' for side in extent.tolist())}."
        )


def _mean_step(path: Tensor) -> float:
    """Mean distance of consecutive points (N, 3)."""
    return float(path.diff(dim=0).norm(dim=1).sum()) / max(len(path) - 1, 1)

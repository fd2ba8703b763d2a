"""Sparse convolution: the voxels of each stride level, and those that one output reads."""

from typing import Any

from torch import Tensor

import pointgrad
from pointgrad.ops.sparse import KernelMap
from pointgrad.render.colors import ramp
from pointgrad.view.panels.panel import CHOSEN, CONTEXT, OTHER, Panel

LEVELS = 5  # each has half the resolution of the one before
MAX_KERNEL = 5


class SparseConvolution(Panel):
    """The inputs that each output of a submanifold convolution reads, at several stride levels."""

    title = "sparse convolution"

    def build(self, gui: Any) -> None:
        self._edge = gui.add_slider("Voxel edge", 0.0, 1.0, 0.001, 0.1, hint="Edge length in the units of the cloud")
        self._level = gui.add_slider(
            "Stride level", 0, LEVELS, 1, 0, hint="Number of convolutions with stride 2 before"
        )
        self._kernel = gui.add_slider("Kernel size", 1, MAX_KERNEL, 1, 3, hint="Kernel positions along each axis")
        self._dilation = gui.add_slider("Dilation", 1, 4, 1, 1, hint="Distance between kernel positions, in voxels")
        self.add_zoom_button(gui)
        self.text = gui.add_markdown("")
        for control in (self._edge, self._level, self._kernel, self._dilation):
            self.viewer.redraw_on(control)

    def show(self) -> None:
        self.fit_radius(self._edge, usual=8.0, least=0.5)
        edge, level, size, dilation = (
            control.value for control in (self._edge, self._level, self._kernel, self._dilation)
        )
        levels = self.cached("levels", edge, lambda: stride_levels(self.points, edge))
        voxels, width = levels[level], edge * 2**level
        found = self.cached(
            "map", (edge, level, size, dilation), lambda: pointgrad.submanifold_map(voxels, size, dilation=dilation)
        )
        read = (found.sources >= 0).sum(1)
        positions = found.sources.shape[1]
        centers = (voxels + 0.5) * width
        self.draw_points(centers, ramp(read.numpy(), 0, positions), self.bead_size(width), "voxels")
        text = (
            f"Level {level} has **{len(voxels):,}** voxels of edge length {width:.4g}. With a kernel of size "
            f"{size}, an output reads **{float(read.float().mean()):.1f}** of {positions} inputs on "
            "average. Dark voxels read few, bright ones many."
        )
        self.text.content = f"{text}{self._draw_window(found, centers, width)}\n\n{_table(levels, edge)}"

    def _draw_window(self, found: KernelMap, centers: Tensor, width: float) -> str:
        """Draw the output at the clicked point, its window and the inputs that it reads, and describe them."""
        voxels, query = found.coordinates, self.clicked
        if query is None:
            for name in ("inputs", "output", "window"):
                self.viewer.overlay.remove(name)
            return " Click a point to see the inputs of one output."
        output = int(pointgrad.knn(centers, 1, query).index[0, 0])
        size, dilation = self._kernel.value, self._dilation.value
        inputs = found.sources[output][found.sources[output] >= 0].long()
        first = voxels[output : output + 1] - size // 2 * dilation
        extent = (size - 1) * dilation + 1
        self.draw_boxes(voxels[inputs] * width, width, CHOSEN, "inputs", 3.0)
        self.draw_boxes(voxels[output : output + 1] * width, width, OTHER, "output", 5.0)
        self.draw_boxes(first * width, extent * width, CONTEXT, "window", 1.5)
        self.reach = extent * width
        return (
            f"\n\nThe clicked output (orange) reads **{len(inputs)}** inputs (blue) in a window of "
            f"{extent * width:.4g} (grey)."
        )


def stride_levels(points: Tensor, edge: float) -> list[Tensor]:
    """The occupied voxels (V, 3) of each level, starting with those of the points."""
    levels = [pointgrad.voxelize(points, edge).coordinates]
    for _ in range(LEVELS):
        levels.append(pointgrad.strided_map(levels[-1], 2, stride=2).coordinates)
    return levels


def _table(levels: list[Tensor], edge: float) -> str:
    rows = [f"| {level} | {edge * 2**level:.4g} | {len(voxels):,} |" for level, voxels in enumerate(levels)]
    return "\n".join(["| level | edge | voxels |", "|---:|---:|---:|", *rows])

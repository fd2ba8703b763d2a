"""Saliency: how much an output of the network depends on each point."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import pointgrad
from pointgrad.render.colors import ramp
from pointgrad.view.panels.network import NetworkInput, NetworkPanel
from pointgrad.view.panels.panel import CLICK

PREDICTED = "predicted class"
ALL, ONE = "sum over all points", "clicked point"
TOP = 0.01  # fraction of the points that counts as strongest
BRIGHT = 0.95  # quantile of the gradient norm that gets the brightest colour
SIZES = (1.0, 1.6, 2.2, 2.8)  # point sizes from weak to strong


class Saliency(NetworkPanel):
    """Norm of the gradient of one output with respect to each point's coordinates."""

    title = "saliency"

    def build(self, gui: Any) -> None:
        self._class = gui.add_dropdown("Output", (PREDICTED, *self.trained.classes))
        self._where = gui.add_dropdown("Output at", (ALL, ONE), visible=self.trained.task == "segmentation")
        self.text = gui.add_markdown("")
        self.viewer.redraw_on(self._class)
        self.viewer.redraw_on(self._where)

    def show(self) -> None:
        at_point = self._where.visible and self._where.value == ONE
        if at_point and self.clicked is None:
            self.text.content = CLICK
            return
        network_input = self.network_input
        row = self._row(network_input) if at_point else None
        logits, gradient = output_gradient(self.trained.model, network_input, lambda logits: self._output(logits, row))
        number, name = self._chosen(logits, row)
        index, copy = torch.unique(network_input.index, return_inverse=True)
        cloud_points = network_input.cloud_points
        # Gradients of repeated points add up.
        strength = torch.zeros(len(index), 3).index_add_(0, copy, gradient).norm(dim=1)
        positions = torch.zeros(len(index), 3, dtype=cloud_points.dtype).index_copy_(0, copy, cloud_points)
        if not bool(strength.isfinite().all()):
            raise ValueError(f"the gradient of the output for {name} must be finite, got NaN or infinity")
        self._draw(self.local(positions), strength)
        top = strength.topk(math.ceil(TOP * len(strength))).values
        part = float(top.sum() / strength.sum()) if float(strength.sum()) > 0 else 0.0
        probability = logits.softmax(1)[:, number].mean() if row is None else logits[row].softmax(0)[number]
        self.text.content = (
            f"Sensitivity of the output for **{name}** to moving each point; bright is high. "
            f"The probability is {float(probability):.3f}{self._mean(row)}. The strongest {TOP:.0%} of the points "
            f"({len(top):,}) have **{part:.1%}** of the total gradient norm. {self.describe_input()}"
        )

    def _draw(self, points: Tensor, strength: Tensor) -> None:
        """Draw strong points brighter and larger, so that the many weak ones do not hide them."""
        high = float(np.quantile(strength.numpy(), BRIGHT)) or float(strength.max())
        colors = ramp(strength.numpy(), 0.0, high)
        band = (len(SIZES) * strength / (high or 1.0)).long().clamp(max=len(SIZES) - 1)
        for number, size in enumerate(SIZES):
            chosen = band == number
            self.draw_points(points[chosen], colors[chosen.numpy()], size, f"strength {number}")

    def _mean(self, row: int | None) -> str:
        return " on average" if self.trained.task == "segmentation" and row is None else ""

    def _row(self, network_input: NetworkInput) -> int:
        """Row of the network's input that is nearest to the clicked point."""
        assert self.clicked is not None
        return int(pointgrad.knn(self.local(network_input.cloud_points), 1, self.clicked).index[0, 0])

    def _chosen(self, logits: Tensor, row: int | None) -> tuple[int, str]:
        """Number and name of the chosen class, given logits (1 or n, classes)."""
        if self._class.value == PREDICTED:
            scores = logits.mean(0) if row is None else logits[row]
            number = int(scores.argmax())
            return number, self.trained.classes[number]
        return self.trained.classes.index(self._class.value), self._class.value

    def _output(self, logits: Tensor, row: int | None) -> Tensor:
        number, _ = self._chosen(logits, row)
        return logits[:, number].sum() if row is None else logits[row, number]


def output_gradient(
    model: nn.Module, network_input: NetworkInput, output: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Compute the gradient of one output with respect to the input coordinates.

    Args:
        model: The network.
        network_input: Its input.
        output: Function from the logits to a scalar.

    Returns:
        The logits (1 or n, classes) and the gradient (n, 3).
    """
    model.eval()
    points = network_input.arguments["points"].detach().clone().requires_grad_()
    with torch.enable_grad():
        logits = model(**{**network_input.arguments, "points": points})
        logits = logits.reshape(-1, logits.shape[-1])
        (gradient,) = torch.autograd.grad(output(logits), points, allow_unused=True)
    gradient = torch.zeros_like(points) if gradient is None else gradient
    return logits.detach().float().cpu(), gradient.reshape(-1, 3).float().cpu()

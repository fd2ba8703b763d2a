"""Saliency: which points an output depends on."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import pointgrad
from pointgrad.render.colors import ramp
from pointgrad.view.panels.network import NetworkPanel, Seen
from pointgrad.view.panels.panel import CLICK

PREDICTED = "the predicted class"
ALL, ONE = "sum over all points", "at the clicked point"
TOP = 0.01
BRIGHT = 0.95  # the share of points that are less than brightest
SIZES = (1.0, 1.6, 2.2, 2.8)  # of points, from weak to strong


class Saliency(NetworkPanel):
    """The norm of the gradient of one output with respect to each point's coordinates."""

    title = "saliency"

    def build(self, gui: Any) -> None:
        self._class = gui.add_dropdown("Output", (PREDICTED, *self.trained.classes))
        self._where = gui.add_dropdown("Taken", (ALL, ONE), visible=self.trained.task == "segmentation")
        self._words = gui.add_markdown("")
        self.viewer.shows(self._class)
        self.viewer.shows(self._where)

    def show(self) -> None:
        at_point = self._where.visible and self._where.value == ONE
        if at_point and self.clicked is None:
            self._words.content = CLICK
            return
        seen = self.seen
        row = self._row(seen) if at_point else None
        logits, gradient = gradient_of(self.trained.model, seen, lambda logits: self._output(logits, row))
        number, name = self._chosen(logits, row)
        index, copy = torch.unique(seen.index, return_inverse=True)
        strength = torch.zeros(len(index), 3).index_add_(0, copy, gradient).norm(dim=1)  # copies of a point add up
        own = torch.zeros(len(index), 3, dtype=seen.own.dtype).index_copy_(0, copy, seen.own)
        if not bool(strength.isfinite().all()):
            raise ValueError(f"the gradient of {name} must be finite, got NaN or infinity from the network")
        self._draw(self.local(own), strength)
        top = strength.topk(math.ceil(TOP * len(strength))).values
        part = float(top.sum() / strength.sum()) if float(strength.sum()) > 0 else 0.0
        chance = logits.softmax(1)[:, number].mean() if row is None else logits[row].softmax(0)[number]
        self._words.content = (
            f"How the output for **{name}** changes when a point moves: bright where it does most. "
            f"Its probability is {float(chance):.3f}{self._mean(row)}. "
            f"**{part:.1%}** of all gradient is at the strongest {TOP:.0%} of the points ({len(top):,}). {self.basis()}"
        )

    def _draw(self, points: Tensor, strength: Tensor) -> None:
        """Strong points are bright, and larger, lest the many weak ones hide them."""
        high = float(np.quantile(strength.numpy(), BRIGHT)) or float(strength.max())
        colors = ramp(strength.numpy(), 0.0, high)
        band = (len(SIZES) * strength / (high or 1.0)).long().clamp(max=len(SIZES) - 1)
        for number, size in enumerate(SIZES):
            here = band == number
            self.drawn(points[here], colors[here.numpy()], size, f"strength {number}")

    def _mean(self, row: int | None) -> str:
        return " on average" if self.trained.task == "segmentation" and row is None else ""

    def _row(self, seen: Seen) -> int:
        """Which of the points that the network sees is nearest to the clicked one."""
        assert self.clicked is not None
        return int(pointgrad.knn(self.local(seen.own), 1, self.clicked).index[0, 0])

    def _chosen(self, logits: Tensor, row: int | None) -> tuple[int, str]:
        """The class, from logits (1 or n, classes)."""
        if self._class.value == PREDICTED:
            said = logits.mean(0) if row is None else logits[row]
            number = int(said.argmax())
            return number, self.trained.classes[number]
        return self.trained.classes.index(self._class.value), self._class.value

    def _output(self, logits: Tensor, row: int | None) -> Tensor:
        number, _ = self._chosen(logits, row)
        return logits[:, number].sum() if row is None else logits[row, number]


def gradient_of(model: nn.Module, seen: Seen, output: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The logits (1 or n, classes) of a network, and the gradient (n, 3) of one output of them with respect to the
    coordinates that it sees. output: from the logits to one number."""
    model.eval()
    points = seen.inputs["points"].detach().clone().requires_grad_()
    with torch.enable_grad():
        logits = model(**{**seen.inputs, "points": points})
        logits = logits.reshape(-1, logits.shape[-1])
        (gradient,) = torch.autograd.grad(output(logits), points, allow_unused=True)
    gradient = torch.zeros_like(points) if gradient is None else gradient
    return logits.detach().float().cpu(), gradient.reshape(-1, 3).float().cpu()

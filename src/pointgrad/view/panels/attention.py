"""Attention: where a trained network looks from a clicked point."""

import threading
from typing import Any

import torch
from torch import Tensor, nn

import pointgrad
from pointgrad.nn.attention import VectorAttention
from pointgrad.nn.level import Level
from pointgrad.predict.voting import evaluating
from pointgrad.render.colors import ramp
from pointgrad.view.panels.network import NetworkPanel, Seen
from pointgrad.view.panels.panel import CLICK, CONTEXT

MEAN = "mean of all"
LABELLED = 3  # weights that are written into the scene


class Attention(NetworkPanel):
    """The weights of a point's neighbours in one layer of Point Transformer, in the pass that predicts this cloud."""

    title = "attention"

    def build(self, gui: Any) -> None:
        self._layers = layers(self.trained.model)
        there = bool(self._layers)
        self._layer = gui.add_dropdown("Layer", tuple(self._layers) or ("none",), visible=there)
        self._channels = gui.add_dropdown("Channels", (MEAN,), visible=there, hint="Each group of channels has weights")
        if there:
            self.closer(gui)
        self._words = gui.add_markdown("")
        self.viewer.shows(self._layer)
        self.viewer.shows(self._channels)

    def show(self) -> None:
        if not self._layers:
            name = getattr(self.trained.model, "config", {}).get("name", type(self.trained.model).__name__)
            self._words.content = f"This network, {name}, has no attention layers; point_transformer has."
            return
        layer = self._layers[self._layer.value]
        groups = layer.channels // layer.share
        self._channels.options = (MEAN, *(f"group {number}" for number in range(groups)))
        query = self.clicked
        if query is None:
            self._words.content = CLICK
            return
        seen = self.seen
        levels = self.keep("levels", seen, lambda: inputs_of(self._layers, self.trained.model, seen))
        level = levels[self._layer.value]
        points = self.local(seen.own[rows_of(level, seen)])
        center = int(pointgrad.knn(points, 1, query).index[0, 0])
        neighbors, weights = weights_at(layer, level, center)
        shown = weights.mean(1)
        if self._channels.value != MEAN:
            shown = weights[:, self._channels.options.index(self._channels.value) - 1]
        self._draw(points, center, neighbors, shown)
        best, even = float(shown.max()), 1 / len(shown)
        self._words.content = (
            f"{self.basis()} This layer sees {len(points):,} of them (dark), and each attends to {len(shown)}. "
            f"The largest weight is **{best:.3f}**, {best / even:.1f} times as much as if all were equal ({even:.3f})."
            + (f" Each of {groups} groups of {layer.share} channels has weights of its own." if groups > 1 else "")
        )

    def _draw(self, points: Tensor, center: int, neighbors: Tensor, weights: Tensor) -> None:
        overlay = self.viewer.overlay
        overlay.remove("attention")
        apart = float(pointgrad.knn(points, min(2, len(points))).distance2[:, -1].median().sqrt())
        size = self.bead(2 * apart)
        self.drawn(points, CONTEXT, 0.5 * size, "attention/layer")
        high = max(float(weights.max()), 2 / len(weights))  # equal weights are in the middle of the colours
        colors = ramp(weights.numpy(), 0.0, high)
        self.drawn(points[neighbors], colors, size, "attention/neighbors")
        start, ends = self.place(points[center : center + 1]), self.place(points[neighbors])
        for number, weight in enumerate(weights.tolist()):
            end = ends[number : number + 1]
            overlay.lines(f"attention/line {number}", start, end, colors[number], 1.0 + 7.0 * weight / high)
        for number in weights.topk(min(LABELLED, len(weights))).indices.tolist():
            overlay.word(f"attention/word {number}", f"{float(weights[number]):.2f}", ends[number])
        self.reach = float((points[neighbors] - points[center]).norm(dim=1).max())


def layers(model: nn.Module) -> dict[str, VectorAttention]:
    """By name, in the order of the network."""
    found = ((name, module) for name, module in model.named_modules() if isinstance(module, VectorAttention))
    return {name.removesuffix(".attention"): module for name, module in found}


def inputs_of(layers: dict[str, VectorAttention], model: nn.Module, seen: Seen) -> dict[str, Level]:
    """What each layer is given in a forward pass. Another thread may use the network at the same time."""
    given: dict[str, Level] = {}
    here = threading.get_ident()

    def record(name: str) -> Any:
        def keep(module: nn.Module, arguments: Any) -> None:
            if threading.get_ident() == here:
                given[name] = arguments[0]

        return keep

    hooks = [layer.register_forward_pre_hook(record(name)) for name, layer in layers.items()]
    try:
        with evaluating(model):
            model(**seen.inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return given


def rows_of(level: Level, seen: Seen) -> Tensor:
    """(n,) which of the points that the network sees each point of a level is: sampling moves none."""
    return pointgrad.knn(seen.points, 1, level.points.reshape(-1, 3).cpu()).index[:, 0]


def weights_at(layer: VectorAttention, level: Level, center: int) -> tuple[Tensor, Tensor]:
    """(k,) the neighbours of a point in a layer, and their weights (k, groups)."""
    with torch.inference_mode():
        attended = layer.attend(level)
    first, last = attended.pairs.ends[center : center + 2].tolist()
    return attended.pairs.neighbors[first:last].cpu(), attended.weights[first:last].float().cpu()

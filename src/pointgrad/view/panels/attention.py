"""Attention: the weights that a trained network gives to the neighbours of a clicked point."""

import threading
from typing import Any

import torch
from torch import Tensor, nn

import pointgrad
from pointgrad.nn.attention import VectorAttention
from pointgrad.nn.level import Level
from pointgrad.predict.voting import evaluating
from pointgrad.render.colors import ramp
from pointgrad.view.panels.network import NetworkInput, NetworkPanel
from pointgrad.view.panels.panel import CLICK, CONTEXT

MEAN = "mean of all"
LABELS = 3  # largest weights that are labelled in the scene


class Attention(NetworkPanel):
    """Attention weights of a point's neighbours in one layer of a Point Transformer."""

    title = "attention"

    def build(self, gui: Any) -> None:
        self._layers = attention_layers(self.trained.model)
        available = bool(self._layers)
        self._layer = gui.add_dropdown("Layer", tuple(self._layers) or ("none",), visible=available)
        self._channels = gui.add_dropdown(
            "Channels", (MEAN,), visible=available, hint="Group of channels that share weights"
        )
        if available:
            self.add_zoom_button(gui)
        self.text = gui.add_markdown("")
        self.viewer.redraw_on(self._layer)
        self.viewer.redraw_on(self._channels)

    def show(self) -> None:
        if not self._layers:
            name = getattr(self.trained.model, "config", {}).get("name", type(self.trained.model).__name__)
            self.text.content = f"The network {name} has no attention layers. Use a point_transformer."
            return
        layer = self._layers[self._layer.value]
        groups = layer.channels // layer.share
        self._channels.options = (MEAN, *(f"group {number}" for number in range(groups)))
        query = self.clicked
        if query is None:
            self.text.content = CLICK
            return
        network_input = self.network_input
        levels = self.cached(
            "levels", network_input, lambda: record_inputs(self._layers, self.trained.model, network_input)
        )
        level = levels[self._layer.value]
        points = self.local(network_input.cloud_points[input_rows(level, network_input)])
        center = int(pointgrad.knn(points, 1, query).index[0, 0])
        neighbors, weights = attention_weights(layer, level, center)
        shown = weights.mean(1)
        if self._channels.value != MEAN:
            shown = weights[:, self._channels.options.index(self._channels.value) - 1]
        self._draw(points, center, neighbors, shown)
        best, even = float(shown.max()), 1 / len(shown)
        self.text.content = (
            f"{self.describe_input()} This layer has {len(points):,} points (dark); each attends to {len(shown)}. "
            f"The largest weight is **{best:.3f}**, {best / even:.1f} times the uniform weight of {even:.3f}."
            + (
                f" There are {groups} groups of {layer.share} channels, each with its own weights."
                if groups > 1
                else ""
            )
        )

    def _draw(self, points: Tensor, center: int, neighbors: Tensor, weights: Tensor) -> None:
        overlay = self.viewer.overlay
        overlay.remove("attention")
        spacing = float(pointgrad.knn(points, min(2, len(points))).distance2[:, -1].median().sqrt())
        size = self.bead_size(2 * spacing)
        self.draw_points(points, CONTEXT, 0.5 * size, "attention/layer")
        high = max(float(weights.max()), 2 / len(weights))  # uniform weights get the middle colour
        colors = ramp(weights.numpy(), 0.0, high)
        self.draw_points(points[neighbors], colors, size, "attention/neighbors")
        start, ends = self.place(points[center : center + 1]), self.place(points[neighbors])
        for number, weight in enumerate(weights.tolist()):
            end = ends[number : number + 1]
            overlay.lines(f"attention/line {number}", start, end, colors[number], 1.0 + 7.0 * weight / high)
        for number in weights.topk(min(LABELS, len(weights))).indices.tolist():
            overlay.label(f"attention/label {number}", f"{float(weights[number]):.2f}", ends[number])
        self.reach = float((points[neighbors] - points[center]).norm(dim=1).max())


def attention_layers(model: nn.Module) -> dict[str, VectorAttention]:
    """Attention layers of a network by name, in forward order."""
    found = ((name, module) for name, module in model.named_modules() if isinstance(module, VectorAttention))
    return {name.removesuffix(".attention"): module for name, module in found}


def record_inputs(
    layers: dict[str, VectorAttention], model: nn.Module, network_input: NetworkInput
) -> dict[str, Level]:
    """Run a forward pass and record the input of each layer. Calls from other threads are ignored."""
    inputs: dict[str, Level] = {}
    thread = threading.get_ident()

    def record(name: str) -> Any:
        def keep(module: nn.Module, arguments: Any) -> None:
            if threading.get_ident() == thread:
                inputs[name] = arguments[0]

        return keep

    hooks = [layer.register_forward_pre_hook(record(name)) for name, layer in layers.items()]
    try:
        with evaluating(model):
            model(**network_input.arguments)
    finally:
        for hook in hooks:
            hook.remove()
    return inputs


def input_rows(level: Level, network_input: NetworkInput) -> Tensor:
    """(n,) row of the network's input for each point of a level, which is a subset of the input."""
    return pointgrad.knn(network_input.points, 1, level.points.reshape(-1, 3).cpu()).index[:, 0]


def attention_weights(layer: VectorAttention, level: Level, center: int) -> tuple[Tensor, Tensor]:
    """Indices (k,) of a point's neighbours in a layer, and their weights (k, groups)."""
    with torch.inference_mode():
        attended = layer.attend(level)
    first, last = attended.pairs.ends[center : center + 2].tolist()
    return attended.pairs.neighbors[first:last].cpu(), attended.weights[first:last].float().cpu()

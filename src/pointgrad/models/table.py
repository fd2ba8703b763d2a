"""Summary table of a network."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


def summary(network: nn.Module, points: Tensor | None = None, **inputs: Any) -> None:
    """Print the parts of a network with their types, numbers of parameters and, given an input, output shapes.

    Args:
        network: The network.
        points: Points on which the network is run once in evaluation mode to find the shapes.
        **inputs: Further arguments of the network, such as `features`.

    Example:
        >>> from pointgrad import models
        >>> models.summary(models.pointnet2(classes=10, width=0.25))  # doctest: +ELLIPSIS
        part...
    """
    shapes = {} if points is None else _shapes(network, points, inputs)
    rows = [(name, type(part).__name__, shapes.get(name, ""), f"{_size(part):,}") for name, part in _parts(network)]
    rows.append(("", type(network).__name__, shapes.get("", ""), f"{_size(network):,}"))
    head = ("part", "module", "output", "parameters")
    shown = [row if points is not None else (*row[:2], row[3]) for row in (head, *rows)]
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
        for row in shown:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    table = Table(box=None, pad_edge=False)
    for title in shown[0]:
        table.add_column(title, justify="right" if title == "parameters" else "left", overflow="fold")
    for row in shown[1:]:
        table.add_row(*row, style="bold" if row[0] == "" else None)
    Console(highlight=False).print(table)


def _parts(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Children by name; lists and sequences are expanded."""
    for name, child in module.named_children():
        if isinstance(child, (nn.ModuleList, nn.Sequential)) and len(child):
            yield from _parts(child, f"{prefix}{name}.")
        else:
            yield prefix + name, child


def _shapes(network: nn.Module, points: Tensor, inputs: dict[str, Any]) -> dict[str, str]:
    """Output shapes of the parts by name."""
    found: dict[str, str] = {}

    def record(name: str) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            features = getattr(output, "features", output)
            found[name] = str(tuple(features.shape)) if isinstance(features, Tensor) else ""

        return hook

    handles = [part.register_forward_hook(record(name)) for name, part in (("", network), *_parts(network))]
    training = {module: module.training for module in network.modules()}
    try:
        with torch.no_grad():
            network.eval()(points, **inputs)
    finally:
        for handle in handles:
            handle.remove()
        for module, was in training.items():
            module.training = was
    return found


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())

"""Aggregation and attention over neighbor lists, compared with forms that gather the neighborhoods."""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

import pointgrad
from pointgrad.catalog.base import Passes

from .. import forms
from ..comparison import Comparison, Row, Setup, short

HEADS, DEPTH, NEIGHBORS = 8, 16, 16


def aggregate_unfused(weights: Tensor, values: Tensor, index: Tensor) -> Tensor:
    """Index, multiply, sum. The index must not contain -1."""
    if index.dim() == 2:
        return (weights.unsqueeze(-1) * values[index]).sum(-2)
    cloud = torch.arange(len(index), device=index.device)[:, None, None]
    return (weights.unsqueeze(-1) * values[cloud, index]).sum(-2)


def attention_unfused(query: Tensor, key: Tensor, value: Tensor, index: Tensor) -> Tensor:
    """Index, dot products, softmax, index, sum. The index must not contain -1."""
    logits = (query.unsqueeze(1) * key[index]).sum(-1) * query.shape[-1] ** -0.5
    return (torch.softmax(logits, 1).unsqueeze(-1) * value[index]).sum(1)


def aggregate(size: int, device: str) -> Comparison:
    index = torch.randint(0, size, (size, NEIGHBORS), device=device)
    weights, values = torch.rand(size, NEIGHBORS, device=device), torch.randn(size, HEADS * DEPTH, device=device)
    arguments = {"weights": weights, "values": values, "index": index}
    plain: dict[str, forms.Form] = {"PyTorch": aggregate_unfused}
    return forms.compare("forward + backward", pointgrad.aggregate, plain, arguments, ("weights", "values"))


def attention(size: int, device: str) -> Comparison:
    index = torch.randint(0, size, (size, NEIGHBORS), device=device)
    names = ("query", "key", "value")
    heads = {name: torch.randn(size, HEADS, DEPTH, device=device) for name in names}
    plain: dict[str, forms.Form] = {"PyTorch": attention_unfused}
    return forms.compare("forward + backward", pointgrad.neighbor_attention, plain, heads | {"index": index}, names)


def aggregate_three(passes: Passes, batch: int, size: int, few: int, channels: int, device: str) -> Comparison:
    index = torch.randint(0, few, (batch, size, 3), device=device)
    weights, values = torch.rand(batch, size, 3, device=device), torch.randn(batch, few, channels, device=device)
    rows = batch * (size + few)
    return forms.compare(
        passes,
        pointgrad.aggregate,
        {"PyTorch": aggregate_unfused},
        {"weights": weights, "values": values, "index": index},
        ("weights", "values"),
        # The gradient with respect to the weights reads the values again and writes all weights.
        moved=4 * channels * (rows if passes == "forward" else rows + batch * few)
        + (12 if passes == "forward" else 16) * index.numel(),
    )


def rows(setup: Setup) -> Iterator[Row]:
    size = setup.size(100_000 if setup.gpu else 10_000)
    for name, make in (("aggregate", aggregate), ("attention", attention)):
        yield Row(
            f"{name} {short(size)} x {NEIGHBORS} x {HEADS * DEPTH}, and back",
            functools.partial(make, size, setup.device),
        )
    batch, size, few = (16 if setup.gpu else 2), setup.size(4096), setup.size(1024)
    for mode in ("forward", "backward"):
        yield Row(
            f"aggregate 3 of {few}, {batch} x {size} x 256 {mode}",
            functools.partial(aggregate_three, mode, batch, size, few, 256, setup.device),
        )

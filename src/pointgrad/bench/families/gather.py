"""Gather rows by index, and accumulate their gradients."""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

import pointgrad

from .. import forms
from ..comparison import Comparison, Row, Setup, short

CHANNELS = 64


def indexing(features: Tensor, index: Tensor) -> Tensor:
    return features[index]


def index_select(features: Tensor, index: Tensor) -> Tensor:
    return features.index_select(0, index.reshape(-1)).view(*index.shape, -1)


def neighbor_lists(num_points: int, k: int, device: str) -> Tensor:
    """Neighbor lists (N, k) of a cloud whose points are sorted by grid cell, as scanners and voxel grids produce."""
    points = torch.rand(num_points, 3, device=device)
    cell = (points * 32).long()
    order = (cell[:, 0] * 1024 + cell[:, 1] * 32 + cell[:, 2]).argsort()
    return pointgrad.knn(points[order], k).index


def compare(
    form: forms.Form, mode: forms.Mode, num_rows: int, shape: tuple[int, ...], near: bool, device: str
) -> Comparison:
    features = torch.randn(num_rows, CHANNELS, device=device, requires_grad=True)
    index = neighbor_lists(shape[0], shape[1], device) if near else torch.randint(0, num_rows, shape, device=device)
    return forms.compare(
        mode,
        form,
        {"indexing": indexing, "index_select": index_select},
        (features, index),
        (features,),
        tolerance=1e-6,
        work=("group", {"features": features.detach(), "index": index}) if len(shape) == 2 else None,
        moved=4 * CHANNELS * (index.numel() + num_rows) + 8 * index.numel(),
    )


def rows(setup: Setup) -> Iterator[Row]:
    few, many = setup.size(100_000), setup.size(1_600_000)
    group = f"group {short(few)} x 16 x {CHANNELS}"
    kinds: list[tuple[str, forms.Form, tuple[int, ...], bool, list[forms.Mode]]] = [
        (f"gather {short(many)} x {CHANNELS} of {short(few)}", pointgrad.gather, (many,), False, ["forward"]),
        (group, pointgrad.group, (few, 16), False, ["forward", "backward"]),
        (f"{group}, neighbours", pointgrad.group, (few, 16), True, ["forward"]),
    ]
    for name, form, shape, near, modes in kinds:
        for mode in modes:
            yield Row(
                f"{name} {mode}",
                functools.partial(compare, form, mode, few, shape, near, setup.device),
            )

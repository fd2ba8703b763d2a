"""Copying rows by index, and adding their gradients back."""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

import pointgrad

from .. import forms
from ..contest import Contest, Row, Setup, short

CHANNELS = 64


def indexing(features: Tensor, index: Tensor) -> Tensor:
    return features[index]


def index_select(features: Tensor, index: Tensor) -> Tensor:
    return features.index_select(0, index.reshape(-1)).view(*index.shape, -1)


def contest(form: forms.Form, mode: forms.Mode, num_rows: int, shape: tuple[int, ...], device: str) -> Contest:
    features = torch.randn(num_rows, CHANNELS, device=device, requires_grad=True)
    index = torch.randint(0, num_rows, shape, device=device)
    return forms.contest(
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
    kinds: list[tuple[str, forms.Form, tuple[int, ...], list[forms.Mode]]] = [
        (f"gather {short(many)} x {CHANNELS} of {short(few)}", pointgrad.gather, (many,), ["forward"]),
        (f"group {short(few)} x 16 x {CHANNELS}", pointgrad.group, (few, 16), ["forward", "backward"]),
    ]
    for name, form, shape, modes in kinds:
        for mode in modes:
            yield Row(
                f"{name} {mode}",
                functools.partial(contest, form, mode, few, shape, setup.device),
                at_least=None if setup.gpu else 3.0,
                against="index_select",
                floor_at_most=1.25 if setup.gpu else None,
            )

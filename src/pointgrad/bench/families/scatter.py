"""Reductions by index and by segments, segment softmax, histograms and voxels."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import pointgrad

from ..comparison import Comparison, Implementation, Row, Setup, short


def histogram(entries: int, groups: int, device: str) -> Comparison:
    index = torch.randint(0, groups, (entries,), device=device)

    def bincount() -> Tensor:
        return torch.bincount(index, minlength=groups)

    def check(received: Tensor) -> None:
        assert torch.equal(received, bincount()), "counts differ"

    ours = Implementation(lambda: pointgrad.histogram(index, groups))
    return Comparison(ours, check, {"bincount": Implementation(bincount)})


def voxels(size: int, device: str) -> Comparison:
    points = torch.randn(size, 3, device=device) * 20
    edge = torch.full((), 0.2, device=device)  # on a GPU, torch multiplies by the reciprocal of a Python number

    def unique() -> tuple[Tensor, ...]:
        return torch.unique((points / edge).floor().long(), dim=0, return_inverse=True, return_counts=True)

    def check(received: tuple[Tensor, ...]) -> None:
        for actual, desired in zip(received, unique(), strict=True):
            assert torch.equal(actual, desired), "voxels differ"

    def read(found: Any) -> tuple[Tensor, ...]:
        return found.coordinates, found.inverse, found.count

    ours = Implementation(lambda: pointgrad.voxelize(points, 0.2), read)
    return Comparison(ours, check, {"unique": Implementation(unique)})


def rows(setup: Setup) -> Iterator[Row]:
    entries, groups = setup.size(1_600_000), setup.size(100_000)
    yield Row(
        f"histogram {short(entries)} -> {short(groups)}", functools.partial(histogram, entries, groups, setup.device)
    )
    million = setup.size(1_000_000)
    yield Row(f"voxelize {short(million)} points", functools.partial(voxels, million, setup.device), rounds=5)

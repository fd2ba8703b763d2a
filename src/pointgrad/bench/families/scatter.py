"""Reductions by index and by segments, segment softmax, histograms and voxels."""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

import pointgrad
from pointgrad.catalog.scatter import added, largest

from .. import forms
from ..comparison import Comparison, Implementation, Row, Setup, short

CHANNELS, HEADS = 64, 8


def scatter_softmax(logits: Tensor, index: Tensor, size: int) -> Tensor:
    """The common form: maximum, exponential, sum, quotient."""
    power = (logits - largest(logits, index, size)[index]).exp()
    return power / added(power, index, size)[index]


def by_segment(what: str, entries: int, groups: int, device: str) -> Comparison:
    width = HEADS if what == "softmax" else CHANNELS
    values = torch.randn(entries, width, device=device)
    index = torch.randint(0, groups, (entries,), device=device).sort().values
    offsets = torch.searchsorted(index, torch.arange(groups + 1, device=device))
    if what == "softmax":
        return forms.compare(
            "forward",
            lambda logits, index, size: pointgrad.segment_softmax(logits, offsets),
            {"scatters": scatter_softmax},
            {"logits": values, "index": index, "size": groups},
            tolerance=1e-6,
            work=("segment_softmax", {"logits": values, "offsets": offsets, "index": index}),
            moved=4 * width * 2 * entries + 8 * groups,
        )
    return forms.compare(
        "forward",
        lambda values, index, size: pointgrad.segment(values, offsets),
        {
            "index_add": added,
            "segment_reduce": lambda values, index, size: torch.segment_reduce(
                values, "sum", offsets=offsets, axis=0, unsafe=True
            ),
        },
        {"values": values, "index": index, "size": groups},
        tolerance=1e-6,
        work=("segment", {"values": values, "offsets": offsets, "reduce": "sum"}),
        moved=4 * width * (entries + groups) + 8 * groups,
    )


def histogram(entries: int, groups: int, device: str) -> Comparison:
    index = torch.randint(0, groups, (entries,), device=device)

    def check(received: Tensor) -> None:
        assert torch.equal(received, torch.bincount(index, minlength=groups)), "counts differ"

    return Comparison(
        Implementation(lambda: pointgrad.histogram(index, groups)),
        check,
        {"bincount": Implementation(lambda: torch.bincount(index, minlength=groups))},
    )


def voxels(size: int, device: str) -> Comparison:
    points = torch.randn(size, 3, device=device) * 20
    edge = torch.full((), 0.2, device=device)  # on a GPU, torch multiplies by the reciprocal of a Python number

    def unique() -> tuple[Tensor, ...]:
        return torch.unique((points / edge).floor().long(), dim=0, return_inverse=True, return_counts=True)

    def check(received: tuple[Tensor, ...]) -> None:
        for actual, desired in zip(received, unique(), strict=True):
            assert torch.equal(actual, desired), "voxels differ"

    return Comparison(
        Implementation(
            lambda: pointgrad.voxelize(points, 0.2), lambda found: (found.coordinates, found.inverse, found.count)
        ),
        check,
        {"unique": Implementation(unique)},
    )


def rows(setup: Setup) -> Iterator[Row]:
    entries, groups = setup.size(1_600_000), setup.size(100_000)
    yield Row(
        f"segment sum {short(entries)} x {CHANNELS} -> {short(groups)}",
        functools.partial(by_segment, "sum", entries, groups, setup.device),
    )
    yield Row(
        f"segment softmax {short(entries)} x {HEADS} in {short(groups)}",
        functools.partial(by_segment, "softmax", entries, groups, setup.device),
    )
    yield Row(
        f"histogram {short(entries)} -> {short(groups)}", functools.partial(histogram, entries, groups, setup.device)
    )
    million = setup.size(1_000_000)
    yield Row(
        f"voxelize {short(million)} points",
        functools.partial(voxels, million, setup.device),
        rounds=5,
    )

"""The work of the rooms scatter and voxels. Each row is checked against plain PyTorch before it is timed."""

from collections.abc import Callable

import torch
from torch import Tensor

import pointgrad
from benchmarks.harness import Row

ENTRIES, GROUPS, CHANNELS = 1_600_000, 100_000, 64


def scatter_rows(device: str) -> list[Row]:
    gpu = device == "cuda"
    values = torch.randn(ENTRIES, CHANNELS, device=device)
    index = torch.randint(0, GROUPS, (ENTRIES,), device=device)
    moved = 4 * CHANNELS * (ENTRIES + GROUPS) + 8 * ENTRIES
    wide = index[:, None].expand(ENTRIES, CHANNELS)

    def by_index_add() -> Tensor:
        return torch.zeros(GROUPS, CHANNELS, device=device).index_add_(0, index, values)

    def by_scatter_reduce() -> Tensor:
        return torch.zeros(GROUPS, CHANNELS, device=device).scatter_reduce_(0, wide, values, "amax", include_self=False)

    return [
        Row(
            "scatter sum 1.6M x 64 -> 100k",
            close(lambda: pointgrad.scatter(values, index, GROUPS), by_index_add),
            lambda: pointgrad.scatter(values, index, GROUPS),
            {"index_add": by_index_add},
            at_least=None if gpu else 3.0,
            at_most=0.16 if gpu else None,
            moved=moved,
        ),
        Row(
            "scatter max 1.6M x 64 -> 100k",
            close(lambda: pointgrad.scatter(values, index, GROUPS, "max"), by_scatter_reduce),
            lambda: pointgrad.scatter(values, index, GROUPS, "max"),
            {"scatter_reduce": by_scatter_reduce},
            moved=moved + 8 * CHANNELS * GROUPS,
        ),
    ]


def segment_rows(device: str) -> list[Row]:
    gpu = device == "cuda"
    values = torch.randn(ENTRIES, CHANNELS, device=device)
    index = torch.randint(0, GROUPS, (ENTRIES,), device=device).sort().values
    offsets = torch.searchsorted(index, torch.arange(GROUPS + 1, device=device))
    logits = torch.randn(ENTRIES, 8, device=device)
    moved = 4 * CHANNELS * (ENTRIES + GROUPS) + 8 * GROUPS

    def by_index_add() -> Tensor:
        return torch.zeros(GROUPS, CHANNELS, device=device).index_add_(0, index, values)

    def softmax() -> Tensor:
        """The usual form from scatters: maximum, exponential, sum, quotient."""
        wide = index[:, None].expand_as(logits)
        highest = torch.zeros(GROUPS, 8, device=device).scatter_reduce_(0, wide, logits, "amax", include_self=False)
        power = (logits - highest[index]).exp()
        return power / torch.zeros(GROUPS, 8, device=device).index_add_(0, index, power)[index]

    return [
        Row(
            "segment sum 1.6M x 64 -> 100k",
            close(lambda: pointgrad.segment(values, offsets), by_index_add),
            lambda: pointgrad.segment(values, offsets),
            {
                "index_add": by_index_add,
                "segment_reduce": lambda: torch.segment_reduce(values, "sum", offsets=offsets, axis=0, unsafe=True),
            },
            at_least=None if gpu else 3.0,
            against="index_add",
            at_most=0.16 if gpu else None,
            moved=moved,
        ),
        Row(
            "segment softmax 1.6M x 8 in 100k",
            close(lambda: pointgrad.segment_softmax(logits, offsets), softmax),
            lambda: pointgrad.segment_softmax(logits, offsets),
            {"scatters": softmax},
        ),
    ]


def histogram_rows(device: str) -> list[Row]:
    index = torch.randint(0, GROUPS, (ENTRIES,), device=device)
    return [
        Row(
            "histogram 1.6M -> 100k",
            close(lambda: pointgrad.histogram(index, GROUPS), lambda: torch.bincount(index, minlength=GROUPS)),
            lambda: pointgrad.histogram(index, GROUPS),
            {"bincount": lambda: torch.bincount(index, minlength=GROUPS)},
        )
    ]


def voxel_rows(device: str) -> list[Row]:
    points = torch.randn(1_000_000, 3, device=device) * 20

    edge = torch.full((), 0.2, device=device)  # by a plain number torch divides through its reciprocal on a GPU

    def by_unique() -> tuple[Tensor, ...]:
        return torch.unique((points / edge).floor().long(), dim=0, return_inverse=True, return_counts=True)

    def check() -> None:
        voxels = pointgrad.voxelize(points, 0.2)
        coordinates, inverse, count = by_unique()
        assert torch.equal(voxels.coordinates, coordinates)
        assert torch.equal(voxels.inverse, inverse)
        assert torch.equal(voxels.count, count)

    return [
        Row(
            "voxelize 1M points",
            check,
            lambda: pointgrad.voxelize(points, 0.2),
            {"unique": by_unique},
            at_most=None if device == "cuda" else 150.0,
            rounds=5,
        )
    ]


def close(ours: Callable[[], Tensor], peer: Callable[[], Tensor]) -> Callable[[], None]:
    def check() -> None:
        received, expected = ours().double(), peer().double()
        assert (received - expected).norm() <= 1e-6 * expected.norm()

    return check


def rows(device: str) -> list[Row]:
    return scatter_rows(device) + segment_rows(device) + histogram_rows(device) + voxel_rows(device)

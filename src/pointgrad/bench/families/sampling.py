"""Farthest point sampling of one cloud, of batches and of packed clouds."""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

import pointgrad
from pointgrad.catalog.sampling import plain_fps, step

from ..comparison import Check, Comparison, Implementation, Row, Setup, short

fps = pointgrad.farthest_point_sampling
PLAIN = 4096 * 1024  # the plain loop only runs up to this product of points and picks


def farthest(points: Tensor, count: int) -> Check:
    """Check that the first picks are different and each a farthest point, up to rounding, from any first pick."""

    def check(received: Tensor) -> None:
        index = received.to(points.device)
        assert index.shape == (len(points), count), f"shape must be {(len(points), count)}, got {tuple(index.shape)}"
        assert all(len(row.unique()) == count for row in index), "a point was picked twice"
        nearest = points.new_full(points.shape[:2], torch.inf)
        ratios = []
        for number in range(min(count, 200, max(20, 100_000_000 // points.shape[1])) - 1):
            nearest = step(points, index[:, number], nearest)[1]
            ratios.append(nearest.gather(1, index[:, number + 1, None])[:, 0] / nearest.amax(1))
        worst = float(torch.stack(ratios).min()) if ratios else 1.0
        assert worst > 1 - 1e-5, f"a pick is at {worst**0.5:.4f} of the farthest distance"

    return check


def compare(batch: int, size: int, count: int, setup: Setup) -> Comparison:
    points = torch.rand(batch, size, 3, device=setup.device)
    small = size * count <= PLAIN
    return Comparison(
        Implementation(lambda: fps(points, count)),
        farthest(points, count),
        {"loop of tensors": Implementation(lambda: plain_fps(points, count))} if small else {},
        (lambda: Implementation(functools.partial(plain_fps, points, count, torch.compile(step)))) if small else None,
        work=("fps", {"points": points, "count": count}),
    )


def packed(sizes: list[int], count: int, setup: Setup) -> Comparison:
    points = torch.rand(sum(sizes), 3, device=setup.device)
    offsets = torch.tensor([0, *sizes], device=setup.device).cumsum(0)

    def check(received: Tensor) -> None:
        picked = received.view(len(sizes), count) - offsets[:-1, None]
        for cloud, picks in zip(points.split(sizes), picked, strict=True):
            farthest(cloud[None], count)(picks[None])

    return Comparison(Implementation(lambda: fps(points, count, offsets=offsets)), check)


def rows(setup: Setup) -> Iterator[Row]:
    if setup.gpu:
        work = [
            (32, 1024, 512), (32, 4096, 1024), (8, 16384, 4096), (4, 24000, 6000), (1, 100_000, 25_000),
            (1, 1_000_000, 20_000), (1, 4_000_000, 4_000), (512, 1024, 256),
        ]  # fmt: skip
    else:
        work = [(1, 4096, 1024), (1, 16384, 4096), (1, 100_000, 25_000), (32, 4096, 1024)]
    for batch, size, count in work:
        size, count = setup.size(size), setup.size(count)
        yield Row(
            f"farthest points {batch} x {short(size)} -> {short(count)}",
            functools.partial(compare, batch, size, count, setup),
            rounds=11 if setup.gpu else 7,
        )
    sizes, count = [setup.size(size) for size in (20_000, 70_000, 10_000, 100_000)], 10 if setup.quick else 5000
    if not setup.gpu:
        sizes, count = [size // 4 for size in sizes], max(count // 4, 8)
    yield Row(
        f"farthest points {'+'.join(map(short, sizes))} -> 4 x {short(count)}",
        functools.partial(packed, sizes, count, setup),
    )

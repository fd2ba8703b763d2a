"""Farthest point sampling."""

from collections.abc import Callable

import torch
from torch import Tensor

import pointgrad
from benchmarks.harness import Row

fps = pointgrad.farthest_point_sampling


def naive_picks(points: Tensor, count: int) -> Tensor:
    """(B, N, 3): the textbook loop over tensors."""
    batch = torch.arange(len(points), device=points.device)
    nearest = points.new_full(points.shape[:2], torch.inf)
    pick = batch * 0
    picks = []
    for _ in range(count):
        picks.append(pick)
        dx, dy, dz = (points - points[batch, pick][:, None]).unbind(-1)
        nearest = torch.minimum(nearest, dx * dx + dy * dy + dz * dz)
        nearest[batch, pick] = -1
        pick = nearest.argmax(1)
    return torch.stack(picks, dim=1)


def same_picks(points: Tensor, count: int, compare: int) -> Callable[[], None]:
    def check() -> None:
        received = fps(points, count)
        assert torch.equal(received[:, :compare], naive_picks(points, compare)), "picks differ"
        assert all(len(row.unique()) == count for row in received), "a point was picked twice"

    return check


def on_cpu() -> list[Row]:
    import fpsample

    rows = []
    for batch, size, count, asked in (
        (1, 4096, 1024, 1.3), (1, 16384, 4096, 1.5), (1, 100_000, 25_000, 2.0), (32, 4096, 1024, 2.5),
    ):  # fmt: skip
        points = torch.rand(batch, size, 3)
        clouds = [cloud.numpy() for cloud in points]

        def bucket(height: int, clouds=clouds, count=count) -> None:
            for cloud in clouds:
                fpsample.bucket_fps_kdline_sampling(cloud, count, h=height, start_idx=0)

        rows.append(
            Row(
                f"farthest points {batch} x {size} -> {count}",
                check=same_picks(points, count, min(count, 200)),
                ours=lambda points=points, count=count: fps(points, count),
                peers={f"fpsample h={h}": lambda h=h, bucket=bucket: bucket(h) for h in (3, 4, 5, 6, 7, 8, 9)},
                at_least=asked,
                rounds=5,
            )
        )
    points = torch.rand(1, 4096, 3)
    rows.append(
        Row(
            "farthest points 1 x 4096 -> 1024, plain PyTorch",
            check=same_picks(points, 1024, 1024),
            ours=lambda: fps(points, 1024),
            peers={"PyTorch": lambda: naive_picks(points, 1024)},
        )
    )
    return rows


def on_gpu() -> list[Row]:
    rows = []
    for batch, size, count, asked in (
        (32, 1024, 512, None), (32, 4096, 1024, 0.55), (8, 16384, 4096, 4.7), (4, 24000, 6000, None),
        (1, 100_000, 25_000, 35.0), (1, 1_000_000, 20_000, 140.0), (1, 4_000_000, 4_000, None),
        (512, 1024, 256, None),
    ):  # fmt: skip
        points = torch.rand(batch, size, 3, device="cuda")
        rows.append(
            Row(
                f"farthest points {batch} x {size} -> {count}",
                check=same_picks(points, count, min(count, 1000)),
                ours=lambda points=points, count=count: fps(points, count),
                at_most=asked,
            )
        )
    packed = torch.rand(200_000, 3, device="cuda")
    offsets = torch.tensor([0, 20_000, 90_000, 100_000, 200_000], device="cuda")

    def check_packed() -> None:
        received = fps(packed, 5000, offsets=offsets).view(4, 5000)
        for cloud in range(4):
            begin, end = offsets[cloud], offsets[cloud + 1]
            expected = naive_picks(packed[None, begin:end], 1000)[0] + begin
            assert torch.equal(received[cloud, :1000], expected), "picks differ"

    rows.append(
        Row(
            "farthest points packed 20k+70k+10k+100k -> 4 x 5000",
            check_packed,
            lambda: fps(packed, 5000, offsets=offsets),
        )
    )
    return rows


def rows(device: str) -> list[Row]:
    return on_gpu() if device == "cuda" else on_cpu()

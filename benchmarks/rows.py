"""The work that is measured, by room. Each row is checked against plain PyTorch before it is timed."""

from collections.abc import Callable

import torch
from torch import Tensor

import pointgrad
from benchmarks.harness import Row
from pointgrad.ops.gather.register import gather_backward

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


def sampling_on_cpu() -> list[Row]:
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


def sampling_on_gpu() -> list[Row]:
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


def gather_rows(device: str) -> list[Row]:
    rows, picks, channels = 100_000, 1_600_000, 64
    features = torch.randn(rows, channels, device=device)
    index = torch.randint(0, rows, (picks // 16, 16), device=device)
    flat = index.view(-1)
    grad = torch.randn(picks // 16, 16, channels, device=device)

    def check_forward() -> None:
        assert torch.equal(pointgrad.group(features, index), features[index])

    def check_backward() -> None:
        truth = torch.zeros(rows, channels, dtype=torch.float64, device=device)
        truth.index_add_(0, flat, grad.view(-1, channels).double())
        assert (gather_backward(grad, index, rows, False) - truth).norm() < 1e-6 * truth.norm()

    gpu = device == "cuda"
    return [
        Row(
            "group 100k x 16 x 64 forward",
            check_forward,
            lambda: pointgrad.group(features, index),
            {"index_select": lambda: features.index_select(0, flat), "indexing": lambda: features[index]},
            at_least=None if gpu else 3.0,
            at_most=0.16 if gpu else None,
            against="index_select",
            moved=4 * channels * (picks + rows) + 8 * picks,
        ),
        Row(
            "group 100k x 16 x 64 backward",
            check_backward,
            lambda: gather_backward(grad, index, rows, False),
            {"index_add": lambda: torch.zeros_like(features).index_add_(0, flat, grad.view(-1, channels))},
            at_least=None if gpu else 3.0,
            at_most=0.25 if gpu else None,
            moved=4 * channels * (picks + rows) + 8 * picks,
        ),
    ]


def trilinear_by_slices(corners: Tensor, points: Tensor) -> Tensor:
    """The usual eager form: nested interpolation of slices."""
    u, v, w = ((points + 1) / 2).split(1, dim=1)
    a, b = (1 - v) * (1 - w), (1 - v) * w
    c, d = v * (1 - w), v * w
    low = a * corners[:, 0] + b * corners[:, 1] + c * corners[:, 2] + d * corners[:, 3]
    high = a * corners[:, 4] + b * corners[:, 5] + c * corners[:, 6] + d * corners[:, 7]
    return (1 - u) * low + u * high


def trilinear_by_weights(corners: Tensor, points: Tensor) -> Tensor:
    """A better eager form: eight weights, one product, one sum."""
    shares = torch.stack([(1 - points) / 2, (1 + points) / 2], dim=2)  # (N, 3, 2)
    x, y, z = shares.unbind(1)
    weights = x[:, :, None, None] * y[:, None, :, None] * z[:, None, None, :]
    return (weights.reshape(-1, 8, 1) * corners).sum(1)


def trilinear_rows(device: str) -> list[Row]:
    gpu = device == "cuda"
    count, width = 65536, 256 if gpu else 64
    corners = torch.randn(count, 8, width, device=device, requires_grad=True)
    points = (torch.rand(count, 3, device=device) * 2 - 1).requires_grad_()
    upstream = torch.randn(count, width, device=device)
    eager = {"eager slices": trilinear_by_slices, "eager weights": trilinear_by_weights}
    if gpu:
        eager["compiled"] = torch.compile(trilinear_by_slices)

    def backward(form: Callable[..., Tensor], wanted: tuple[Tensor, ...]) -> Callable[[], object]:
        inputs = [t if any(t is w for w in wanted) else t.detach() for t in (corners, points)]
        output = form(*inputs)
        return lambda: torch.autograd.grad(output, wanted, upstream, retain_graph=True)

    def check(wanted: tuple[Tensor, ...]) -> Callable[[], None]:
        def compare() -> None:
            exact = trilinear_by_weights(corners.double(), points.double())
            mine = pointgrad.trilinear(corners, points)
            assert (mine - exact).norm() < 1e-6 * exact.norm()
            truth = torch.autograd.grad(exact, wanted, upstream.double())
            for received, expected in zip(torch.autograd.grad(mine, wanted, upstream), truth, strict=True):
                assert (received - expected).norm() < 1e-5 * expected.norm()

        return compare

    rows = []
    size = 4 * count * width
    with torch.no_grad():
        fixed_corners, fixed_points = corners.detach(), points.detach()
    rows.append(
        Row(
            f"trilinear 65536 x 8 x {width} forward",
            check((corners, points)),
            lambda: pointgrad.trilinear(fixed_corners, fixed_points),
            {name: lambda form=form: form(fixed_corners, fixed_points) for name, form in eager.items()},
            at_least=None if gpu else 1.5,
            at_most=0.16 if gpu else None,
            moved=9 * size,
        )
    )
    for title, wanted, asked, most, moved in (
        ("corners", (corners,), None, 0.17 if gpu else None, 9 * size),
        ("corners and points", (corners, points), 8.0, None, 18 * size),
    ):
        rows.append(
            Row(
                f"trilinear 65536 x 8 x {width} backward, {title}",
                check(wanted),
                backward(pointgrad.trilinear, wanted),
                {name: backward(form, wanted) for name, form in eager.items()},
                at_least=asked,
                at_most=most,
                against="eager slices",
                moved=moved,
            )
        )
    return rows

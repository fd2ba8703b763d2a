"""grid_sample and splat, measured beside PyTorch's grid_sample."""

from collections.abc import Callable

import torch
from torch import Tensor

import pointgrad
from benchmarks.harness import Row


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


def torch_grid_sample(grid: Tensor, points: Tensor) -> Tensor:
    values = torch.nn.functional.grid_sample(grid, points[:, :, None, None, :], align_corners=False)
    return values[:, :, :, 0, 0].transpose(1, 2)


def grid_rows(device: str) -> list[Row]:
    gpu = device == "cuda"
    count, channels, side = (1_000_000, 32, 128) if gpu else (200_000, 32, 64)
    size = (side, side, side)
    grid = torch.randn(1, channels, *size, device=device, requires_grad=True)
    points = (torch.rand(1, count, 3, device=device) * 2 - 1).requires_grad_()
    upstream = torch.randn(1, count, channels, device=device)
    fixed_grid, fixed_points = grid.detach(), points.detach()

    def backward(sample: Callable[..., Tensor], wanted: tuple[Tensor, ...]) -> Callable[[], object]:
        inputs = [t if any(t is w for w in wanted) else t.detach() for t in (grid, points)]
        output = sample(*inputs)
        return lambda: torch.autograd.grad(output, wanted, upstream, retain_graph=True)

    def check() -> None:
        # The slope by a point jumps between cells, so the points are the same numbers in both precisions.
        exact = torch_grid_sample(grid.double(), points.double())
        mine = pointgrad.grid_sample(grid, points)
        assert (mine - exact).norm() < 1e-5 * exact.norm()
        truth = torch.autograd.grad(exact, (grid, points), upstream.double())
        for received, expected in zip(torch.autograd.grad(mine, (grid, points), upstream), truth, strict=True):
            assert (received - expected).norm() < 1e-3 * expected.norm()

    def check_splat() -> None:
        (truth,) = torch.autograd.grad(torch_grid_sample(grid.double(), points.double()), grid, upstream.double())
        received = pointgrad.splat(upstream, fixed_points, size)
        assert (received - truth).norm() < 1e-5 * truth.norm()

    work = f"{count // 1000}k points, {channels} x {side}^3"
    values = 4 * channels * (8 * count + count)
    turned = 4 * channels * 2 * side**3
    return [
        Row(
            f"grid_sample {work} forward",
            check,
            lambda: pointgrad.grid_sample(fixed_grid, fixed_points),
            {"PyTorch": lambda: torch_grid_sample(fixed_grid, fixed_points)},
            at_least=1.5 if gpu else 4.0,
            moved=values + turned,
        ),
        Row(
            f"grid_sample {work} backward, grid and points",
            check,
            backward(pointgrad.grid_sample, (grid, points)),
            {"PyTorch": backward(torch_grid_sample, (grid, points))},
            at_least=2.0 if gpu else 4.0,
        ),
        Row(
            f"grid_sample {work} backward, grid",
            check,
            backward(pointgrad.grid_sample, (grid,)),
            {"PyTorch": backward(torch_grid_sample, (grid,))},
            at_least=2.0 if gpu else 4.0,
        ),
        Row(f"splat {work} forward", check_splat, lambda: pointgrad.splat(upstream, fixed_points, size)),
    ]


def rows(device: str) -> list[Row]:
    return trilinear_rows(device) + grid_rows(device)

"""grid_sample and splat, measured beside PyTorch's grid_sample."""

from collections.abc import Callable

import torch
from torch import Tensor

import pointgrad
from benchmarks.harness import Row


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

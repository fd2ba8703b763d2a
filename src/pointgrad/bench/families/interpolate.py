"""Interpolation from the three nearest points, in a cell and in a dense grid, and splatting."""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

import pointgrad
from pointgrad.catalog.base import Passes

from .. import forms
from ..comparison import Comparison, Implementation, Row, Setup, short
from .attention import aggregate_unfused


def by_slices(corners: Tensor, points: Tensor) -> Tensor:
    """The common eager form: nested interpolation of slices."""
    u, v, w = ((points + 1) / 2).split(1, dim=1)
    a, b = (1 - v) * (1 - w), (1 - v) * w
    c, d = v * (1 - w), v * w
    low = a * corners[:, 0] + b * corners[:, 1] + c * corners[:, 2] + d * corners[:, 3]
    high = a * corners[:, 4] + b * corners[:, 5] + c * corners[:, 6] + d * corners[:, 7]
    return (1 - u) * low + u * high


def by_weights(corners: Tensor, points: Tensor) -> Tensor:
    """A faster eager form: eight weights, one product, one sum."""
    shares = torch.stack([(1 - points) / 2, (1 + points) / 2], dim=2)  # (N, 3, 2)
    x, y, z = shares.unbind(1)
    weights = x[:, :, None, None] * y[:, None, :, None] * z[:, None, None, :]
    return (weights.reshape(-1, 8, 1) * corners).sum(1)


def trilinear(passes: Passes, wanted: int, count: int, width: int, device: str) -> Comparison:
    corners = torch.randn(count, 8, width, device=device)
    points = torch.rand(count, 3, device=device) * 2 - 1
    # The gradient with respect to the points reads the corners again.
    arrays = {"forward": 9, "backward": 9 if wanted == 1 else 17}[passes]
    return forms.compare(
        passes,
        pointgrad.trilinear,
        {"eager slices": by_slices, "eager weights": by_weights},
        {"corners": corners, "points": points},
        ("corners", "points")[:wanted],
        moved=arrays * 4 * count * width,
    )


def at_three(passes: Passes, batch: int, size: int, few: int, channels: int, device: str) -> Comparison:
    """Only the features require gradients, as in a network with fixed points."""
    features = torch.randn(batch, few, channels, device=device)
    index = torch.randint(0, few, (batch, size, 3), device=device)
    weights = torch.rand(batch, size, 3, device=device)
    arguments = {"features": features, "index": index, "weights": weights}
    return forms.compare(
        passes,
        pointgrad.interpolate_at,
        {"PyTorch": lambda features, index, weights: aggregate_unfused(weights, features, index)},
        arguments,
        ("features",),
        work=("interpolate", arguments),
        moved=4 * channels * batch * (size + few) + 12 * index.numel(),
    )


def torch_grid_sample(grid: Tensor, points: Tensor) -> Tensor:
    values = torch.nn.functional.grid_sample(grid, points[:, :, None, None, :], align_corners=False)
    return values[:, :, :, 0, 0].transpose(1, 2)


def grid(passes: Passes, wanted: int, count: int, channels: int, side: int, device: str) -> Comparison:
    # The gradient with respect to a point jumps between cells, so the same points are used in both precisions.
    cells = torch.randn(1, channels, side, side, side, device=device)
    points = torch.rand(1, count, 3, device=device) * 2 - 1
    return forms.compare(
        passes,
        pointgrad.grid_sample,
        {"PyTorch": torch_grid_sample},
        {"grid": cells, "points": points},
        ("grid", "points")[:wanted],
        tolerance=1e-5 if passes == "forward" else 1e-3,
        moved=4 * channels * (count + side**3) if passes == "forward" else 0,
    )


def splat(count: int, channels: int, side: int, device: str) -> Comparison:
    features = torch.randn(1, count, channels, device=device)
    points = torch.rand(1, count, 3, device=device) * 2 - 1
    size = (side, side, side)

    def truth() -> Tensor:
        cells = torch.zeros(1, channels, *size, dtype=torch.double, device=device, requires_grad=True)
        return torch.autograd.grad(torch_grid_sample(cells, points.double()), cells, features.double())[0]

    return Comparison(Implementation(lambda: pointgrad.splat(features, points, size)), forms.close(truth, 1e-5))


def rows(setup: Setup) -> Iterator[Row]:
    gpu, device = setup.gpu, setup.device
    count, width = setup.size(65536), 256 if gpu else 64
    modes = (("forward", "forward", 1), ("backward", "backward", 1), ("backward", "backward, points", 2))
    for mode, title, wanted in modes:
        yield Row(
            f"trilinear {count} x 8 x {width} {title}",
            functools.partial(trilinear, mode, wanted, count, width, device),  # type: ignore[arg-type]
        )
    batch, size, few = (16 if gpu else 2), setup.size(4096), setup.size(1024)
    for mode in ("forward", "backward"):
        yield Row(
            f"interpolate 3 of {few}, {batch} x {size} x 256 {mode}",
            functools.partial(at_three, mode, batch, size, few, 256, device),  # type: ignore[arg-type]
        )
    count, side = (1_000_000, 128) if gpu else (200_000, 64)
    count, side = (setup.size(count), 8) if setup.quick else (count, side)
    work = f"{short(count)}, 32 x {side}^3"
    for mode, title, wanted in modes:
        yield Row(
            f"grid_sample {work} {title}",
            functools.partial(grid, mode, wanted, count, 32, side, device),  # type: ignore[arg-type]
        )
    yield Row(f"splat {work} forward", functools.partial(splat, count, 32, side, device))

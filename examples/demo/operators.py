"""Every operator on this machine: agreement with the reference, gradient check, time against plain PyTorch.

    python examples/demo/operators.py

Runs on the CPU, and on the GPU where there is one. The cloud is made here, nothing is downloaded.
"""

import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

import pointgrad


@dataclass
class Demo:
    name: str
    work: str
    call: Callable[..., Any]
    arguments: dict[str, Any]
    plain: Callable[..., Any]  # the same in plain PyTorch, as one would write it today
    differentiable: tuple[str, ...] = ()
    small: dict[str, Any] | None = None  # arguments for the gradient check


def torus_knot(count: int) -> Tensor:
    """(count, 3): a noisy trefoil tube, denser on one side, as a scanner would see it."""
    angle = 2 * math.pi * torch.rand(count) ** 1.5
    around = 2 * math.pi * torch.rand(count)
    ring = 2 + torch.cos(3 * angle) + 0.4 * torch.cos(around)
    x, y = ring * torch.cos(2 * angle), ring * torch.sin(2 * angle)
    return torch.stack([x, y, torch.sin(3 * angle) + 0.4 * torch.sin(around)], dim=1)


def plain_farthest(points: Tensor, num_samples: int) -> Tensor:
    nearest = points.new_full((len(points),), torch.inf)
    pick = torch.zeros((), dtype=torch.int64, device=points.device)
    picks = []
    for _ in range(num_samples):
        picks.append(pick)
        nearest = torch.minimum(nearest, (points - points[pick]).square().sum(1))
        pick = nearest.argmax()
    return torch.stack(picks)


def plain_voxels(points: Tensor, voxel_size: float) -> Tensor:
    """One point per voxel, whichever scatter leaves: simpler than what ours promises."""
    voxels, inverse = (points / voxel_size).floor().unique(dim=0, return_inverse=True)
    keep = torch.zeros(len(voxels), dtype=torch.int64, device=points.device)
    return keep.scatter_(0, inverse, torch.arange(len(points), device=points.device))


def plain_trilinear(corners: Tensor, points: Tensor) -> Tensor:
    u, v, w = ((points + 1) / 2).split(1, dim=1)
    low = (1 - v) * ((1 - w) * corners[:, 0] + w * corners[:, 1]) + v * ((1 - w) * corners[:, 2] + w * corners[:, 3])
    high = (1 - v) * ((1 - w) * corners[:, 4] + w * corners[:, 5]) + v * ((1 - w) * corners[:, 6] + w * corners[:, 7])
    return (1 - u) * low + u * high


def plain_knn(points: Tensor, k: int) -> Tensor:
    return torch.cat([torch.cdist(part, points).topk(k, largest=False).values ** 2 for part in points.split(2048)])


def plain_ball(points: Tensor, radius: float, k: int) -> Tensor:
    nearest = [torch.cdist(part, points).topk(k, largest=False).values for part in points.split(2048)]
    return torch.cat([torch.where(distance <= radius, distance**2, torch.inf) for distance in nearest])


def plain_interpolate(features: Tensor, points: Tensor, queries: Tensor) -> Tensor:
    distance, index = torch.cdist(queries, points).topk(3, largest=False)
    weights = 1 / (distance + 1e-8)
    return (features[index] * (weights / weights.sum(1, keepdim=True)).unsqueeze(-1)).sum(1)


def plain_grid_sample(grid: Tensor, points: Tensor) -> Tensor:
    return torch.nn.functional.grid_sample(grid, points[:, :, None, None], align_corners=False)[..., 0, 0].mT


def plain_scatter(values: Tensor, index: Tensor, size: int) -> Tensor:
    return values.new_zeros(size, values.shape[1]).index_add(0, index, values)


def plain_segment_softmax(logits: Tensor, offsets: Tensor) -> Tensor:
    row = torch.repeat_interleave(offsets.diff())[:, None].expand_as(logits)
    highest = logits.new_full((len(offsets) - 1, logits.shape[1]), -torch.inf).scatter_reduce(0, row, logits, "amax")
    power = (logits - highest.gather(0, row)).exp()
    return power / power.new_zeros(highest.shape).scatter_add(0, row, power).gather(0, row)


def plain_aggregate(weights: Tensor, values: Tensor, index: Tensor) -> Tensor:
    return torch.einsum("mk,mkc->mc", weights, values[index])


def plain_attention(query: Tensor, key: Tensor, value: Tensor, index: Tensor) -> Tensor:
    logits = torch.einsum("mhd,mkhd->mkh", query, key[index]) / math.sqrt(query.shape[-1])
    return torch.einsum("mkh,mkhd->mhd", logits.softmax(1), value[index])


def plain_chamfer(points: Tensor, targets: Tensor) -> Tensor:
    distance2 = torch.cdist(points, targets) ** 2
    return distance2.amin(1).mean() + distance2.amin(0).mean()


def demos(device: str) -> list[Demo]:
    cloud = torus_knot(20_000).to(device)
    features = torch.randn(20_000, 64, device=device)
    neighbors = torch.randint(0, 20_000, (20_000, 16), device=device)
    corners = torch.randn(16_384, 8, 64, device=device)
    cell = torch.rand(16_384, 3, device=device) * 2 - 1
    double = {"dtype": torch.float64, "device": device}
    rows = {"features": torch.randn(6, 3, **double), "index": torch.tensor([[2, 0, -1], [5, 5, 1]], device=device)}
    return [
        Demo(
            "farthest_point_sampling", "20k points -> 2k", pointgrad.farthest_point_sampling,
            {"points": cloud, "num_samples": 2000}, plain_farthest,
        ),
        Demo(
            "random_sampling", "20k points -> 2k", pointgrad.random_sampling,
            {"points": cloud, "num_samples": 2000},
            lambda points, num_samples: torch.randperm(len(points))[:num_samples],
        ),
        Demo(
            "voxel_sampling", "20k points, 0.2 voxels", pointgrad.voxel_sampling,
            {"points": cloud, "voxel_size": 0.2}, plain_voxels,
        ),
        Demo(
            "gather", "20k rows of 64", pointgrad.gather,
            {"features": features, "index": neighbors[:, 0]}, lambda features, index: features[index],
            ("features",), {**rows, "index": rows["index"][0]},
        ),
        Demo(
            "group", "20k x 16 rows of 64", pointgrad.group,
            {"features": features, "index": neighbors}, lambda features, index: features[index],
            ("features",), rows,
        ),
        Demo(
            "trilinear", "16k cells, 64 features", pointgrad.trilinear, {"corners": corners, "points": cell},
            plain_trilinear, ("corners", "points"),
            {"corners": torch.randn(3, 8, 2, **double), "points": torch.rand(3, 3, **double)},
        ),
        Demo(
            "knn", "5k points, k 16", distances(pointgrad.knn),
            {"points": cloud[:5000], "k": 16}, plain_knn, ("points",),
            {"points": torch.randn(9, 3, **double), "k": 3},
        ),
        Demo(
            "ball_query", "5k points, r 0.2, k 16", distances(pointgrad.ball_query),
            {"points": cloud[:5000], "radius": 0.2, "k": 16}, plain_ball,
        ),
        Demo(
            "interpolate", "2k points -> 5k, 64 features", pointgrad.interpolate,
            {"features": features[:2000], "points": cloud[:2000], "queries": cloud[2000:7000]}, plain_interpolate,
            ("features",),
            {
                "features": torch.randn(6, 2, **double), "points": torch.randn(6, 3, **double),
                "queries": torch.randn(4, 3, **double),
            },
        ),
        Demo(
            "grid_sample", "50k points in 48^3 x 16", pointgrad.grid_sample,
            {"grid": torch.randn(1, 16, 48, 48, 48, device=device), "points": torch.rand(1, 50_000, 3, device=device)},
            plain_grid_sample, ("grid", "points"),
            {"grid": torch.randn(1, 2, 3, 3, 3, **double), "points": torch.rand(1, 4, 3, **double)},
        ),
        Demo(
            "scatter", "320k x 64 -> 20k rows", pointgrad.scatter,
            {"values": torch.randn(320_000, 64, device=device), "index": neighbors.flatten(), "size": 20_000},
            plain_scatter, ("values",),
            {
                "values": torch.randn(5, 2, **double), "index": torch.tensor([0, 2, 2, 0, 2], device=device),
                "size": 3,
            },
        ),
        Demo(
            "segment_softmax", "320k x 8 in 20k segments", pointgrad.segment_softmax,
            {
                "logits": torch.randn(320_000, 8, device=device),
                "offsets": torch.arange(0, 320_001, 16, device=device),
            },
            plain_segment_softmax, ("logits",),
            {"logits": torch.randn(5, 2, **double), "offsets": torch.tensor([0, 2, 2, 5], device=device)},
        ),
        Demo(
            "aggregate", "20k x 16 rows of 64", pointgrad.aggregate,
            {"weights": torch.rand(20_000, 16, device=device), "values": features, "index": neighbors},
            plain_aggregate, ("weights", "values"),
            {"weights": torch.randn(2, 3, **double), "values": rows["features"], "index": rows["index"]},
        ),
        Demo(
            "conv2d", "4 x 32 x 48^2, kernel 3", pointgrad.functional.conv2d,
            {"input": torch.randn(4, 32, 48, 48, device=device), "weight": torch.randn(32, 32, 3, 3, device=device)},
            torch.nn.functional.conv2d, ("input", "weight"),
            {"input": torch.randn(1, 2, 4, 4, **double), "weight": torch.randn(3, 2, 2, 2, **double)},
        ),
        Demo(
            "cross_entropy", "100k x 40 logits", pointgrad.functional.cross_entropy,
            {
                "input": torch.randn(100_000, 40, device=device),
                "target": torch.randint(0, 40, (100_000,), device=device),
            },
            torch.nn.functional.cross_entropy, ("input",),
            {"input": torch.randn(4, 3, **double), "target": torch.tensor([0, 2, 1, 1], device=device)},
        ),
        Demo(
            "neighbor_attention", "20k x 16, 8 heads of 8", pointgrad.neighbor_attention,
            {
                "query": features.view(-1, 8, 8), "key": features.flip(0).view(-1, 8, 8),
                "value": features.view(-1, 8, 8), "index": neighbors,
            },
            plain_attention, ("query", "key", "value"),
            {
                "query": torch.randn(2, 2, 3, **double), "key": torch.randn(6, 2, 3, **double),
                "value": torch.randn(6, 2, 3, **double), "index": rows["index"],
            },
        ),
        Demo(
            "voxelize", "20k points, 0.2 voxels", lambda **a: pointgrad.voxelize(**a)[:3],
            {"points": cloud, "size": 0.2},
            lambda points, size: (points / size).floor().unique(dim=0, return_inverse=True, return_counts=True),
        ),
        Demo(
            "chamfer_distance", "2k points, 2k targets", pointgrad.chamfer_distance,
            {"points": cloud[:2000], "targets": cloud[2000:4000]}, plain_chamfer, ("points", "targets"),
            {"points": torch.randn(5, 3, **double), "targets": torch.randn(4, 3, **double)},
        ),
    ]  # fmt: skip


def distances(search: Callable[..., Any]) -> Callable[..., Tensor]:
    return lambda **arguments: search(**arguments).distance2


def agreement(demo: Demo) -> str:
    def run() -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        result = demo.call(**demo.arguments)
        return tuple(result) if isinstance(result, tuple) else (result,)

    received = run()
    with pointgrad.backend("reference"):
        expected = run()
    pairs = list(zip(received, expected, strict=True))
    if all(torch.equal(mine, theirs) for mine, theirs in pairs):
        return "[green]identical[/]"
    error = max(((mine - theirs).abs().max() / theirs.abs().max()).item() for mine, theirs in pairs)
    return f"[{'green' if error < 1e-5 else 'red'}]within {error:.0e}[/]"


def gradient(demo: Demo) -> str:
    if demo.small is None:
        return "none: an index"
    small = demo.small

    def call(*values: Tensor) -> Tensor:
        return demo.call(**{**small, **dict(zip(demo.differentiable, values, strict=True))})

    values = tuple(small[name].clone().requires_grad_() for name in demo.differentiable)
    passed = torch.autograd.gradcheck(call, values) and torch.autograd.gradgradcheck(call, values)
    return "[green]first and second[/]" if passed else "[red]wrong[/]"


def milliseconds(call: Callable[[], Any], device: str) -> float:
    def once() -> float:
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e3

    once()
    return statistics.median(once() for _ in range(5))


def with_backward(call: Callable[..., Any], demo: Demo) -> Callable[[], Any]:
    """The call, followed by its backward pass where it has one."""
    if not demo.differentiable:
        return lambda: call(**demo.arguments)
    arguments = {
        name: value.detach().requires_grad_() if name in demo.differentiable else value
        for name, value in demo.arguments.items()
    }
    sources = [arguments[name] for name in demo.differentiable]

    def run() -> Any:
        output = call(**arguments)
        return torch.autograd.grad(output, sources, torch.ones_like(output))

    return run


def main() -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    torch.manual_seed(0)
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
        table = Table(title=f"pointgrad {pointgrad.__version__} on {name}, torch {torch.__version__}")
        for column in ("operator", "work", "reference", "gradient check", "plain PyTorch", "pointgrad", "faster"):
            table.add_column(column, justify="right" if column in ("plain PyTorch", "pointgrad", "faster") else "left")
        entries = demos(device)
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("", total=3 * len(entries))
            for demo in entries:
                progress.update(task, description=f"{demo.name}: reference")
                agrees = agreement(demo)
                progress.update(task, advance=1, description=f"{demo.name}: gradient")
                checked = gradient(demo)
                progress.update(task, advance=1, description=f"{demo.name}: time")
                ours = milliseconds(with_backward(demo.call, demo), device)
                plain = milliseconds(with_backward(demo.plain, demo), device)
                progress.update(task, advance=1)
                work = demo.work + (", and back" if demo.differentiable else "")
                ratio = f"[bold]{plain / ours:.1f}x[/]" if plain >= ours else f"{plain / ours:.2f}x"
                table.add_row(demo.name, work, agrees, checked, f"{plain:.2f} ms", f"{ours:.2f} ms", ratio)
        console.print(table)


if __name__ == "__main__":
    main()

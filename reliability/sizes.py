"""Time and memory against the number of points, up to sizes where 32-bit counts end. Results are checked, then timed.

    python -m reliability.sizes --device cuda --out reliability/results/sizes_gpu.json
    python -m reliability.sizes --device cpu --out reliability/results/sizes_cpu.json

Memory is the most that the call takes beyond its input, result included: on a GPU torch's own count, on a CPU the
system's mark of the largest resident set.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import pointgrad
from pointgrad.bench import write
from pointgrad.bench.clocks import peak_mib
from pointgrad.bench.machine import machine

from .arguments import at_least, out_file

CHANNELS = 32
NEIGHBORS = 16


class Work(NamedTuple):
    call: Callable[[], Any]
    check: Callable[[Any], None]  # raises when a result is wrong


def cloud(count: int, device: str) -> Tensor:
    """About one point per unit of volume, so that a ball holds as many points at every size."""
    generator = torch.Generator(device).manual_seed(0)
    return torch.rand(count, 3, device=device, generator=generator) * count ** (1 / 3)


def some(count: int, device: str, number: int = 64) -> Tensor:
    """A few places, the last among them, to compare with a slow and sure way."""
    places = torch.randint(0, count, (number,), generator=torch.Generator().manual_seed(1))
    places[-1] = count - 1
    return places.to(device)


def squared(points: Tensor, query: Tensor) -> Tensor:
    """As the contract rounds distances."""
    d = points - query
    return d[:, 0] * d[:, 0] + d[:, 1] * d[:, 1] + d[:, 2] * d[:, 2]


def knn(count: int, device: str) -> Work:
    points = cloud(count, device)

    def check(found: Any) -> None:
        for place in some(count, device).tolist():
            nearest = torch.topk(squared(points, points[place]), NEIGHBORS, largest=False).values.sort().values
            mine = squared(points[found.index[place]], points[place])
            assert torch.equal(mine, nearest), f"neighbours of point {place}"

    return Work(lambda: pointgrad.knn(points, NEIGHBORS), check)


def ball_query(count: int, device: str) -> Work:
    points, radius = cloud(count, device), 1.2  # seven points in the mean

    def check(found: Any) -> None:
        for place in some(count, device).tolist():
            inside = squared(points, points[place]) <= radius * radius
            number = min(int(inside.sum()), NEIGHBORS)
            mine = found.index[place]
            assert int(found.count[place]) == number
            assert inside[mine[:number]].all()
            assert (mine[number:] == -1).all()

    return Work(lambda: pointgrad.ball_query(points, radius, NEIGHBORS), check)


def farthest_point_sampling(count: int, device: str) -> Work:
    points, number = cloud(count, device), 1024

    def check(result: Any) -> None:
        index, radius = result
        assert index.unique().numel() == number
        picked, places = points[index], some(count, device)
        distance = torch.stack([squared(picked, points[place]).min() for place in places.tolist()])
        assert (distance <= radius[-1] ** 2 * (1 + 1e-6)).all(), "a point lies outside the covering radius"

    return Work(lambda: pointgrad.farthest_point_sampling(points, number, return_radius=True), check)


def voxel_sampling(count: int, device: str) -> Work:
    points, size = cloud(count, device), 2.0

    def check(samples: Any) -> None:
        cells = torch.floor(points / size).long()
        width = int(cells.max()) + 1
        keys = (cells[:, 0] * width + cells[:, 1]) * width + cells[:, 2]
        assert samples.index.numel() == keys.unique().numel()
        assert keys[samples.index].unique().numel() == samples.index.numel()

    return Work(lambda: pointgrad.voxel_sampling(points, size), check)


def with_gradient(forward: Callable[[Tensor], Tensor], features: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
    """A call, and its backward pass under a gradient of ones."""

    def call() -> tuple[Tensor, Tensor]:
        result = forward(features)
        (grad,) = torch.autograd.grad(result, features, torch.ones((), dtype=result.dtype).to(result).expand_as(result))
        return result.detach(), grad

    return call


def features_of(rows: int, device: str, channels: int = CHANNELS) -> Tensor:
    """Small whole numbers: sums of them are exact even in float16, so a result is right or wrong."""
    number = torch.arange(rows, device=device)
    dtype = torch.float16 if device == "cuda" else torch.float32
    columns = [((number >> (c % 20)) & 3).to(dtype) for c in range(channels)]
    return torch.stack(columns, 1).requires_grad_()


def gather(count: int, device: str) -> Work:
    features = features_of(count, device)
    index = torch.arange(count - 1, -1, -1, device=device)

    def check(results: Any) -> None:
        picked, grad = results
        places = some(count, device)
        assert torch.equal(picked[places], features.detach()[count - 1 - places])
        assert (grad[places] == 1).all()

    return Work(with_gradient(lambda f: pointgrad.gather(f, index), features), check)


def group(count: int, device: str) -> Work:
    """(N, 16, channels) from N / 16 rows: the large tensor is the result."""
    rows = max(count // NEIGHBORS, 1)
    features = features_of(rows, device)
    index = (torch.arange(rows * NEIGHBORS, device=device) * 7 % rows).view(rows, NEIGHBORS)

    def check(results: Any) -> None:
        grouped, grad = results
        places = some(rows, device)
        assert torch.equal(grouped[places], features.detach()[index[places]])
        counts = torch.bincount(index.view(-1), minlength=rows)
        assert torch.equal(grad[places], counts[places, None].to(grad).expand(-1, grad.shape[1]))

    return Work(with_gradient(lambda f: pointgrad.group(f, index), features), check)


def scatter(count: int, device: str) -> Work:
    values = features_of(count, device)
    groups = max(count // NEIGHBORS, 1)
    index = torch.arange(count, device=device) % groups

    def check(results: Any) -> None:
        sums, grad = results
        for place in some(groups, device).tolist():
            members = torch.arange(place, count, groups, device=device)
            assert torch.equal(sums[place], values.detach()[members].sum(0))
        assert (grad[some(count, device)] == 1).all()

    return Work(with_gradient(lambda v: pointgrad.scatter(v, index, groups), values), check)


def interpolate(count: int, device: str) -> Work:
    """Weights of thirds would round; halves and quarters are exact."""
    features = features_of(count, device)
    number = torch.arange(count, device=device)
    index = torch.stack([count - 1 - number, number, (number + 1) % count], 1)
    weights = torch.tensor([0.5, 0.25, 0.25], device=device, dtype=features.dtype).expand(count, 3).contiguous()

    def check(results: Any) -> None:
        mixed, grad = results
        places = some(count, device)
        expected = (features.detach()[index[places]] * weights[places, :, None]).sum(1)
        assert torch.equal(mixed[places], expected)
        assert (grad[places] == 1).all()

    return Work(with_gradient(lambda f: pointgrad.interpolate_at(f, index, weights), features), check)


POINTS = (knn, ball_query, farthest_point_sampling, voxel_sampling)
FEATURES = (gather, group, scatter, interpolate)
WORKS = {work.__name__: work for work in (*POINTS, *FEATURES)}
SIZES = {"cpu": (10_000, 100_000, 1_000_000, 10_000_000), "cuda": (10_000, 100_000, 1_000_000, 10_000_000, 20_000_000)}
# With 32 channels this is 2.24 G numbers, more than a signed 32-bit integer counts.
BEYOND_32_BITS = 70_000_000


def measured(name: str, count: int, device: str) -> dict[str, Any]:
    call, check = WORKS[name](count, device)
    result = call()
    check(result)
    del result
    if device == "cuda":
        torch.cuda.empty_cache()
    peak = peak_mib(call, device)
    begin = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    elements = count * (CHANNELS if WORKS[name] in FEATURES else 3)
    return {"name": name, "size": count, "elements": elements, "ms": round(seconds * 1e3, 3), "peak_MiB": peak}


def line(row: dict[str, Any]) -> str:
    per_point = row["peak_MiB"] * 2**20 / row["size"]
    return (
        f"{row['name']:24} {row['size']:>11,} points {row['elements']:>14,} numbers {row['ms']:>12,.2f} ms "
        f"{row['peak_MiB']:>10,.1f} MiB {per_point:>8,.0f} bytes per point"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(WORKS), help=", ".join(WORKS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--most", type=at_least(10_000), default=BEYOND_32_BITS, help="leave larger sizes out")
    parser.add_argument("--out", type=out_file)
    arguments = parser.parse_args()
    record: dict[str, Any] = {"device": arguments.device, "machine": machine(arguments.device), "rows": []}
    for name in arguments.names:
        beyond = (BEYOND_32_BITS,) if arguments.device == "cuda" and WORKS[name] in FEATURES else ()
        for size in SIZES[arguments.device] + beyond:
            if size <= arguments.most:
                record["rows"].append(measured(name, size, arguments.device))
                print(line(record["rows"][-1]), flush=True)
    if arguments.out:
        write(record, arguments.out)


if __name__ == "__main__":
    main()

"""Eight computations as loops, as tensor operations, and as one kernel: compared, then timed on this machine.

    python examples/vectorisation.py [--device cuda] [--out results.json]

Prints a table and, if matplotlib is installed, writes out/vectorisation.png. Loops use Python lists, because indexing
single elements of a tensor is many times slower.
"""

import argparse
import importlib.util
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pointgrad

# Broadcasting: squared distance from each query to its nearest point.


def nearest_by_loops(points: Tensor, queries: Tensor) -> Tensor:
    best = []
    for qx, qy, qz in queries.tolist():
        nearest = float("inf")
        for px, py, pz in points.tolist():
            distance2 = (qx - px) ** 2 + (qy - py) ** 2 + (qz - pz) ** 2
            nearest = min(nearest, distance2)
        best.append(nearest)
    return torch.tensor(best)


def nearest_by_broadcasting(points: Tensor, queries: Tensor) -> Tensor:
    difference = queries[:, None, :] - points[None, :, :]  # (M, 1, 3) - (1, N, 3) = (M, N, 3)
    return difference.square().sum(-1).amin(-1)


def nearest_by_kernel(points: Tensor, queries: Tensor) -> Tensor:
    return pointgrad.knn(points, 1, queries).distance2[:, 0]


# Matrix product.


def product_by_loops(a: Tensor, b: Tensor) -> Tensor:
    rows, columns = a.tolist(), b.T.tolist()
    out = []
    for row in rows:
        out.append([])
        for column in columns:
            total = 0.0
            for left, right in zip(row, column, strict=True):
                total += left * right
            out[-1].append(total)
    return torch.tensor(out)


def product_by_matmul(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


# Einsum over five indices: b clouds, m centres, k neighbours, g groups, c channels per group.


def weighted_by_loops(weights: Tensor, values: Tensor, index: Tensor) -> Tensor:
    groups, channels = weights.shape[3], values.shape[2]
    weight, value, neighbor = weights.tolist(), values.tolist(), index.tolist()
    out = torch.zeros(*index.shape[:2], channels).tolist()
    for b in range(len(neighbor)):
        for m in range(len(neighbor[b])):
            for k in range(len(neighbor[b][m])):
                row = value[b][neighbor[b][m][k]]
                for g in range(groups):
                    for c in range(g * channels // groups, (g + 1) * channels // groups):
                        out[b][m][c] += weight[b][m][k][g] * row[c]
    return torch.tensor(out)


def weighted_by_einsum(weights: Tensor, values: Tensor, index: Tensor) -> Tensor:
    cloud = torch.arange(len(values), device=values.device)[:, None, None]
    grouped = values[cloud, index].unflatten(-1, (weights.shape[3], -1))  # (B, M, K, G, C)
    return torch.einsum("bmkg,bmkgc->bmgc", weights, grouped).flatten(2)


def weighted_by_kernel(weights: Tensor, values: Tensor, index: Tensor) -> Tensor:
    return pointgrad.aggregate(weights, values, index)


# Gather: features of the neighbours of each centre.


def gathered_by_loops(features: Tensor, index: Tensor) -> Tensor:
    feature = features.tolist()
    out = []
    for neighbors in index.tolist():
        out.append([])
        for neighbor in neighbors:
            out[-1].append([])
            for value in feature[neighbor]:
                out[-1][-1].append(value)
    return torch.tensor(out)


def gathered_by_indexing(features: Tensor, index: Tensor) -> Tensor:
    return features[index]


def gathered_by_kernel(features: Tensor, index: Tensor) -> Tensor:
    return pointgrad.group(features, index)


# Scatter-add: a weighted histogram.


def histogram_by_loops(index: Tensor, weights: Tensor, size: int) -> Tensor:
    out = [0.0] * size
    for position, weight in zip(index.tolist(), weights.tolist(), strict=True):
        out[position] += weight
    return torch.tensor(out)


def histogram_by_scatter_add(index: Tensor, weights: Tensor, size: int) -> Tensor:
    return weights.new_zeros(size).scatter_add_(0, index, weights)


def histogram_by_kernel(index: Tensor, weights: Tensor, size: int) -> Tensor:
    return pointgrad.histogram(index, size, weights)


# Unfold: windows of an image as columns.


def unfolded_by_loops(image: Tensor, kernel: int) -> Tensor:
    pixels, (channels, height, width) = image.tolist(), image.shape
    columns = []
    for c in range(channels):
        for i in range(kernel):
            for j in range(kernel):
                columns.append([])
                for y in range(height - kernel + 1):
                    for x in range(width - kernel + 1):
                        columns[-1].append(pixels[c][y + i][x + j])
    return torch.tensor(columns)


def unfolded_by_views(image: Tensor, kernel: int) -> Tensor:
    windows = image.unfold(1, kernel, 1).unfold(2, kernel, 1)  # (C, oh, ow, kh, kw), nothing copied yet
    return windows.permute(0, 3, 4, 1, 2).reshape(len(image) * kernel**2, -1)


def unfolded_by_kernel(image: Tensor, kernel: int) -> Tensor:
    return pointgrad.functional.unfold(image, kernel)


# Trilinear interpolation from eight corners.


def interpolated_by_loops(corners: Tensor, points: Tensor) -> Tensor:
    out = []
    for corner, point in zip(corners.tolist(), points.tolist(), strict=True):
        total = [0.0] * corners.shape[2]
        for number, features in enumerate(corner):
            weight = 1.0
            for axis, coordinate in enumerate(point):
                far = number >> (2 - axis) & 1  # corner (x, y, z) has the number 4 x + 2 y + z
                weight *= (1 + coordinate) / 2 if far else (1 - coordinate) / 2
            for f, feature in enumerate(features):
                total[f] += weight * feature
        out.append(total)
    return torch.tensor(out)


def interpolated_by_weights(corners: Tensor, points: Tensor) -> Tensor:
    x, y, z = torch.stack([(1 - points) / 2, (1 + points) / 2], dim=2).unbind(1)  # three times (N, 2)
    weights = x[:, :, None, None] * y[:, None, :, None] * z[:, None, None, :]
    return (weights.reshape(-1, 8, 1) * corners).sum(1)


def interpolated_by_kernel(corners: Tensor, points: Tensor) -> Tensor:
    return pointgrad.trilinear(corners, points)


# Farthest point sampling: each sample depends on the previous one, so one loop remains.


def sampled_by_loops(points: Tensor, count: int) -> Tensor:
    cloud = points.tolist()
    nearest = [float("inf")] * len(cloud)
    picks = [0]
    while len(picks) < count:
        px, py, pz = cloud[picks[-1]]
        for number, (x, y, z) in enumerate(cloud):
            nearest[number] = min(nearest[number], (x - px) ** 2 + (y - py) ** 2 + (z - pz) ** 2)
        picks.append(max(range(len(cloud)), key=nearest.__getitem__))
    return torch.tensor(picks)


def sampled_by_tensors(points: Tensor, count: int) -> Tensor:
    nearest = points.new_full((len(points),), torch.inf)
    picks = [torch.zeros((), dtype=torch.int64, device=points.device)]
    while len(picks) < count:
        nearest = torch.minimum(nearest, (points - points[picks[-1]]).square().sum(1))
        picks.append(nearest.argmax())
    return torch.stack(picks)


def sampled_by_kernel(points: Tensor, count: int) -> Tensor:
    return pointgrad.farthest_point_sampling(points, count)


@dataclass(frozen=True)
class Work:
    """One computation in three versions."""

    name: str
    size: str  # meaning of n
    inputs: Callable[[int], tuple[Any, ...]]
    naive: Callable[..., Tensor]
    vectorised: Callable[..., Tensor]
    kernel: Callable[..., Tensor] | None  # None where the tensor operation is already one kernel
    small: int  # n for all three versions
    large: int  # n without the loops


def works(device: str = "cpu") -> list[Work]:
    """All computations, with inputs on a device."""

    def random(*shape: int) -> Tensor:
        return torch.rand(shape, device=device)

    def rows(count: int, *shape: int) -> Tensor:
        return torch.randint(0, count, shape, device=device)

    return [
        Work(
            "broadcasting", "n points, n queries", lambda n: (random(n, 3), random(n, 3)),
            nearest_by_loops, nearest_by_broadcasting, nearest_by_kernel, 400, 2048,
        ),
        Work(
            "matrix product", "n x n", lambda n: (random(n, n), random(n, n)),
            product_by_loops, product_by_matmul, None, 128, 1024,
        ),
        Work(
            "einsum", "2 x n x 16 x 4 x 16",
            lambda n: (random(2, n, 16, 4), random(2, n, 64), rows(n, 2, n, 16)),
            weighted_by_loops, weighted_by_einsum, weighted_by_kernel, 100, 5000,
        ),
        Work(
            "gather", "n x 16 rows of 32", lambda n: (random(n, 32), rows(n, n, 16)),
            gathered_by_loops, gathered_by_indexing, gathered_by_kernel, 500, 50_000,
        ),
        Work(
            "scatter-add", "n entries, n / 16 bins", lambda n: (rows(n // 16 + 1, n), random(n), n // 16 + 1),
            histogram_by_loops, histogram_by_scatter_add, histogram_by_kernel, 200_000, 4_000_000,
        ),
        Work(
            "unfold", "8 x n x n, kernel 3", lambda n: (random(8, n, n), 3),
            unfolded_by_loops, unfolded_by_views, unfolded_by_kernel, 64, 512,
        ),
        Work(
            "trilinear", "n points, 32 features", lambda n: (random(n, 8, 32), random(n, 3) * 2 - 1),
            interpolated_by_loops, interpolated_by_weights, interpolated_by_kernel, 500, 50_000,
        ),
        Work(
            "sampling", "n points to n / 8", lambda n: (random(n, 3), n // 8),
            sampled_by_loops, sampled_by_tensors, sampled_by_kernel, 1000, 8192,
        ),
    ]  # fmt: skip


def versions(work: Work, loops: bool) -> dict[str, Callable[..., Tensor]]:
    """Functions of a computation by name, with or without loops."""
    found = {"naive": work.naive if loops else None, "vectorised": work.vectorised, "kernel": work.kernel}
    return {name: call for name, call in found.items() if call is not None}


def compare(work: Work, inputs: tuple[Any, ...], loops: bool) -> None:
    """Raise an error unless all versions return the same result up to float32 rounding."""
    expected = work.vectorised(*inputs).cpu()
    for call in versions(work, loops).values():
        torch.testing.assert_close(call(*inputs).cpu(), expected, rtol=1e-4, atol=1e-4)


def milliseconds(call: Callable[..., Tensor], inputs: tuple[Any, ...], device: str) -> float:
    """Fastest of up to twenty calls within half a second; the minimum is least affected by other processes."""
    times: list[float] = []
    while len(times) < 20 and sum(times) < 500:
        begin = time.perf_counter()
        call(*inputs)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    return min(times)


def measure(work: Work, device: str) -> dict[str, Any]:
    """Compare and time all versions at both sizes."""
    result: dict[str, Any] = {"name": work.name, "size": work.size}
    for label, n in (("small", work.small), ("large", work.large)):
        inputs = work.inputs(n)
        compare(work, inputs, loops=label == "small")
        calls = versions(work, loops=label == "small")
        times = {name: milliseconds(call, inputs, device) for name, call in calls.items()}
        result[label] = {"n": n, "ms": {name: round(time_ms, 4) for name, time_ms in times.items()}}
    return result


def short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Rows with name, size, times in milliseconds, and the speedup of each version over the previous one."""
    lines = []
    for row in rows:
        for label in ("small", "large"):
            times = row[label]["ms"]
            steps = [
                f"{short(times[slow] / times[fast])}x" if slow in times and fast in times else "—"
                for slow, fast in (("naive", "vectorised"), ("vectorised", "kernel"))
            ]
            shown = [short(times[name]) if name in times else "—" for name in ("naive", "vectorised", "kernel")]
            lines.append([row["name"], f"{row['size']}, n = {row[label]['n']}", *shown, *steps])
    return lines


COLUMNS = ("work", "size", "loops, ms", "tensors, ms", "kernel, ms", "loops / tensors", "tensors / kernel")


def plot(record: dict[str, Any]) -> Any:
    """Bar charts of both sizes on a logarithmic axis."""
    import matplotlib.pyplot as plt

    colors = {"naive": "#8a94a0", "vectorised": "#e07b39", "kernel": "#1f5fa8"}
    titles = {"small": "small size: all versions", "large": "realistic size: without loops"}
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True)
    for axes, (label, title) in zip(panels, titles.items(), strict=True):
        for position, row in enumerate(record["rows"]):
            for offset, (name, color) in zip((-0.27, 0.0, 0.27), colors.items(), strict=True):
                if name in row[label]["ms"]:
                    time_ms = row[label]["ms"][name]
                    axes.barh(position + offset, time_ms, 0.25, color=color, label=name if position == 0 else None)
                    axes.text(time_ms * 1.15, position + offset, short(time_ms), va="center", fontsize=7.5)
        axes.set(xscale="log", title=title, xlabel="milliseconds, logarithmic", xlim=(3e-3, 3e3))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(record["rows"])), [row["name"] for row in record["rows"]])
    panels[0].invert_yaxis()
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="lower left", ncols=3, frameon=False)
    figure.text(0.98, 0.03, f"torch {record['machine']['torch']}, {record['machine']['where']}", ha="right", fontsize=9)
    return figure


def main() -> None:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    parser = argparse.ArgumentParser(description="Compare and time loops, tensor operations and kernels.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="path of a JSON file for the results")
    options = parser.parse_args()
    torch.manual_seed(0)
    console = Console(width=None if sys.stdout.isatty() else 140)
    with Progress(console=console, transient=True) as progress:
        every = progress.track(works(options.device), description="measuring")
        rows = [measure(work, options.device) for work in every]
    gpu = options.device == "cuda"
    threads = torch.get_num_threads()
    where = torch.cuda.get_device_name() if gpu else f"{threads} CPU thread{'s' * (threads > 1)}"
    machine = {"torch": torch.__version__, "python": platform.python_version(), "where": where}
    machine |= {"pointgrad": pointgrad.__version__, "date": time.strftime("%Y-%m-%d")}
    record = {"machine": machine, "rows": rows}
    shown = Table(title=f"milliseconds on {where}, torch {torch.__version__}; all versions agree")
    for number, column in enumerate(COLUMNS):
        shown.add_column(column, justify="left" if number < 2 else "right")
    for line in table(rows):
        shown.add_row(*line)
    console.print(shown)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
        console.print(f"wrote {options.out}")
    if importlib.util.find_spec("matplotlib") is None:
        console.print("no figure: matplotlib is not installed")
        return
    figure = Path("out/vectorisation.png")
    figure.parent.mkdir(exist_ok=True)
    plot(record).savefig(figure, dpi=130)
    console.print(f"wrote {figure}")


if __name__ == "__main__":
    main()

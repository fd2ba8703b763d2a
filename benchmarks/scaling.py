"""`python -m benchmarks.scaling [--device cpu|cuda] --out results.json`: how cost grows with the number of points.

Searches for all points of one uniform cloud, index built anew, and farthest points: a sixteenth of it, at most
4096. A contestant whose last time was over its limit is not asked again.
"""

import argparse
import functools
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import pointgrad
from benchmarks import harness

SIZES = (1_000, 4_000, 16_000, 64_000, 250_000, 1_000_000, 4_000_000)
LIMIT_MS = {"cpu": 4_000, "cuda": 1_000}

Contestants = dict[str, Callable[[Tensor], object]]


def radius(points: Tensor) -> float:
    """Such that a ball holds 32 points on average."""
    return (32 / (4.19 * len(points))) ** (1 / 3)


def contestants(device: str) -> dict[str, Contestants]:
    work: dict[str, Contestants] = {
        "k nearest, k 16": {"pointgrad": lambda p: pointgrad.knn(p, 16)},
        "ball, k 32": {"pointgrad": lambda p: pointgrad.ball_query(p, radius(p), 32)},
        "farthest points, N / 16": {
            "pointgrad": lambda p: pointgrad.farthest_point_sampling(p, min(len(p) // 16, 4096))
        },
    }
    if device == "cuda":
        work["k nearest, k 16"]["cdist + topk"] = lambda p: torch.cdist(p, p).topk(16, largest=False)
        return work
    import fpsample
    import pykdtree.kdtree
    from scipy.spatial import cKDTree

    threads = torch.get_num_threads()
    work["k nearest, k 16"] |= {
        "pykdtree": lambda p: pykdtree.kdtree.KDTree(p.numpy()).query(p.numpy(), 16),
        "scipy": lambda p: cKDTree(p.numpy()).query(p.numpy(), 16, workers=threads),
    }
    work["ball, k 32"]["scipy"] = lambda p: cKDTree(p.numpy()).query_ball_point(p.numpy(), radius(p), workers=threads)
    work["farthest points, N / 16"]["fpsample"] = lambda p: fpsample.bucket_fps_kdline_sampling(
        p.numpy(), min(len(p) // 16, 4096), h=7, start_idx=0
    )
    return work


def measure(device: str) -> dict[str, dict[str, dict[int, float]]]:
    clock = harness._gpu_ms if device == "cuda" else harness._cpu_ms
    results: dict[str, dict[str, dict[int, float]]] = {}
    for work, callers in contestants(device).items():
        results[work] = {name: {} for name in callers}
        for size in SIZES:
            points = torch.rand(size, 3, device=device)
            for name, call in callers.items():
                last = list(results[work][name].values())[-1:]
                # Growing with the square, the next size takes sixteen times as long.
                if (last and last[0] * 16 > LIMIT_MS[device] * 8) or (name == "cdist + topk" and size > 64_000):
                    continue
                call(points)
                rounds = 9 if size < 250_000 else 3
                times = [clock(functools.partial(call, points)) for _ in range(rounds)]
                results[work][name][size] = statistics.median(times)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.scaling", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    results = measure(options.device)
    table = Table("work", "contestant", *(f"{size:,}" for size in SIZES), title="median milliseconds against N")
    for work, callers in results.items():
        for name, times in callers.items():
            table.add_row(work, name, *(f"{times[size]:.3g}" if size in times else "" for size in SIZES))
    Console(width=150).print(table)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": harness.machine(options.device), "ms": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Latency of PointNet++ on one cloud of 1024 points.

    python -m benchmarks.latency --device cuda --out results.json

For such a small input, launching the kernels from Python takes longer than running them on a GPU. The program compares
eager calls, the compiled network, CUDA graphs recorded by `torch.compile`, and a CUDA graph recorded manually. Each
result is first checked against the eager one. Times are host times, from the call to the finished result. A profile
lists the longest kernels.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from pointgrad import models
from pointgrad.bench import clocks, write
from pointgrad.bench.machine import machine

ROUNDS = 100
PROFILED = 10


def milliseconds(call: Callable[[], Any], wait: Callable[[], None]) -> dict[str, float]:
    """Percentiles of the host time of a call, after ten calls to warm up."""
    for _ in range(10):
        call()
    times = []
    for _ in range(ROUNDS):
        wait()
        begin = time.perf_counter()
        call()
        wait()
        times.append((time.perf_counter() - begin) * 1e3)
    return clocks.summary(times)


def profiled(call: Callable[[], Any], wait: Callable[[], None]) -> dict[str, Any]:
    """Kernels per call, the time the device is busy, and the longest kernels, in microseconds."""
    wait()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as record:
        for _ in range(PROFILED):
            call()
        wait()
    rows = [(row.key, row.count / PROFILED, row.self_device_time_total / PROFILED) for row in record.key_averages()]
    rows = sorted((row for row in rows if row[2] > 0), key=lambda row: -row[2])
    return {
        "kernels": round(sum(count for _, count, _ in rows)),
        "busy_us": round(sum(us for *_, us in rows), 1),
        "longest": [{"name": name[:100], "calls": count, "us": round(us, 1)} for name, count, us in rows[:15]],
    }


def record_graph(model: torch.nn.Module, points: Tensor) -> Callable[[], Tensor]:
    """Record the network as one CUDA graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model(points)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = model(points)

    def replay() -> Tensor:
        graph.replay()
        return logits

    return replay


def implementations(model: torch.nn.Module, points: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Eager, compiled and graph calls of the network, by name."""
    compiled = torch.compile(model, fullgraph=True)
    calls = {"eager": lambda: model(points), "compiled": lambda: compiled(points)}
    if points.is_cuda:
        torch._dynamo.reset()
        with_graphs = torch.compile(model, fullgraph=True, mode="reduce-overhead")
        calls["compiled, with CUDA graphs"] = lambda: with_graphs(points)
        calls["CUDA graph"] = record_graph(model, points)
    return calls


@torch.inference_mode()
def measure(device: str) -> dict[str, Any]:
    """Check and time all implementations."""
    torch.manual_seed(0)
    model = models.pointnet2(task="classification", classes=40).to(device).eval()
    points = torch.rand(1, 1024, 3, device=device)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    expected, results = model(points).clone(), {}
    for name, call in implementations(model, points).items():
        error = (call() - expected).abs().max().item()
        assert error < 1e-5, f"{name}: logits differ by {error}"
        results[name] = {"ms": milliseconds(call, wait)}
        if device == "cuda" and name in ("eager", "CUDA graph"):
            results[name] |= profiled(call, wait)
    for result in results.values():
        result["times_faster_than_eager"] = results["eager"]["ms"]["median"] / result["ms"]["median"]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.latency",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device to measure on")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the results")
    options = parser.parse_args()
    results = measure(options.device)
    table = Table("PointNet++, 1 x 1024", "p10 ms", "median ms", "p90 ms", "times faster", "kernels", "busy us")
    for name, result in results.items():
        times = (f"{result['ms'][rank]:.3f}" for rank in ("p10", "median", "p90"))
        ratio = f"{result['times_faster_than_eager']:.2f}"
        table.add_row(name, *times, ratio, *(str(result.get(key, "")) for key in ("kernels", "busy_us")))
    Console(width=120).print(table)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    record = {"machine": machine(options.device), "network": "PointNet++ SSG, 1 x 1024 points", "results": results}
    write(record, options.out)


if __name__ == "__main__":
    main()

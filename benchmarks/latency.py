"""`python -m benchmarks.latency [--device cpu|cuda] --out results.json`: PointNet++ on one cloud of 1024 points.

So small an input takes a GPU less time than Python needs to launch its kernels. Compared are plain calls, the compiled
network, and CUDA graphs: those that `torch.compile` records, and one recorded by hand. Each is checked against the
plain call first; times are of the host, from the call to the finished result. A profile shows where the time goes.
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
    """Kernels per call, how long the device is busy, and the longest of them in microseconds."""
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


def recorded(model: torch.nn.Module, points: Tensor) -> Callable[[], Tensor]:
    """The network as one CUDA graph."""
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


def contestants(model: torch.nn.Module, points: Tensor) -> dict[str, Callable[[], Tensor]]:
    compiled = torch.compile(model, fullgraph=True)
    calls = {"eager": lambda: model(points), "compiled": lambda: compiled(points)}
    if points.is_cuda:
        torch._dynamo.reset()
        with_graphs = torch.compile(model, fullgraph=True, mode="reduce-overhead")
        calls["compiled, with CUDA graphs"] = lambda: with_graphs(points)
        calls["CUDA graph"] = recorded(model, points)
    return calls


@torch.inference_mode()
def measure(device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model = models.pointnet2(task="classification", classes=40).to(device).eval()
    points = torch.rand(1, 1024, 3, device=device)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    expected, results = model(points).clone(), {}
    for name, call in contestants(model, points).items():
        error = (call() - expected).abs().max().item()
        assert error < 1e-5, f"{name}: logits differ by {error}"
        results[name] = {"ms": milliseconds(call, wait)}
        if device == "cuda" and name in ("eager", "CUDA graph"):
            results[name] |= profiled(call, wait)
    for result in results.values():
        result["times_faster_than_eager"] = results["eager"]["ms"]["median"] / result["ms"]["median"]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.latency", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, required=True)
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

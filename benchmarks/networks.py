"""`python -m benchmarks.networks [--device cpu|cuda] [--out FILE.json] [--batch 32] [--rounds 7]`

A whole training step (forward, backward, Adam; float32, eager) of PointNet++ SSG on 1024 points and 40 classes, against
the same network in plain PyTorch with the same weights; where the time of a step goes; and a step of every network.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from benchmarks.data import DATA
from benchmarks.plain_pointnet2 import PlainPointNet2
from pointgrad import models
from pointgrad.bench import clocks
from pointgrad.bench.machine import machine

POINTS, CLASSES = 1024, 40


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.networks", description=__doc__.splitlines()[-1])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="where to write the results as JSON")
    parser.add_argument("--batch", type=int, help="clouds of a step; 32 on a GPU, 16 on a CPU")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--skip-others", action="store_true", help="only PointNet++ against plain PyTorch")
    given = parser.parse_args()
    torch.manual_seed(0)
    batch = given.batch or (32 if given.device == "cuda" else 16)
    points, source = clouds(batch)
    points = points.to(given.device)
    labels = torch.randint(CLASSES, (batch,), device=given.device)
    check(points[:4], labels[:4])
    console = Console(width=132)
    asked = 2.0 if given.device == "cuda" else 3.0

    ours = models.pointnet2(classes=CLASSES).to(given.device)
    plain = PlainPointNet2(CLASSES).to(given.device)
    steps = {"pointgrad": step(ours, points, labels), "plain PyTorch": step(plain, points, labels)}
    times = measure(steps, given.device, given.rounds)
    ratio = times["plain PyTorch"]["median"] / times["pointgrad"]["median"]
    console.print(_table(f"PointNet++ SSG, a training step of {batch} x {POINTS} points ({source})", times, batch))
    console.print(f"times faster: {ratio:.2f} (asked: {asked})")
    share, rows = profiled(steps["pointgrad"], given.device)
    console.print(_profile(rows, share))

    others: dict[str, Any] = {}
    if not given.skip_others:
        small = batch if given.device == "cuda" else 2
        for name, options in _others().items():
            network = models.build(**options, classes=CLASSES).to(given.device)
            once = {name: step(network, points[:small], labels[:small])}
            others |= measure(once, given.device, 3 if given.device == "cpu" else given.rounds)
            del network, once
        console.print(_table(f"a training step of {small} x {POINTS} points, classification", others, small))
    if given.out is not None:
        record = {
            "machine": machine(given.device),
            "pointnet2_ssg": {"batch": batch, "points": POINTS, "data": source, "ms": times, "ratio": ratio},
            "asked": asked,
            "profile": {"share_of_pointgrad_operators": share, "rows": rows},
            "others": {"batch": small, "ms": others} if others else None,
        }  # fmt: skip
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(record, indent=1) + "\n")
        console.print(f"written to {given.out}")


def clouds(batch: int) -> tuple[Tensor, str]:
    """(B, 1024, 3) in the unit sphere: shapes of ModelNet40 with the usual jitter, or ellipsoids without them."""
    path = DATA / "classification" / "modelnet40_train_9520x1024_q8.npz"
    if path.exists():
        with numpy.load(path) as file:
            grid = numpy.cumsum(file["delta"][:, :: 9520 // batch][:, :batch], axis=2, dtype=numpy.uint8)
        points = torch.from_numpy(grid.transpose(1, 2, 0).astype(numpy.float32)) / 127.5 - 1
        order = torch.rand(batch, POINTS).argsort(1)
        points = points.gather(1, order[..., None].expand(-1, -1, 3))
        return points + 0.01 * torch.randn_like(points), "ModelNet40"
    sphere = functional.normalize(torch.randn(batch, POINTS, 3), dim=-1)
    return sphere * (0.3 + 0.7 * torch.rand(batch, 1, 3)), "ellipsoids"


def check(points: Tensor, labels: Tensor) -> None:
    """Both networks give the same logits and gradients, in training and evaluation. In float64, so that no rounding
    decides whether a point at the edge of a ball is inside."""
    ours = models.pointnet2(classes=CLASSES, dropout=0.0).to(points.device).double()
    plain = PlainPointNet2(CLASSES).to(points.device).double()
    plain.dropout.p = 0.0
    for module in ours.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.weight, -1, 1)
    plain.take(ours)
    gradients = []
    for network in (ours, plain):
        functional.cross_entropy(network(points.double()), labels).backward()
        gradients.append(network.down[0].mlps[0].linears[0] if network is ours else network.down[0].convs[0])
    received, expected = (layer.weight.grad.flatten() for layer in gradients)
    torch.testing.assert_close(received, expected, rtol=1e-6, atol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(ours(points.double()), plain(points.double()), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(ours.eval()(points.double()), plain.eval()(points.double()), rtol=1e-8, atol=1e-8)


def step(network: nn.Module, points: Tensor, labels: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)

    def call() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(network(points), labels).backward()
        optimizer.step()

    return call


def measure(steps: dict[str, Callable[[], None]], device: str, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each, by turns; the machine's clock, so that the host's part counts."""
    for call in steps.values():
        call()
        call()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, call in steps.items():
            _wait(device)
            begin = time.perf_counter()
            call()
            _wait(device)
            times[name].append((time.perf_counter() - begin) * 1e3)
    return {name: clocks.summary(values) for name, values in times.items()}


def profiled(call: Callable[[], None], device: str) -> tuple[float, list[dict[str, Any]]]:
    """The share of pointgrad's operators in a step, and what takes most of it. On a CPU by one thread: the
    profiler does not see others."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if device == "cpu" else threads)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with profile(activities=activities) as record:
        call()
        _wait(device)
    torch.set_num_threads(threads)

    def own(row: Any) -> float:
        return row.self_device_time_total if device == "cuda" else row.self_cpu_time_total

    # On a GPU operators and kernels are rows of their own: kernels are left out, or they would count twice.
    averages = [row for row in record.key_averages() if device == "cpu" or row.device_type.name == "CPU"]
    total = sum(own(row) for row in averages)
    pointgrad = sum(own(row) for row in averages if row.key.startswith("pointgrad::"))
    rows = sorted(averages, key=own, reverse=True)[:14]
    return pointgrad / total, [
        {"operator": row.key, "ms": own(row) / 1e3, "share": own(row) / total, "calls": row.count} for row in rows
    ]


def _others() -> dict[str, dict[str, Any]]:
    found = {name: {"name": name} for name in models.names()}
    found["pointnet2 msg"] = {"name": "pointnet2", "variant": "msg"}
    found["pointnext b"] = {"name": "pointnext", "variant": "b"}
    return found


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _table(title: str, times: dict[str, dict[str, float]], batch: int) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("", "ms/step", "10 %", "90 %", "clouds/s"):
        table.add_column(column, justify="left" if not column else "right")
    for name, ms in times.items():
        values = (ms["median"], ms["p10"], ms["p90"], batch / ms["median"] * 1e3)
        table.add_row(name, *(f"{value:.4g}" for value in values))
    return table


def _profile(rows: list[dict[str, Any]], share: float) -> Table:
    table = Table(title=f"where a step goes; pointgrad operators: {share:.1%}", title_justify="left")
    for column in ("operator", "ms", "share", "calls"):
        table.add_column(column, justify="left" if column == "operator" else "right")
    for row in rows:
        table.add_row(row["operator"], f"{row['ms']:.3g}", f"{row['share']:.1%}", str(row["calls"]))
    return table


if __name__ == "__main__":
    main()

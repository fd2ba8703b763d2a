"""Time of a training step: PointNet++ compared with plain PyTorch, its profile, and all other networks.

    python -m benchmarks.networks --device cuda --out results.json

A step is forward, backward and Adam, in float32 and eager mode, on clouds of 1024 points with 40 classes. The network
in plain PyTorch has the same weights as ours, and its results are checked first.
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
from benchmarks.targets import TRAINING_STEP
from pointgrad import models
from pointgrad.bench import clocks
from pointgrad.bench.machine import machine

POINTS, CLASSES = 1024, 40


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.networks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device to measure on")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    parser.add_argument("--batch", type=int, help="clouds per step, by default 32 on a GPU and 16 on a CPU")
    parser.add_argument("--rounds", type=int, default=7, help="timed steps of each network")
    parser.add_argument("--skip-others", action="store_true", help="only compare PointNet++ with plain PyTorch")
    given = parser.parse_args()
    torch.manual_seed(0)
    batch = given.batch or (32 if given.device == "cuda" else 16)
    points, source = clouds(batch)
    points = points.to(given.device)
    labels = torch.randint(CLASSES, (batch,), device=given.device)
    check(points[:4], labels[:4])
    console = Console(width=132)
    target = TRAINING_STEP[given.device]

    ours = models.pointnet2(classes=CLASSES).to(given.device)
    plain = PlainPointNet2(CLASSES).to(given.device)
    steps = {"pointgrad": step(ours, points, labels), "plain PyTorch": step(plain, points, labels)}
    times = measure(steps, given.device, given.rounds)
    ratio = times["plain PyTorch"]["median"] / times["pointgrad"]["median"]
    console.print(_table(f"PointNet++ SSG, training step of {batch} x {POINTS} points ({source})", times, batch))
    console.print(f"times faster: {ratio:.2f} (target: {target})")
    share, rows = profiled(steps["pointgrad"], given.device)
    console.print(_profile_table(rows, share))

    others: dict[str, Any] = {}
    if not given.skip_others:
        small = batch if given.device == "cuda" else 2
        for name, options in _other_networks().items():
            network = models.build(**options, classes=CLASSES).to(given.device)
            once = {name: step(network, points[:small], labels[:small])}
            others |= measure(once, given.device, 3 if given.device == "cpu" else given.rounds)
            del network, once
        console.print(_table(f"training step of {small} x {POINTS} points, classification", others, small))
    if given.out is not None:
        record = {
            "machine": machine(given.device),
            "pointnet2_ssg": {"batch": batch, "points": POINTS, "data": source, "ms": times, "ratio": ratio},
            "target": target,
            "profile": {"share_of_pointgrad_operators": share, "rows": rows},
            "others": {"batch": small, "ms": others} if others else None,
        }  # fmt: skip
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(record, indent=1) + "\n")
        console.print(f"written to {given.out}")


def clouds(batch: int) -> tuple[Tensor, str]:
    """Clouds (B, 1024, 3) in the unit sphere and their source: ModelNet40 with jitter if available, else ellipsoids."""
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
    """Check that both networks have the same logits and gradients, in training and evaluation mode.

    Uses float64, so that rounding does not decide whether a point on the boundary of a ball is inside.
    """
    ours = models.pointnet2(classes=CLASSES, dropout=0.0).to(points.device).double()
    plain = PlainPointNet2(CLASSES).to(points.device).double()
    plain.dropout.p = 0.0
    for module in ours.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.weight, -1, 1)
    plain.load(ours)
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
    """A call that runs one training step."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)

    def call() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(network(points), labels).backward()
        optimizer.step()

    return call


def measure(steps: dict[str, Callable[[], None]], device: str, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each step, timed alternately. Wall-clock time, so that the time of the host counts."""
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
    """Share of pointgrad's operators in the time of a step, and the operators that take most time.

    On a CPU the step runs with one thread, since the profiler does not record other threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if device == "cpu" else threads)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with profile(activities=activities) as record:
        call()
        _wait(device)
    torch.set_num_threads(threads)

    def own(row: Any) -> float:
        return row.self_device_time_total if device == "cuda" else row.self_cpu_time_total

    # On a GPU the profiler has separate rows for operators and kernels. Kernels are left out to count time once.
    averages = [row for row in record.key_averages() if device == "cpu" or row.device_type.name == "CPU"]
    total = sum(own(row) for row in averages)
    pointgrad = sum(own(row) for row in averages if row.key.startswith("pointgrad::"))
    rows = sorted(averages, key=own, reverse=True)[:14]
    return pointgrad / total, [
        {"operator": row.key, "ms": own(row) / 1e3, "share": own(row) / total, "calls": row.count} for row in rows
    ]


def _other_networks() -> dict[str, dict[str, Any]]:
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


def _profile_table(rows: list[dict[str, Any]], share: float) -> Table:
    table = Table(title=f"time of a step by operator; pointgrad operators: {share:.1%}", title_justify="left")
    for column in ("operator", "ms", "share", "calls"):
        table.add_column(column, justify="left" if column == "operator" else "right")
    for row in rows:
        table.add_row(row["operator"], f"{row['ms']:.3g}", f"{row['share']:.1%}", str(row["calls"]))
    return table


if __name__ == "__main__":
    main()

"""Attention within patches of 1024 points against `scaled_dot_product_attention` of gathered copies, on a GPU.

    python -m benchmarks.patches --out benchmarks/results/patches_gpu.json

Copies are those that networks without a fused operator make: rows of queries, keys and values by patch. The order is
random within blocks of 4096 consecutive points, as along a space-filling curve of a stored scan. Results and gradients
are compared in float32 first. Peak memory is counted beyond the inputs.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from pointgrad import patch_attention
from pointgrad.bench import clocks, forms, write
from pointgrad.bench.comparison import Passes
from pointgrad.bench.machine import machine
from pointgrad.catalog.patches import gathered_sdpa

PATCH = 1024
HEADS = ((64, 16), (128, 32), (512, 64))  # channels, head size
SIZES = [(points, *heads) for points in (100_000, 1_000_000) for heads in HEADS]
PASSES: tuple[Passes, ...] = ("forward", "forward + backward")
Given = dict[str, Tensor]


def inputs(points: int, channels: int, depth: int, dtype: torch.dtype) -> Given:
    """Queries, keys and values (N, H, D), slices of one tensor as layers make them, and the order (N,)."""
    torch.manual_seed(0)
    parts = torch.randn(points, 3, channels // depth, depth, device="cuda", dtype=dtype).unbind(1)
    block = torch.arange(points, device="cuda") // 4096
    order = (block + torch.rand(points, device="cuda", dtype=torch.float64)).argsort()
    return {**dict(zip(("query", "key", "value"), parts, strict=True)), "order": order}


def check(channels: int, depth: int) -> None:
    given = inputs(5000, channels, depth, torch.float32)
    sources = [given[name].requires_grad_() for name in ("query", "key", "value")]
    upstream = torch.randn_like(given["query"].contiguous())
    results = []
    for call in (patch_attention, gathered_sdpa):
        out = call(**given, patch=PATCH)
        results.append((out, *torch.autograd.grad(out, sources, upstream)))
    for received, expected in zip(*results, strict=True):
        torch.testing.assert_close(received, expected, rtol=1e-3, atol=1e-4)


def measure(points: int, channels: int, depth: int, dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    given = inputs(points, channels, depth, dtype)
    upstream = torch.randn_like(given["query"].contiguous())
    found: dict[str, Any] = {
        "points": points, "channels": channels, "head size": depth, "dtype": str(dtype).removeprefix("torch.")
    }  # fmt: skip
    calls: dict[str, Callable[..., Tensor]] = {"ours": patch_attention, "copies": gathered_sdpa}
    for passes in PASSES:
        works = {}
        for name, call in calls.items():
            works[name] = forms.timed_call(
                passes, partial(call, patch=PATCH), given, ("query", "key", "value"), upstream
            )
            works[name]()
        times: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(rounds):
            for name, work in works.items():
                times[name].append(clocks.milliseconds(work, "cuda"))
        for name, work in works.items():
            found[f"{name} {passes}"] = {**clocks.summary(times[name]), "peak_MiB": clocks.peak_mib(work, "cuda")}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.patches", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="timed calls of each measurement")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    given = parser.parse_args()
    for channels, depth in HEADS:
        check(channels, depth)
    cases = [(*size, torch.bfloat16) for size in SIZES] + [(100_000, 128, 32, torch.float32)]
    rows = []
    for case in cases:
        rows.append(measure(*case, given.rounds))
        torch.cuda.empty_cache()
    if given.out is not None:
        write({"machine": machine("cuda"), "patch": PATCH, "rows": rows}, given.out)
    columns = [f"{name} {passes}" for passes in PASSES for name in ("ours", "copies")]
    table = Table("points, channels, head size", *columns)
    for found in rows:
        cells = [found[column] for column in columns]
        label = f"{found['points']:,}, {found['channels']}, {found['head size']} {found['dtype']}"
        table.add_row(label, *(f"{cell['median']:.3g} ms, {cell['peak_MiB']:.0f} MiB" for cell in cells))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()

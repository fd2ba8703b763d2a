"""Trilinear interpolation in steps, from plain PyTorch over a first CUDA kernel to one that is limited by memory.

    python -m benchmarks.cuda_steps --out benchmarks/results/cuda_steps_gpu.json

It needs a CUDA GPU, and `nvcc` and a C++ compiler, with which it builds the kernels in `cuda_steps.cu` and the package
that `pointgrad new-operator` writes. Each form is first checked against the reference, forward and backward. Times are
medians between CUDA events with cold caches, and all forms take turns. docs/cpp_cuda_by_hand.md explains the steps.
"""

import argparse
import importlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils import cpp_extension

import pointgrad
from pointgrad import scaffold
from pointgrad.bench import clocks, write
from pointgrad.bench.machine import machine

ROUNDS = 21
SOURCE = Path(__file__).with_suffix(".cu")
PACKAGE = "stepwise_cell"

Forward = Callable[[Tensor, Tensor], Tensor]


def slices(corners: Tensor, points: Tensor) -> Tensor:
    """Plain PyTorch, one corner at a time."""
    u, v, w = ((points + 1) / 2).unsqueeze(-1).unbind(1)  # (N, 1) each
    a, b, c, d = (1 - u) * (1 - v), (1 - u) * v, u * (1 - v), u * v
    low = a * corners[:, 0] + b * corners[:, 2] + c * corners[:, 4] + d * corners[:, 6]
    high = a * corners[:, 1] + b * corners[:, 3] + c * corners[:, 5] + d * corners[:, 7]
    return (1 - w) * low + w * high


def weights(corners: Tensor, points: Tensor) -> Tensor:
    """Plain PyTorch, all corners at once."""
    share = (points + 1) / 2
    x, y, z = torch.stack([1 - share, share], -1).unbind(1)  # (N, 2) each
    weight = (x[:, :, None, None] * y[:, None, :, None] * z[:, None, None, :]).flatten(1)
    return torch.bmm(weight.unsqueeze(1), corners).squeeze(1)


def build() -> tuple[Any, Forward]:
    """The kernels of the steps, and the operator of a generated package."""
    steps = cpp_extension.load("cuda_steps", [str(SOURCE)], extra_cuda_cflags=["-O3"])
    folder = Path(tempfile.mkdtemp(prefix="cuda_steps_"))
    scaffold.write(folder, scaffold.files(PACKAGE, ["cuda"]))
    cpp_extension.load(
        "_C",
        [str(folder / "csrc" / name) for name in ("bindings.cpp", "cuda.cu")],
        extra_cflags=["-O3", "-DWITH_CUDA"],
        extra_cuda_cflags=["-O3"],
        build_directory=str(folder / "src" / PACKAGE),
        is_python_module=False,
    )
    sys.path.insert(0, str(folder / "src"))
    package = importlib.import_module(PACKAGE)
    return steps, getattr(package, PACKAGE)


def step_function(steps: Any, step: int) -> Forward:
    """One of the kernels as a differentiable function of the corners."""

    class Step(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, corners: Tensor, points: Tensor) -> Tensor:
            ctx.save_for_backward(points)
            return steps.forward(corners, points, step)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            return steps.backward(grad, *ctx.saved_tensors, step), None

    return Step.apply


def forms(steps: Any, generated: Forward) -> dict[str, Forward]:
    """All forms by name, from slow to fast."""
    return {
        "PyTorch, eight slices": slices,
        "PyTorch, weights": weights,
        "1. a thread per number": step_function(steps, 1),
        "2. coalesced": step_function(steps, 2),
        "3. four numbers per instruction": step_function(steps, 3),
        "4. generated operator": generated,
        "pointgrad.trilinear": pointgrad.trilinear,
    }


def check(name: str, form: Forward) -> None:
    """Compare a form with float64 on few points; raises AssertionError if it is wrong."""
    corners, points = make_inputs(1000, 64)
    exact = corners.detach().double().requires_grad_()
    out, expected = form(corners, points), weights(exact, points.double())
    upstream = torch.randn_like(out)
    (received,) = torch.autograd.grad(out, corners, upstream)
    (right,) = torch.autograd.grad(expected, exact, upstream.double())
    for what, actual, desired in (("result", out, expected), ("gradient", received, right)):
        # TF32 is off, so that each is a sum of at most eight products in float32.
        error = (actual - desired).abs().max().item()
        assert error < 1e-5, f"{name}: the {what} differs by {error}"


def make_inputs(count: int, features: int) -> tuple[Tensor, Tensor]:
    corners = torch.randn(count, 8, features, device="cuda", requires_grad=True)
    return corners, torch.rand(count, 3, device="cuda") * 2 - 1


def calls(form: Forward, corners: Tensor, points: Tensor) -> dict[str, Callable[[], object]]:
    """Forward without a graph, and backward to the corners."""
    out = form(corners, points)
    upstream = torch.randn_like(out)
    detached = corners.detach()
    return {
        "forward": lambda: form(detached, points),
        "backward": lambda: torch.autograd.grad(out, corners, upstream, retain_graph=True),
    }


def measure(count: int, features: int) -> dict[str, Any]:
    """Check and time all forms, and both gradients where a form has them."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    found = forms(*build())
    for name, form in found.items():
        check(name, form)
    corners, points = make_inputs(count, features)
    timed = {name: calls(form, corners, points) for name, form in found.items()}
    with_points = points.clone().requires_grad_()
    for name in ("4. generated operator", "pointgrad.trilinear"):
        out = found[name](corners, with_points)
        upstream = torch.randn_like(out)

        def both(out: Tensor = out, upstream: Tensor = upstream) -> object:
            return torch.autograd.grad(out, (corners, with_points), upstream, retain_graph=True)

        timed[name]["backward, both"] = both
    times: dict[str, dict[str, list[float]]] = {name: {what: [] for what in each} for name, each in timed.items()}
    for round_ in range(ROUNDS + 2):
        for name, each in timed.items():
            for what, call in each.items():
                elapsed = clocks.milliseconds(call, "cuda")
                if round_ >= 2:  # the first calls allocate memory
                    times[name][what].append(elapsed)
    moved = 4 * (corners.numel() + points.numel() + count * features)
    floors = {"forward": moved, "backward": moved, "backward, both": moved + 4 * (corners.numel() + points.numel())}
    return {
        "floor_ms": {what: round(clocks.copy_ms(size, "cuda"), 5) for what, size in floors.items()},
        "forms": {name: {what: clocks.summary(ms) for what, ms in each.items()} for name, each in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cuda_steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--points", type=int, default=65536)
    parser.add_argument("--features", type=int, default=256, help="a multiple of 4")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the results")
    options = parser.parse_args()
    if not torch.cuda.is_available() or cpp_extension.CUDA_HOME is None:
        missing = "a CUDA toolkit with nvcc" if torch.cuda.is_available() else "a CUDA GPU"
        parser.exit(2, f"python -m benchmarks.cuda_steps: needs {missing}\n")
    results = measure(options.points, options.features)
    table = Table(f"{options.points} x 8 x {options.features}, ms", "forward", "backward", "backward, both")
    for name, each in {**results["forms"], "copy of as many bytes": results["floor_ms"]}.items():
        cells = [each.get(what) for what in ("forward", "backward", "backward, both")]
        table.add_row(
            name, *("" if ms is None else f"{ms if isinstance(ms, float) else ms['median']:.3f}" for ms in cells)
        )
    Console(width=120).print(table)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    record = {"machine": machine("cuda"), "points": options.points, "features": options.features, **results}
    write(record, options.out)


if __name__ == "__main__":
    main()

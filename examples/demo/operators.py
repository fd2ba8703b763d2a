"""Every operator on this machine: agreement with the reference, gradient check, time beside plain PyTorch.

    python examples/demo/operators.py

Runs on the CPU, and on the GPU if there is one. The inputs come from the catalogue; nothing is downloaded.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import pointgrad
from pointgrad.catalog import OPERATORS, Case, Make, OpInfo, first_float
from pointgrad.catalog.magnitudes import tensors


def agreement(op: OpInfo, arguments: dict[str, Any]) -> str:
    """Compare the result with the reference's."""

    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        return tensors(op.call(**arguments))

    received = run()
    with pointgrad.backend("reference"):
        expected = run()
    pairs = list(zip(received, expected, strict=True))
    if all(torch.equal(actual, desired) for actual, desired in pairs):
        return "[green]identical[/]"
    error = max(((actual - desired).abs().max() / desired.abs().max()).item() for actual, desired in pairs)
    return f"[{'green' if error < 1e-5 else 'red'}]within {error:.0e}[/]"


def gradient(case: Case, device: str) -> str:
    """Check first and second derivatives of a small call by finite differences in float64."""
    arguments = case.sample.build(Make(torch.float64, device))
    sources = case.op.sources(arguments)
    if not sources:
        return "no gradient"

    def call(*values: torch.Tensor) -> torch.Tensor:
        output = first_float(case({**arguments, **dict(zip(sources, values, strict=True))}))
        return output[output.isfinite()]  # infinite distances are padding

    values = tuple(sources.values())
    passed = torch.autograd.gradcheck(call, values) and torch.autograd.gradgradcheck(call, values)
    return "[green]first and second[/]" if passed else "[red]wrong[/]"


def milliseconds(call: Callable[..., Any], op: OpInfo, arguments: dict[str, Any], device: str) -> float:
    """Median time of the call, followed by its backward pass if it has one."""
    sources = op.sources(arguments)

    def once() -> float:
        begin = time.perf_counter()
        result = call(**{**arguments, **sources})
        if sources:
            output = first_float(tensors(result))
            torch.autograd.grad(output, list(sources.values()), torch.ones_like(output))
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e3

    once()
    return statistics.median(once() for _ in range(5))


def main() -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    torch.manual_seed(0)
    operators = [op for op in OPERATORS if op.timing and op.plain]
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
        table = Table(title=f"pointgrad {pointgrad.__version__} on {name}, torch {torch.__version__}")
        for column in ("operator", "work", "reference", "gradient check", "plain PyTorch", "pointgrad", "faster"):
            table.add_column(column, justify="right" if column in ("plain PyTorch", "pointgrad", "faster") else "left")
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("", total=3 * len(operators))
            for op in operators:
                arguments = op.timing.build(Make(device=device))
                progress.update(task, description=f"{op.name}: reference")
                agrees = agreement(op, arguments)
                progress.update(task, advance=1, description=f"{op.name}: gradient")
                checked = gradient(next(op.cases()), device)
                progress.update(task, advance=1, description=f"{op.name}: time")
                ours = milliseconds(op.call, op, arguments, device)
                plain = milliseconds(op.plain, op, arguments, device)
                progress.update(task, advance=1)
                work = op.timing.label + (", and back" if op.differentiable else "")
                ratio = f"[bold]{plain / ours:.1f}x[/]" if plain >= ours else f"{plain / ours:.2f}x"
                table.add_row(op.name, work, agrees, checked, f"{plain:.2f} ms", f"{ours:.2f} ms", ratio)
        console.print(table)


if __name__ == "__main__":
    main()

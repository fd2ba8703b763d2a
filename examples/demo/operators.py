"""Every operator on this machine: agreement with the reference, gradient check, time beside plain PyTorch.

    python examples/demo/operators.py

Runs on the CPU, and on the GPU if there is one. The inputs come from the catalogue; nothing is downloaded.
"""

import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import pointgrad
from pointgrad.bench import operators
from pointgrad.bench.clocks import milliseconds
from pointgrad.bench.comparison import Comparison, Implementation, Setup
from pointgrad.catalog import OPERATORS, Case, Make, OpInfo, first_float
from pointgrad.catalog.magnitudes import tensors


class Fifth(Setup):
    """Sizes for which the reference and the plain forms take less than a second."""

    def size(self, number: int) -> int:
        return number // 5 if number > 4096 else number


def work(op: OpInfo, device: str) -> tuple[str, Comparison]:
    """The first row of the operator's benchmark, or a call without plain forms."""
    for row in operators.operator_rows(op, Fifth(device)):
        return row.name, row.build()
    sample = next((each for each in op.samples if each.large), op.samples[0])
    arguments = (sample.large or sample.build)(Make(device=device))
    return f"sample {sample.name}", Comparison(Implementation(partial(op.call, **arguments)), check=lambda result: None)


def agreement(ours: Implementation) -> str:
    """Compare the result with the reference's."""

    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        return tensors(ours.read(ours.call()))

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


def median(call: Callable[[], Any], device: str) -> float:
    """Median time in milliseconds, after a first call."""
    call()
    return statistics.median(milliseconds(call, device) for _ in range(5))


def main() -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    torch.manual_seed(0)
    described = [op for op in OPERATORS if op.registered]
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
        table = Table(title=f"pointgrad {pointgrad.__version__} on {name}, torch {torch.__version__}")
        for column in ("operator", "work", "reference", "gradient check", "plain PyTorch", "pointgrad", "faster"):
            table.add_column(column, justify="right" if column in ("plain PyTorch", "pointgrad", "faster") else "left")
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("", total=len(described))
            for op in described:
                progress.update(task, advance=1, description=op.name)
                label, comparison = work(op, device)
                agrees, checked = agreement(comparison.ours), gradient(next(op.cases()), device)
                ours = median(comparison.ours.call, device)
                times = ["", f"{ours:.2f} ms"]
                for form in list(comparison.plain.values())[:1]:
                    plain = median(form.call, device)
                    ratio = f"[bold]{plain / ours:.1f}x[/]" if plain >= ours else f"{plain / ours:.2f}x"
                    times = [f"{plain:.2f} ms", f"{ours:.2f} ms", ratio]
                table.add_row(op.name, label, agrees, checked, *times)
        console.print(table)


if __name__ == "__main__":
    main()

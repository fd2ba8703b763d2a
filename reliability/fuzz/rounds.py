"""Many cases of one family in this process, in rounds; a failure is made small by hypothesis and does not end the run."""

import importlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, strategies

from .check import Tally, draw_and_check
from .draw import Draw
from .operators import Arguments, Operator

ROUND = 500  # cases: hypothesis remembers those of a round


def operators(family: str) -> list[Operator]:
    return importlib.import_module(f"{__package__}.{family}").OPERATORS


def prepare() -> None:
    """What a process does before its first case."""
    warnings.simplefilter("error")
    # Triton's interpreter computes with NumPy, which warns of infinity minus infinity where a GPU does not.
    warnings.filterwarnings("ignore", "(invalid value|overflow|divide by zero) encountered", RuntimeWarning)
    warnings.filterwarnings("ignore", "Sparse (CSR|invariant)", UserWarning)
    warnings.filterwarnings("ignore", ".*", hypothesis.errors.HypothesisWarning)


def rounds(
    family: str, cases: int, seed: int, *, device: str = "cpu", backend: str = "cpu", note: Path | None = None
) -> Iterator[dict[str, Any]]:
    """Yields what each round counted and found.

    note: a file that always holds the case that runs: if the process dies, it is the one that did it.
    """
    table, tiny = operators(family), backend == "triton" and device == "cpu"
    file = None if note is None else os.open(note, os.O_RDWR | os.O_CREAT)
    done = number = 0
    while done < cases:
        tally, ran, failed = Tally(), 0, False
        last: dict[str, Any] = {}
        begin = time.perf_counter()

        def about_to(choices: dict[str, Any], arguments: Arguments) -> None:
            last["case"] = {"family": family, "choices": choices, "arguments": described(arguments)}
            if file is not None:
                text = json.dumps({**last["case"], "in_round": ran}).encode()
                os.pwrite(file, text, 0)
                os.ftruncate(file, len(text))

        @hypothesis.seed(seed + number)
        @hypothesis.settings(
            max_examples=min(ROUND, cases - done), database=None, deadline=None, report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @hypothesis.given(strategies.data())
        def one_round(data: Any) -> None:
            nonlocal ran, failed
            draw = Draw(data.conjecture_data.draw, device, tiny)
            try:
                draw_and_check(draw, table, backend, Tally() if failed else tally, about_to)
            except Exception:  # what hypothesis itself stops is none
                failed = True
                raise
            ran += not failed

        found = None
        try:
            one_round()
        except Exception as error:
            found = {**last["case"], "error": f"{type(error).__name__}: {error}", "seed": seed + number}
        counts = {what: dict(counter) for what, counter in tally.counts.items()}
        done, number = done + ran + failed, number + 1
        yield {"cases": ran + failed, "failure": found, "counts": counts, "seconds": time.perf_counter() - begin}
    if file is not None:
        os.close(file)


def replay(case: dict[str, Any], device: str, backend: str) -> None:
    """Runs one case again, from its choices."""
    table, tiny = operators(case["family"]), backend == "triton" and device == "cpu"
    draw_and_check(Draw(case["choices"], device, tiny), table, backend, Tally(), lambda choices, arguments: None)


def described(arguments: Arguments) -> dict[str, str]:
    """For a person: dtypes and shapes."""

    def text(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            kind = str(value.dtype).removeprefix("torch.")
            if value.numel() <= 4 and value.layout == torch.strided and value.device.type != "meta":
                return f"{kind} {value.tolist()}"
            return f"{kind} {tuple(value.shape)}"
        return repr(value)[:60]

    return {name: text(value) for name, value in arguments.items()}


Progress = Callable[[dict[str, Any]], None]

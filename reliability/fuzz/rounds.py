"""Random calls of one family in this process. After each failure, which hypothesis shrinks, a new round begins."""

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

from pointgrad import catalog
from pointgrad.catalog import Draw, OpInfo

from . import FAMILIES, junk, raw
from .check import Tally, draw_and_check
from .spoil import Arguments

CALLS = {"raw": raw.draw_and_check, "junk": junk.draw_and_check}
ROUND = 500  # cases: hypothesis keeps those of a round in memory


def operators(family: str) -> list[OpInfo]:
    """The operators of a family of the catalogue, or `OPERATORS` of another module."""
    if family in FAMILIES:
        return [op for op in catalog.FAMILIES[family] if op.draw]
    return importlib.import_module(family).OPERATORS


def case_of(family: str) -> Callable[..., None]:
    """The function that draws and runs one case: `case(draw, backend, tally, about_to)`."""
    if family in CALLS:
        return CALLS[family]
    table = operators(family)
    return lambda draw, backend, tally, about_to: draw_and_check(draw, table, backend, tally, about_to)


def prepare() -> None:
    """Set up the warnings of this process."""
    warnings.simplefilter("error")
    # Triton's interpreter computes with NumPy, which warns about infinity minus infinity and NaN; a GPU does not.
    of_numpy = "((invalid value|overflow|divide by zero)|All-NaN slice) encountered"
    warnings.filterwarnings("ignore", of_numpy, RuntimeWarning)
    # torch warns when a backward pass is the first to multiply matrices on a GPU.
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS", UserWarning)
    warnings.filterwarnings("ignore", ".*", hypothesis.errors.HypothesisWarning)


def rounds(
    family: str, cases: int, seed: int, *, device: str = "cpu", backend: str = "cpu", note: Path | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the counts and the failure of each round.

    Args:
        note: File that always holds the running case, in case the process crashes.
    """
    file = None if note is None else os.open(note, os.O_RDWR | os.O_CREAT)
    done = number = 0
    while done < cases:
        found = one_round(family, min(ROUND, cases - done), seed + number, device, backend, file)
        done, number = done + found["cases"], number + 1
        yield found
    if file is not None:
        os.close(file)


def one_round(family: str, cases: int, seed: int, device: str, backend: str, file: int | None) -> dict[str, Any]:
    """Run up to this many cases; a failure ends the round after hypothesis has shrunk it."""
    run_case, tally, ran, failed = case_of(family), Tally(), 0, False
    last: dict[str, Any] = {}
    begin = time.perf_counter()

    def about_to(choices: dict[str, Any], arguments: Arguments) -> None:
        last.update(family=family, choices=choices, arguments=described(arguments))
        if file is not None:
            text = json.dumps({**last, "in_round": ran}).encode()
            os.pwrite(file, text, 0)
            os.ftruncate(file, len(text))

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=cases, database=None, deadline=None, report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @hypothesis.given(strategies.data())
    def run_them(data: Any) -> None:
        nonlocal ran, failed

        def choose(low: int, high: int) -> int:
            return data.draw(strategies.integers(low, high))

        draw = Draw(choose, device, interpreted(device, backend))
        try:
            # Calls after a failure shrink it and are not counted.
            run_case(draw, backend, Tally() if failed else tally, about_to)
        except Exception:  # hypothesis gives up a case with a BaseException
            failed = True
            raise
        ran += not failed

    failure = None
    try:
        run_them()
    except Exception as error:
        failure = {**last, "error": f"{type(error).__name__}: {error}", "seed": seed}
    counts = {what: dict(counter) for what, counter in tally.counts.items()}
    return {"cases": ran + failed, "failure": failure, "counts": counts, "seconds": time.perf_counter() - begin}


def interpreted(device: str, backend: str) -> bool:
    """Whether Triton's slow interpreter runs the kernels; cases are small then."""
    return backend == "triton" and device == "cpu"


def replay(case: dict[str, Any], device: str, backend: str) -> None:
    """Run one case again from its choices."""
    draw = Draw(case["choices"], device, interpreted(device, backend))
    case_of(case["family"])(draw, backend, Tally(), lambda choices, arguments: None)


def described(arguments: Arguments) -> dict[str, str]:
    """Dtypes and shapes, to be read."""

    def text(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            kind = str(value.dtype).removeprefix("torch.")
            if value.is_nested or value.is_quantized:
                return f"{kind} of another kind"
            if value.numel() <= 4 and value.layout == torch.strided and value.device.type != "meta":
                return f"{kind} {value.tolist()}"
            return f"{kind} {tuple(value.shape)}"
        return repr(value)[:60]

    return {name: text(value) for name, value in arguments.items()}

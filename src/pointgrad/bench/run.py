"""Runs families of the benchmark and writes the results."""

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from pointgrad.inspect.audit import Subject, subject_name
from pointgrad.writing import replace_bytes

from . import clocks, families, functions, peers, table
from .comparison import Row, Setup
from .harness import Harness, missing_compiler
from .machine import machine

FORMAT = 2  # version of the result file


class RequestError(ValueError):
    """The requested benchmark cannot be run. The message is one line."""


def select(names: Sequence[str], setup: Setup, only: str = "") -> list[tuple[str, Row]]:
    """Rows of the given families (by default all but the slow ones) whose names contain all words of `only`.

    Returns:
        Pairs of family and row.
    """
    unknown = [name for name in names if name not in families.NAMES]
    if unknown:
        raise RequestError(f"FAMILY must be one of {', '.join(families.NAMES)}, got {unknown[0]!r}")
    _need_device(setup)
    wanted = list(dict.fromkeys(names)) or families.DEFAULT
    every = [(name, row) for name in wanted for row in families.rows(name, setup)]
    words = only.split()
    found = [(name, row) for name, row in every if all(word in row.name for word in words)]
    if not found:
        raise RequestError(f"--only must match the name of a row, got {only!r}, which matches none of {len(every)}")
    return found


def run(
    names: Sequence[str] = (),
    device: str = "cpu",
    only: str = "",
    out: Path | str | None = None,
    quick: bool = False,
    console: Console | None = None,
) -> dict[str, Any]:
    """Check and time families of operators, and print the results as a table.

    Args:
        names: Names of families. By default all but the slow ones.
        device: "cpu" or "cuda".
        only: Run only rows whose name contains all of these words.
        out: JSON file for the results.
        quick: Use tiny inputs and few rounds, and do not compile: a test of the benchmark, whose times mean nothing.
        console: Console to print to.

    Returns:
        The content of the JSON file.

    Raises:
        RequestError: If a family or row does not exist, the device is not available, or `out` is not writable.
    """
    setup = Setup(device, quick)
    return _measure(select(names, setup, only), setup, peers.table(), out, console, table.show)


def run_function(
    fn: Callable[..., Any],
    reference: Callable[..., Any],
    make_inputs: Callable[[torch.dtype, str], Any],
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    out: Path | str | None = None,
    quick: bool = False,
    console: Console | None = None,
) -> dict[str, Any]:
    """Check and time a function, beside its plain form and the compiled plain form, and print the results as a table.

    Results and gradients are compared with those of the reference in float64. A wrong pass is not timed.

    Args:
        fn: A function of tensors.
        reference: The same function in plain PyTorch.
        make_inputs: `make_inputs(dtype, device)` returns the tuple of inputs, as for `inspect.audit`, in sizes that are
            worth measuring.
        device: "cpu" or "cuda".
        dtype: Passed to `make_inputs`.
        out: JSON file for the results.
        quick: Use few rounds, and do not compile.
        console: Console to print to.

    Returns:
        The content of the JSON file.

    Raises:
        RequestError: If the device is not available, or `out` is not writable.
        FunctionError: If the reference raises an error.
        InputsError: If the inputs cannot be made.
    """
    setup = Setup(device, quick)
    _need_device(setup)
    subject = Subject(fn, make_inputs, reference, device)
    made = [("function", row) for row in functions.rows(subject_name(fn), subject, dtype)]
    return _measure(made, setup, [], out, console, table.show_forms)


def _measure(
    rows: list[tuple[str, Row]],
    setup: Setup,
    others: list[peers.Peer],
    out: Path | str | None,
    console: Console | None,
    show: Callable[[dict[str, Any], Console], None],
) -> dict[str, Any]:
    target = None if out is None else _writable(Path(out))
    console = console or table.console()
    device, quick = setup.device, setup.quick
    missing = "" if quick else missing_compiler(device)
    if missing:
        console.print(missing, soft_wrap=True)
    found = peers.Peers(device, others)
    harness = Harness(setup, found, not missing)
    num_bytes = 2**31 if setup.gpu else 2**24 if quick else 2**29
    GB_per_s = num_bytes / clocks.copy_ms(num_bytes, device, 3 if quick else 11) / 1e6
    results: list[dict[str, Any]] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(rows))
        for family, row in rows:
            progress.update(task, description=row.name)
            if not console.is_terminal and not quick:  # the progress bar does not appear in a log file
                console.print(f"{len(results) + 1}/{len(rows)} {row.name}", soft_wrap=True, highlight=False)
            results.append({"family": family} | harness.measure(row))
            progress.advance(task)
    record = {
        "format": FORMAT,
        "device": device,
        "quick": quick,
        "machine": machine(device),
        "GB_per_s": round(GB_per_s, 1),
        "peers": found.found,
        "rows": results,
    }
    show(record, console)
    if target is not None:
        write(record, target)
        console.print(f"written to {target}", soft_wrap=True)
    return record


def write(record: dict[str, Any], target: Path) -> None:
    """Write a record as JSON, atomically: the file is never incomplete, even if the process is killed.

    Args:
        record: Result of `run`.
        target: File to write.
    """
    replace_bytes(target, f"{json.dumps(record, indent=1)}\n".encode())


def _need_device(setup: Setup) -> None:
    if setup.gpu and not torch.cuda.is_available():
        raise RequestError("--device cuda needs a GPU, but torch.cuda.is_available() is False")


def _writable(target: Path) -> Path:
    """Fail before the first row is measured rather than after the last one."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            raise RequestError(f"--out must be a file, got the folder {target}")
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise RequestError(f"--out cannot be written: {error}") from None
    return target

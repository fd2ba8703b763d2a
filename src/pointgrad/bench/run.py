"""A run of suites, and the record it leaves."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from pointgrad.writing import replace_bytes

from . import clocks, peers, suites, table
from .contest import Row, Setup
from .harness import Harness, no_compiler
from .machine import machine

FORMAT = 1  # of the record


class WrongRequest(ValueError):
    """What was asked for cannot be run; the message is one line."""


def chosen(names: Sequence[str], setup: Setup, only: str = "") -> list[tuple[str, Row]]:
    """The rows of the suites (the usual ones, if none is named) whose names have all the words, with their suite."""
    unknown = [name for name in names if name not in suites.NAMES]
    if unknown:
        raise WrongRequest(f"SUITE must be one of {', '.join(suites.NAMES)}, got {unknown[0]!r}")
    if setup.gpu and not torch.cuda.is_available():
        raise WrongRequest("--device cuda needs a GPU that torch can use, and there is none")
    wanted = list(dict.fromkeys(names)) or suites.DEFAULT
    every = [(name, row) for name in wanted for row in suites.rows(name, setup)]
    words = only.split()
    found = [(name, row) for name, row in every if all(word in row.name for word in words)]
    if not found:
        raise WrongRequest(f"--only {only!r} must be in the name of a row, got none of {len(every)}")
    return found


def run(
    names: Sequence[str] = (),
    device: str = "cpu",
    only: str = "",
    out: Path | str | None = None,
    quick: bool = False,
    console: Console | None = None,
) -> dict[str, Any]:
    """Checks and measures suites, prints the table, and returns the record, written to `out` if given.

    names: of suites; without, all but the slow ones. only: rows whose name has all these words.
    quick: tiny inputs, few rounds, nothing compiled: shows that all of it works here, not how fast.
    """
    setup = Setup(device, quick)
    rows = chosen(names, setup, only)
    target = None if out is None else _writable(Path(out))
    console = console or table.console()
    missing = "" if quick else no_compiler(device)
    if missing:
        console.print(missing, soft_wrap=True)
    found = peers.Peers(device, peers.table())
    harness = Harness(setup, found, not missing)
    much = 2**31 if setup.gpu else 2**24 if quick else 2**29
    GB_per_s = much / clocks.copy_ms(much, device, 3 if quick else 11) / 1e6
    results: list[dict[str, Any]] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(rows))
        for suite, row in rows:
            progress.update(task, description=row.name)
            if not console.is_terminal and not quick:  # a log shows no moving bar
                console.print(f"{len(results) + 1}/{len(rows)} {row.name}", soft_wrap=True, highlight=False)
            results.append({"suite": suite} | harness.measure(row))
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
    table.show(record, console)
    if target is not None:
        write(record, target)
        console.print(f"written to {target}", soft_wrap=True)
    return record


def write(record: dict[str, Any], target: Path) -> None:
    """All of it or nothing: whoever reads the file, or kills this process, never sees a part."""
    replace_bytes(target, f"{json.dumps(record, indent=1)}\n".encode())


def _writable(target: Path) -> Path:
    """Known before the first row is measured, not after the last."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            raise WrongRequest(f"--out must be a file, got the folder {target}")
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise WrongRequest(f"--out cannot be written: {error}") from None
    return target

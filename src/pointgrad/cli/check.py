"""`pointgrad check module:function`: the audit of a function, in a child process that may crash."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from pointgrad.inspect.audit import CHECKS
from pointgrad.inspect.audit.isolated import describe_exit, messages
from pointgrad.inspect.audit.report import CRASHED, SKIPPED, Report, Row
from pointgrad.inspect.audit.subject import NOT_RUNNING
from pointgrad.writing import replace_bytes

from .fail import fail

STARTING = 120.0  # seconds more until the first message, to import torch
OK, FAILED, WRONG, NO_IMPORT, NO_INPUTS, CRASH = range(6)  # exit statuses, as the help of the command says


@dataclass
class Check:
    """Audits a differentiable function: gradients, precision, layouts, memory, races, leaks, compilation and more.

    Exit status: 0 if no check failed; 1 if one failed; 2 for a wrong command line; 3 if the target cannot be imported
    or found; 4 if it takes no tensors, or no inputs can be made for it; 5 if it crashed its process, or hung.
    """

    target: Positional[str]
    """package.module:function, or path/file.py:function. It may also be a torch.autograd.Function, a torch.nn.Module,
    or a class of them that needs no arguments."""

    inputs: str | None = None
    """module:make_inputs, where make_inputs(dtype, device) returns the tuple of inputs. By default <function>_inputs or
    make_inputs beside the target."""

    shapes: list[str] = field(default_factory=list)
    """Instead of --inputs: shapes of random inputs, one per argument: --shapes 2,1024,3 2,1024,64"""

    reference: str | None = None
    """module:function that computes the same in plain PyTorch."""

    device: str = "cpu"
    """Where the inputs are."""

    seeded: bool = False
    """The function draws random numbers on purpose: torch's generator is set before each call."""

    json: Path | None = None
    """A file for the report as JSON."""

    html: Path | None = None
    """A file for the report as a page."""

    timeout: float = 120.0
    """Seconds for one check before it counts as hung."""

    only: list[str] = field(default_factory=list)
    """Names of the checks to run; all by default."""

    def run(self) -> int:
        for path in (self.json, self.html):
            if path is not None and not path.absolute().parent.is_dir():
                return _fail(WRONG, f"cannot write {path}: there is no folder {path.parent}")
        if self.inputs and self.shapes:
            return _fail(WRONG, "give --inputs or --shapes, not both")
        unknown = sorted(set(self.only) - set(CHECKS))
        if unknown:
            return _fail(WRONG, f"--only must be some of {', '.join(map(repr, CHECKS))}, got {unknown[0]!r}")
        report = Report(self.target)
        try:
            for row in self._rows(report):
                report.rows.append(row)
        except Ended as end:
            return _fail(end.status, str(end))
        except KeyboardInterrupt:
            return _fail(128 + signal.SIGINT, "interrupted")
        _show(report)
        for path, content in ((self.json, report.json), (self.html, report.html)):
            if path is not None:
                try:
                    replace_bytes(path, content().encode())
                except OSError as error:
                    return _fail(WRONG, f"cannot write {path}: {error.strerror}")
        if any(row.status == CRASHED for row in report.rows):
            crashed = next(row for row in report.rows if row.status == CRASHED)
            return _fail(CRASH, f"{crashed.name}: {crashed.message}")
        return OK if report.ok else FAILED

    def _rows(self, report: Report) -> Iterator[Row]:
        """The rows of one child after another: after a crash, the next goes on behind the check that crashed."""
        remaining = [name for name in CHECKS if name in self.only or not self.only]
        while remaining:
            doing, at, stage = None, "", "starting"
            with Child(self, remaining) as child:
                for kind, value in child.messages():
                    if kind == "error":
                        raise Ended(*value)
                    if kind == "versions":
                        report.versions = value
                    elif kind == "stage":
                        stage = value
                    elif kind == "progress":
                        at = f", at {value}"
                    elif kind == "doing":
                        doing, at = value, ""
                        _progress(f"{value} ...")
                    else:
                        remaining.remove(value["name"])
                        doing = None
                        yield Row(**value)
                if child.ended is None:
                    return
            if doing is None:
                raise Ended(CRASH, f"{stage}: {child.ended}")
            remaining.remove(doing)
            yield Row(doing, (CHECKS[doing].__doc__ or "").strip(), CRASHED, child.ended + at)
            if doing == "runs":
                yield from (Row(name, (CHECKS[name].__doc__ or "").strip(), SKIPPED, NOT_RUNNING) for name in remaining)
                return


class Ended(Exception):
    """There will be no report: exit status and reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Child:
    """The process that runs the user's code. What it prints is not shown; its last line is, if it crashes."""

    def __init__(self, check: Check, names: list[str]) -> None:
        self._timeout = check.timeout
        self.ended: str | None = None  # how, other than by finishing
        self._tail = b""
        self._pipe, writing = os.pipe()
        options = asdict(check)
        spec = {key: options[key] for key in ("target", "inputs", "shapes", "reference", "device", "seeded")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pointgrad.cli.child", str(writing), json.dumps({**spec, "checks": names})],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            pass_fds=[writing], start_new_session=True,
        )  # fmt: skip
        os.close(writing)
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # its own session: itself and what it started
            self._process.wait()
        os.close(self._pipe)

    def messages(self) -> Iterator[tuple[str, Any]]:
        """What the child reports, until it ends; `ended` then says how, if it did not finish."""
        try:
            for kind, value in messages(self._pipe, self._timeout, first=STARTING):
                if kind == "done":
                    return
                yield kind, value
        except TimeoutError as error:
            self.ended = str(error)
            return
        status = self._process.wait()
        self._reader.join(1)
        last = self._tail.decode(errors="replace").strip().splitlines()
        said = f" ({last[-1][:200]})" if last and status != 0 else ""
        self.ended = f"{describe_exit(status)}{said}"

    def _drain(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            while chunk := output.read1(65536):  # type: ignore[attr-defined]
                self._tail = (self._tail + chunk)[-4096:]


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _show(report: Report) -> None:
    _progress("")
    colors = {"passed": "32", "failed": "31", "crashed": "31", "warned": "33", "skipped": "90"}
    text = str(report)
    if sys.stdout.isatty():
        for status, color in colors.items():
            text = text.replace(f"\n  {status} ", f"\n  \x1b[{color}m{status}\x1b[0m ")
    print(text)


def _fail(status: int, reason: str) -> int:
    _progress("")
    return fail("check", status, reason)

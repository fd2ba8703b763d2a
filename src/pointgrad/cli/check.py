"""`pointgrad check module:function`: audit of a function in a child process, which may crash."""

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

from .status import ExitStatus, fail

STARTING = 120.0  # additional seconds until the first message, to import torch


@dataclass
class Check:
    """Audit a differentiable function: gradients, precision, layouts, memory, races, leaks, compilation and more.

    Exit status: 0 if no check failed; 1 if one failed; 2 for an invalid command line; 3 if the target cannot be
    imported or found; 4 if it takes no tensors, or no inputs can be made for it; 5 if it crashed its process, or hung.
    """

    target: Positional[str]
    """package.module:function, or path/file.py:function. Also a torch.autograd.Function, a torch.nn.Module,
    or a Module class whose constructor needs no arguments."""

    inputs: str | None = None
    """module:make_inputs, where make_inputs(dtype, device) returns a tuple of inputs.
    By default <function>_inputs or make_inputs in the module of the target."""

    shapes: list[str] = field(default_factory=list)
    """Shapes of random inputs, one per argument, instead of --inputs: --shapes 2,1024,3 2,1024,64"""

    reference: str | None = None
    """module:function that computes the same result in plain PyTorch."""

    device: str = "cpu"
    """Device of the inputs."""

    seeded: bool = False
    """Seed torch's generator before each call, for a function that draws random numbers."""

    json: Path | None = None
    """JSON file for the report."""

    html: Path | None = None
    """HTML file for the report."""

    timeout: float = 120.0
    """Seconds after which a check counts as hung."""

    only: list[str] = field(default_factory=list)
    """Names of the checks to run; by default all."""

    def run(self) -> int:
        for path in (self.json, self.html):
            if path is not None and not path.absolute().parent.is_dir():
                return _fail(ExitStatus.USAGE, f"cannot write {path}: no such folder: {path.parent}")
        if self.inputs and self.shapes:
            return _fail(ExitStatus.USAGE, "give --inputs or --shapes, not both")
        unknown = sorted(set(self.only) - set(CHECKS))
        if unknown:
            return _fail(ExitStatus.USAGE, f"--only must be some of {', '.join(map(repr, CHECKS))}, got {unknown[0]!r}")
        report = Report(self.target)
        try:
            for row in self._rows(report):
                report.rows.append(row)
        except NoReport as error:
            return _fail(error.status, str(error))
        except KeyboardInterrupt:
            return _fail(ExitStatus.INTERRUPTED, "interrupted")
        _show(report)
        for path, content in ((self.json, report.json), (self.html, report.html)):
            if path is not None:
                try:
                    replace_bytes(path, content().encode())
                except OSError as error:
                    return _fail(ExitStatus.USAGE, f"cannot write {path}: {error.strerror}")
        if any(row.status == CRASHED for row in report.rows):
            crashed = next(row for row in report.rows if row.status == CRASHED)
            return _fail(ExitStatus.CRASHED, f"{crashed.name}: {crashed.message}")
        return ExitStatus.OK if report.ok else ExitStatus.FAILED

    def _rows(self, report: Report) -> Iterator[Row]:
        """Yield the rows of one child process after another; after a crash, the next continues with the next check."""
        remaining = [name for name in CHECKS if name in self.only or not self.only]
        while remaining:
            running, at, stage = None, "", "starting"
            with Child(self, remaining) as child:
                for kind, value in child.messages():
                    if kind == "error":
                        raise NoReport(ExitStatus(value[0]), value[1])
                    if kind == "versions":
                        report.versions = value
                    elif kind == "stage":
                        stage = value
                    elif kind == "progress":
                        at = f", at {value}"
                    elif kind == "running":
                        running, at = value, ""
                        _progress(f"{value} ...")
                    else:
                        remaining.remove(value["name"])
                        running = None
                        yield Row(**value)
                if child.ended is None:
                    return
            if running is None:
                raise NoReport(ExitStatus.CRASHED, f"{stage}: {child.ended}")
            remaining.remove(running)
            yield Row(running, (CHECKS[running].__doc__ or "").strip(), CRASHED, child.ended + at)
            if running == "runs":
                yield from (Row(name, (CHECKS[name].__doc__ or "").strip(), SKIPPED, NOT_RUNNING) for name in remaining)
                return


class NoReport(Exception):
    """The audit ended without a report."""

    def __init__(self, status: ExitStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Child:
    """The process that runs the user's code. Its output is hidden, except for the last line if it crashes."""

    def __init__(self, check: Check, names: list[str]) -> None:
        self._timeout = check.timeout
        self.ended: str | None = None  # description of an abnormal end
        self._tail = b""
        self._pipe, write_end = os.pipe()
        options = asdict(check)
        spec = {key: options[key] for key in ("target", "inputs", "shapes", "reference", "device", "seeded")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pointgrad.cli.child", str(write_end), json.dumps({**spec, "checks": names})],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            pass_fds=[write_end], start_new_session=True,
        )  # fmt: skip
        os.close(write_end)
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # the whole session, with all processes that the child started
            self._process.wait()
        os.close(self._pipe)

    def messages(self) -> Iterator[tuple[str, Any]]:
        """Yield the messages of the child until it ends; `ended` then describes an abnormal end."""
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
        output = f" ({last[-1][:200]})" if last and status != 0 else ""
        self.ended = f"{describe_exit(status)}{output}"

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


def _fail(status: ExitStatus, reason: str) -> ExitStatus:
    _progress("")
    return fail("check", status, reason)

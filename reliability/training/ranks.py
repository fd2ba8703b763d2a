"""Runs of two processes, one of which is lost."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from . import inject
from .attempts import FLAGS, WATCHDOG, Attempt, data, differences, unreadable, without_figures
from .disturb import Record

TWO = ["--epochs", "3", "--batch-size", "2", "--workers", "0", "--options", "width=0.125", "dropout=0.5", "norm=group"]


class Command:
    """`pointgrad train --devices 2`, as users start it."""

    def __init__(self, scratch: Path, out: Path, **variables: object) -> None:
        line = [sys.executable, "-m", "reliability.training.command", "train", "--out", str(out), "--resume"]
        line += ["--devices", "2"]
        line += [str(part) for part in ["--data", data(scratch), *FLAGS, *TWO]]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in variables.items()}}
        self._log = scratch / f"{out.name}.output"
        with open(self._log, "w") as log:
            # In its own session, so that all its processes can be killed after the test.
            self.first = subprocess.Popen(line, env=environment, stdout=log, stderr=log, start_new_session=True)

    @property
    def output(self) -> str:
        return self._log.read_text()

    def pid(self, rank: int) -> int:
        """Return the process id of a rank."""
        return self.first.pid if rank == 0 else _children(self.first.pid)[0]

    def ended(self) -> bool:
        """Return whether all its processes have ended."""
        self.first.poll()
        return not any(_alive(pid) for pid in _session(self.first.pid))

    def wait(self, seconds: float = WATCHDOG) -> bool:
        """Return whether all processes end in time; kill those that do not."""
        limit = time.monotonic() + seconds
        while not self.ended() and time.monotonic() < limit:
            time.sleep(0.05)
        in_time = self.ended()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.first.pid, signal.SIGKILL)
        self.first.wait()
        return in_time


def lost(scratch: Path, *faults: tuple[int, int], wait: float) -> Record:
    """Send a signal to one of two processes after the first epoch.

    The other process must end, the run must report which one is lost, and the resumed run must have the same result.

    Args:
        scratch: Folder for the runs.
        faults: Pairs of rank and signal.
        wait: Timeout in seconds for a process that does not respond.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    reference = Command(scratch, scratch / "reference")
    assert reference.wait(), reference.output
    assert (scratch / "reference" / "metrics.csv").exists(), reference.output
    record: dict[str, Any] = {}
    wrong: list[str] = []
    different: list[str] = []
    for rank, number in faults:
        name = f"rank {rank} {signal.Signals(number).name}"
        out = scratch / name.replace(" ", "_")
        run = Command(scratch, out, POINTGRAD_PACE=0.3, POINTGRAD_WAIT=wait)
        limit = time.monotonic() + WATCHDOG
        while not (out / "last.pt").exists() and time.monotonic() < limit:
            time.sleep(0.01)
        pid = run.pid(rank)
        began = time.monotonic()
        os.kill(pid, number)
        if number == signal.SIGSTOP and rank == 0:  # rank 1 must not wait for it
            other = run.pid(1)
            while _alive(other) and time.monotonic() < began + WATCHDOG:
                time.sleep(0.05)
            seconds = time.monotonic() - began
            os.kill(pid, signal.SIGKILL)
        else:
            seconds = 0.0
        if not run.wait():
            wrong.append(f"{name}: hung: {run.output}")
        errors = [line for line in run.output.splitlines() if line.startswith("pointgrad")]
        record[name] = {"seconds": round(seconds or time.monotonic() - began, 1), "errors": errors}
        if len(errors) != 1 or "Traceback" in run.output or run.first.returncode == 0:
            wrong.append(f"{name}: {run.first.returncode}: {run.output}")
        wrong += unreadable(out)
        again = Command(scratch, out)
        if not again.wait() or again.first.returncode:
            different.append(f"{name}: {again.output}")
        else:
            different += differences(scratch / "reference", out)
    return {"waits at most, seconds": wait, "faults": record, "wrong": wrong, "different": different}


def lost_forked(scratch: Path) -> Record:
    """Kill the second of two processes that were started as by torchrun, in its second epoch."""
    data(scratch)
    folder, names = scratch / "reference", itertools.count()

    def both(out: Path, *faults: Any) -> list[Attempt]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        flags = ["--out", out, "--resume", "--data", scratch / "tiny.npz", *FLAGS, *TWO]
        shared = {
            "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test",
        }  # fmt: skip
        started = [
            Attempt(
                scratch / f"attempt{next(names)}", *flags,
                inject=(without_figures, *(faults if rank == 1 else ())),
                variables={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(2)
        ]  # fmt: skip
        for attempt in started:
            attempt.wait()
        return started

    wrong = [attempt.output for attempt in both(folder) if attempt.wait()]
    first, second = both(scratch / "run", partial(inject.signal_at, 6, signal.SIGKILL))
    expected = f"another process of the run has ended; continue with: pointgrad train --out {scratch / 'run'} --resume"
    if (first.wait(), first.errors()) != (1, [f"pointgrad train: {expected}"]) or second.wait() != -signal.SIGKILL:
        wrong.append(first.output)
    wrong += [attempt.output for attempt in both(scratch / "run") if attempt.wait()]
    return {"wrong": wrong, "different": differences(folder, scratch / "run")}


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _session(leader: int) -> list[int]:
    """Return the ids of all processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader:
                    found.append(int(entry.name))
    return found


def _alive(pid: int) -> bool:
    """Return whether a process is running, that is, neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

"""Processes of a run on this machine: starting and watching them, and explaining the loss of one."""

import atexit
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch

TIMEOUT = timedelta(minutes=10)  # how long a process waits for another in a collective
LAUNCHER = "POINTGRAD_LAUNCHER"  # environment variable: process id of the first process, which started the others
EXIT_DELAY = 2.0  # maximum seconds between the end of a connection and the end of its process
GRACE = 20.0  # seconds after the end of one process until the others are killed, if they do not end by themselves
RANKS = (
    "RANK",
    "LOCAL_RANK",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
)  # set by torchrun, Fabric, Slurm, MPI
PEER_ENDED = "another process of the run has ended"


class ProcessLost(RuntimeError):
    """A process of the run, or a worker that reads its data, has died or does not respond.

    Attributes:
        reported: Whether another process, which is still running, reports the reason.
    """

    reported = False


class ChildProcesses:
    """Processes that this one, the first, has started. If one ends, the others are ended."""

    def __init__(self, processes: Sequence[subprocess.Popen[Any]]) -> None:
        self._processes = processes
        self._ending = False
        atexit.register(self._end)
        threading.Thread(target=self._watch, daemon=True).start()

    def lost(self) -> str | None:
        """Describe the first process that has failed."""
        for rank, process in enumerate(self._processes, 1):
            if process.poll():
                return f"process {rank} of {len(self._processes) + 1} {_describe(process.returncode)}"
        return None

    def _watch(self) -> None:
        """End the run if a process has ended while this one waits for it."""
        while (lost := self.lost()) is None:
            if self._ending:
                return
            time.sleep(0.2)
        time.sleep(GRACE)
        if not self._ending:
            print(f"pointgrad: {lost}; ending the run", file=sys.stderr, flush=True)
            self._kill()
            os._exit(1)

    def _end(self) -> None:
        """Wait for all processes at the end of this one, and kill those that do not end."""
        self._ending = True
        until = time.monotonic() + GRACE
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in self._processes:
                process.wait(max(0.0, until - time.monotonic()))
        self._kill()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()


_children: ChildProcesses | None = None


def start_processes(fabric: Any) -> None:
    """Start the other processes with Fabric's launcher, unless torchrun or a scheduler has started them.

    `fabric.launch()` would start them too, and then kill this process without a message as soon as one of them ends
    with an error. Once they are started here, `fabric.launch()` only joins the process group.
    """
    from lightning_fabric.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

    global _children
    launcher = fabric.strategy.launcher
    if (
        isinstance(launcher, _SubprocessScriptLauncher)
        and not launcher.cluster_environment.creates_processes_externally
    ):
        os.environ[LAUNCHER] = str(os.getpid())
        launcher._call_children_scripts()
        _children = ChildProcesses(launcher.procs)


def is_first_process() -> bool:
    """Return whether this process is rank 0, also before the processes of the run are connected."""
    return next((os.environ[name] for name in RANKS if name in os.environ), "0") == "0"


def _first_process() -> int | None:
    """Return the id of the process that started this one, if that is the first process of the run."""
    launcher = int(os.environ.get(LAUNCHER, os.getpid()))
    return None if launcher == os.getpid() else launcher


@contextlib.contextmanager
def explain_lost_process(world: int, advice: str = "") -> Iterator[None]:
    """Replace torch's errors about a lost process by a `ProcessLost` of one sentence.

    Args:
        world: Number of processes of the run.
        advice: Appended to the message.
    """
    try:
        yield
    except RuntimeError as error:
        reason = _lost_worker(error) or (_lost_peer(error, world) if world > 1 else None)
        if reason is None:
            raise
        lost = ProcessLost(f"{reason}{advice}")
        lost.reported = reason == PEER_ENDED and _first_process() == os.getppid()
        raise lost from error


def _lost_worker(error: RuntimeError) -> str | None:
    """Explain an error of the loader if a worker has died or ran out of memory; other exceptions are bugs."""
    for text in (str(error.__cause__), str(error)):  # the cause, if present, names the signal
        found = re.match(r"DataLoader worker \(pid\(?s?\)? ([\d, ]+)\) (is killed by signal: [\w ]+|exited)", text)
        if found is not None:
            end = found[2].replace("is killed by signal:", "was killed:").replace("exited", "has ended")
            hint = (
                ", perhaps because memory ran out (--workers 0 needs least)" if "Killed" in end or "Bus" in end else ""
            )
            return f"process {found[1]}, which reads data, {end}{hint}"
    if str(error).startswith("Caught ") and (found := re.search(r"(.*): MemoryError: $", str(error).rstrip("\n"))):
        return f"{found[1].removeprefix('RuntimeError: ')}: not enough memory to read it"
    return None


def _lost_peer(error: RuntimeError, world: int) -> str | None:
    """Explain an error of a collective if another process of the run has died or does not respond."""
    text = str(error)
    plain = type(error) is RuntimeError and "gloo" in text  # errors of this library are subclasses of RuntimeError
    if not plain and not isinstance(error, torch.distributed.DistError):
        return None
    if re.search("timed? ?out", text, re.IGNORECASE):
        return f"another process of the run did not respond within {TIMEOUT.total_seconds():g} s"
    until = time.monotonic() + EXIT_DELAY
    while time.monotonic() < until:
        if _children is not None and (lost := _children.lost()) is not None:
            return lost
        if (first := _first_process()) is not None and first != os.getppid():
            return f"process 0 of {world} has ended"
        time.sleep(0.05)
    return PEER_ENDED


def _describe(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"

"""The processes of a run on this machine: started, watched, and what to say when one of them is lost."""

import atexit
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import torch

TIMEOUT = timedelta(minutes=10)  # how long a process waits for another
RUN_ID = "pointgrad"  # in the variable by which torchrun tells that it started a process
REAPED = 2.0  # seconds from the end of a connection to the end of its process, at most
ENDED = "another process of the run has ended"
GRACE = 20.0  # seconds after the death of one until the others are ended, should they not have ended by themselves


class ProcessLost(RuntimeError):
    """A process of the run, or one that reads its data, has died or does not answer.

    spoken: whether another process, which is still there, says why."""

    spoken = False


class Others:
    """All processes but this one, which is the first. Each runs the same program with the variables of torchrun."""

    def __init__(self, count: int) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // count)))
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        os.environ |= {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count), "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
            "TORCHELASTIC_RUN_ID": RUN_ID, "RANK": "0", "LOCAL_RANK": "0",
        }  # fmt: skip
        self._children = [
            subprocess.Popen(_command(), env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(1, count)
        ]
        self._ending = False
        atexit.register(self._end)
        threading.Thread(target=self._watch, daemon=True).start()

    def lost(self) -> str | None:
        """Which one has died, and how."""
        for rank, child in enumerate(self._children, 1):
            if child.poll():
                return f"process {rank} of {len(self._children) + 1} {_how(child.returncode)}"
        return None

    def _watch(self) -> None:
        """This process may be where it does not notice, for minutes or for ever."""
        while (lost := self.lost()) is None:
            if self._ending:
                return
            time.sleep(0.2)
        time.sleep(GRACE)
        if not self._ending:
            print(f"pointgrad: {lost}, and so the run ends", file=sys.stderr, flush=True)
            self._kill()
            os._exit(1)

    def _end(self) -> None:
        """At the end of this process: none is left behind."""
        self._ending = True
        until = time.monotonic() + GRACE
        with contextlib.suppress(subprocess.TimeoutExpired):
            for child in self._children:
                child.wait(max(0.0, until - time.monotonic()))
        self._kill()

    def _kill(self) -> None:
        for child in self._children:
            child.kill()


_others: Others | None = None
_parent = 0  # of this process; that of one which was started here is the first


def start(count: int) -> None:
    """The other processes, if nobody has started them yet."""
    global _others, _parent
    _parent = os.getppid()
    if count > 1 and not any(name in os.environ for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID")):
        _others = Others(count)


def started_here() -> bool:
    """Whether the variables of torchrun are those of `start`, here or in the first process."""
    return os.environ.get("TORCHELASTIC_RUN_ID") == RUN_ID


def _is_child() -> bool:
    return started_here() and _others is None


@contextlib.contextmanager
def losses_named(world: int, advice: str) -> Iterator[None]:
    """Says in one sentence what torch says in many, when a process is lost."""
    try:
        yield
    except RuntimeError as error:
        reason = _reader(error) or (_peer(error, world) if world > 1 else None)
        if reason is None:
            raise
        lost = ProcessLost(f"{reason}{advice}")
        lost.spoken = reason == ENDED and _is_child() and os.getppid() == _parent
        raise lost from error


def _reader(error: RuntimeError) -> str | None:
    """What torch says about a process of the loader that has died. One that raises is a mistake in a program, unless
    there is no memory left."""
    for text in (str(error.__cause__), str(error)):  # the first, if it is there, knows the signal
        found = re.match(r"DataLoader worker \(pid\(?s?\)? ([\d, ]+)\) (is killed by signal: [\w ]+|exited)", text)
        if found is not None:
            how = found[2].replace("is killed by signal:", "was killed:").replace("exited", "has ended")
            hint = (
                ", perhaps because memory ran out (--workers 0 needs least)" if "Killed" in how or "Bus" in how else ""
            )
            return f"process {found[1]}, which reads data, {how}{hint}"
    if str(error).startswith("Caught ") and (found := re.search(r"(.*): MemoryError: $", str(error).rstrip("\n"))):
        return f"{found[1].removeprefix('RuntimeError: ')}: there is not enough memory to read it"
    return None


def _peer(error: RuntimeError, world: int) -> str | None:
    """What torch says when another process of the run is not there any more."""
    text = str(error)
    plain = type(error) is RuntimeError and "gloo" in text  # errors of this library are kinds of RuntimeError
    if not plain and not isinstance(error, torch.distributed.DistError):
        return None
    if re.search("timed? ?out", text, re.IGNORECASE):
        return f"another process of the run did not answer within {TIMEOUT.total_seconds():g} s"
    until = time.monotonic() + REAPED
    while time.monotonic() < until:
        if _others is not None and (lost := _others.lost()) is not None:
            return lost
        if _is_child() and os.getppid() != _parent:
            return f"process 0 of {world} has ended"
        time.sleep(0.05)
    return ENDED


def _how(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _command() -> list[str]:
    """What started this process."""
    import __main__

    if __main__.__spec__ is None:
        return [sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]]
    return [sys.executable, "-m", __main__.__spec__.name, *sys.argv[1:]]

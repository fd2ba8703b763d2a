"""Interrupted training runs, each compared with an uninterrupted one.

In the records, "different" lists differences between the results, and "wrong" all other violations.
"""

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from . import inject
from .attempts import (
    FLAGS,
    KILLED,
    NOTHING_LEFT,
    Attempt,
    data,
    differences,
    rng_state,
    unreadable,
    until,
    without_figures,
)

AIMS = ("last.pt", "best.pt", "best.safetensors", "metrics.csv", "evaluation.npz")
Record = dict[str, Any]


class Reference:
    """An uninterrupted run, which can be repeated in other folders."""

    def __init__(self, scratch: Path, *flags: object, epochs: int = 3, workers: int = 2, figures: bool = False) -> None:
        self.scratch, self.run, self._names = scratch, scratch / "reference", itertools.count()
        scratch.mkdir(parents=True, exist_ok=True)
        self.flags = ["--data", data(scratch), *FLAGS, "--epochs", epochs, "--workers", workers, *flags]
        self.inject = () if figures else (without_figures,)
        self.epochs = epochs
        Attempt(scratch / "first", "--help").wait()  # imports everything
        began = time.monotonic()
        different = self.finish(self.run)  # compares the run with itself: no differences if it ends
        assert not different, different
        self.seconds = time.monotonic() - began

    def folder(self) -> Path:
        """Return a new folder for a run."""
        return self.scratch / f"run{next(self._names)}"

    def _notes(self, out: Path) -> Path:
        """Return the folder for the output of an attempt, which is not on the disk that may be full."""
        return self.scratch / "notes" / "-".join(out.parts[-2:])

    def start(self, out: Path, *more: object, fault: Callable[[], None] | None = None) -> Attempt:
        """Start or resume a run, with a fault in its process."""
        functions = self.inject if fault is None else (*self.inject, fault)
        return Attempt(self._notes(out), "--out", out, "--resume", *self.flags, *more, inject=functions)

    def finish(self, out: Path, *more: object) -> list[str]:
        """Resume a run to its end, and list its differences from this one."""
        attempt = self.start(out, *more)
        status = attempt.wait()
        if status:
            return [f"exit status {status}: {attempt.output}"]
        return self.different(out)

    def different(self, out: Path) -> list[str]:
        """List the differences of a finished run from this one."""
        # If a run was killed at its very end, the next attempt has nothing to do and draws no numbers.
        equal = rng_state(self._notes(out)) in (rng_state(self._notes(self.run)), NOTHING_LEFT)
        return differences(self.run, out) + ([] if equal else ["state of the random generator"])

    def begun(self) -> Path:
        """Return a copy of a run that was killed in its last epoch, with a last and a previous checkpoint."""
        first = self.scratch / "begun"
        if not first.exists():
            attempt = self.start(first, fault=partial(inject.signal_at, 4 * self.epochs - 2, signal.SIGKILL))
            assert attempt.wait() == KILLED, attempt.output
        return Path(shutil.copytree(first, self.folder()))


def kills(reference: Reference, count: int, seed: int, *more: object) -> Record:
    """Kill a run `count` times at random moments, and resume it; every third kill hits a file being written."""
    rng, out, moments = random.Random(seed), reference.folder(), Counter[str]()
    done, trainings, different = 0, 1, []
    while done < count:
        attempt = reference.start(out, *more)
        if done % 3 == 2:
            drafts, left = f".{rng.choice(AIMS)}.*.part", set(out.glob(".*.part"))  # left by the previous kill
            until(lambda: set(out.glob(drafts)) - left, attempt, reference.seconds)  # noqa: B023
        else:
            until(lambda: False, attempt, rng.uniform(0, reference.seconds), pause=1e-3)
        attempt.send(signal.SIGKILL)
        status = attempt.wait()
        if status != KILLED:
            assert status == 0, attempt.output  # it ended before the kill: continue with a new run
            different += reference.different(out)
            trainings, out = trainings + 1, reference.folder()
            continue
        done += 1
        moments[attempt.moment] += 1
        bad = unreadable(out)
        assert not bad, bad
    return {
        "kills": done,
        "trainings": trainings,
        "moments": dict(moments.most_common()),
        "different": different + reference.finish(out, *more),
    }


def stops(reference: Reference, count: int, seed: int) -> Record:
    """Send SIGINT or SIGTERM at random moments: the step is finished, everything is saved, and the status is 130."""
    rng, out, done, wrong = random.Random(seed), reference.folder(), Counter[str](), []
    while sum(done.values()) < count:
        number = rng.choice((signal.SIGINT, signal.SIGTERM))
        attempt = reference.start(out)
        until(lambda: attempt.moment == "training", attempt)  # noqa: B023
        until(lambda: False, attempt, rng.uniform(0, 0.3 * reference.seconds), pause=1e-3)
        attempt.send(number)
        status = attempt.wait()
        if status == 0:  # it was about to end
            shutil.rmtree(out)
            continue
        done[signal.Signals(number).name] += 1
        if status != 130 or len(attempt.errors()) != 1 or "and saved; continue with" not in attempt.errors()[0]:
            wrong.append(f"{status}: {attempt.output}")
    return {"signals": dict(done), "wrong": wrong, "different": reference.finish(out)}


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """Mount a file system of `size` bytes. Raises OSError without the permission to do so."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        raise OSError(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def disk(reference: Reference, count: int, *more: object) -> Record:
    """Let the disk become full at `count` moments of a run: the error is one sentence, no file is incomplete, and the
    run continues once there is space."""
    named, wrong, different, completed = Counter[str](), [], [], 0
    needed = sum(file.stat().st_size // 4096 * 4096 + 4096 for file in reference.run.iterdir() if file.is_file())
    largest = max(file.stat().st_size for file in reference.run.iterdir())
    whole = 2 * needed + 2 * largest  # more than a run uses
    for number in range(count):
        place = reference.scratch / f"disk{number}"
        with small_disk(place, whole):
            space = int((needed + largest) * number / count)
            out, filler = place / "run", place / "filler"
            filler.write_bytes(bytes(whole - space // 4096 * 4096))
            attempt = reference.start(out, *more)
            status = attempt.wait()
            completed += status == 0
            errors = attempt.errors()
            if status:
                if len(errors) != 1 or "No space left on device" not in errors[0] or "Traceback" in attempt.output:
                    wrong.append(f"{space}: {status}: {attempt.output}")
                else:
                    named[Path(errors[0].split(": ")[1]).name] += 1
            wrong += unreadable(out)
            filler.unlink()
            different += reference.finish(out, *more)
    return {
        "disks": count,
        "enough space": completed,
        "file that did not fit": dict(named),
        "wrong": wrong,
        "different": different,
    }


def workers(reference: Reference, *kinds: str) -> Record:
    """Let a worker that reads data end: the run reports it and ends, and can be resumed."""
    reports, wrong, different = {}, [], []
    for kind in kinds:
        out = reference.folder()
        began = time.monotonic()
        attempt = reference.start(out, fault=partial(inject.worker_fault, kind, 7))
        status = attempt.wait()
        reports[kind] = {"status": status, "seconds": round(time.monotonic() - began, 1), "errors": attempt.errors()}
        clear = len(attempt.errors()) == 1 and "Traceback" not in attempt.output
        if kind == "raises":  # a bug: reported with its traceback and the sample
            clear = attempt.output.rstrip().endswith("RuntimeError: sample 7: ZeroDivisionError: injected")
        if status != 1 or not clear:
            wrong.append(f"{kind}: {status}: {attempt.output}")
        different += reference.finish(out)
    return {"faults": reports, "wrong": wrong, "different": different}


def together(reference: Reference) -> Record:
    """Start a second run in the folder of a first: it is refused. A kill of the first removes its lock, even while one
    of its workers is still running."""
    out, wrong = reference.folder(), []
    first = reference.start(out, fault=partial(inject.worker_fault, "busy", 7))
    until(lambda: (out / "last.pt").exists(), first)
    before = {path: path.read_bytes() for path in out.iterdir()}
    second = reference.start(out)
    status = second.wait()
    refused = f"pointgrad train: {out}: is being trained by process {first.process.pid}"
    if (status, second.errors()) != (2, [refused]):
        wrong.append(f"{status}: {second.output}")
    if before != {path: path.read_bytes() for path in out.iterdir()}:
        wrong.append("the second run wrote something")
    first.send(signal.SIGKILL)
    first.wait()
    return {"wrong": wrong, "different": reference.finish(out)}


def clock(reference: Reference, count: int) -> Record:
    """Let the clock jump by years at every call, and give files dates in the past and the future."""
    different, negative = [], []
    rng = random.Random(0)
    for _ in range(count):
        out = reference.begun()
        for path in out.iterdir():
            years = rng.choice((-50, -1, 1, 50)) * 365 * 86400
            os.utime(path, (time.time() + years,) * 2)
        attempt = reference.start(out, fault=inject.jumping_clock)
        if attempt.wait():
            different.append(attempt.output)
        different += reference.different(out)
        lines = (out / "metrics.csv").read_text().splitlines()
        column = lines[0].split(",").index("seconds")
        negative += [line for line in lines[1:] if float(line.split(",")[column]) < 0]
    return {"trainings": count, "negative durations": negative, "different": different}

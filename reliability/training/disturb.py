"""Trainings that are killed, starved and confused, and what becomes of them: each ends with a run that is compared, bit
by bit, with one that was never disturbed. "different" lists what is not equal, "wrong" what else is not as promised."""

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

from . import planted
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
    without_pictures,
)

AIMS = ("last.pt", "best.pt", "metrics.csv", "evaluation.npz")
Record = dict[str, Any]


class Reference:
    """A training that nothing happened to, and how to start it again elsewhere."""

    def __init__(
        self, scratch: Path, *flags: object, epochs: int = 3, workers: int = 2, pictures: bool = False
    ) -> None:
        self.scratch, self.run, self._names = scratch, scratch / "reference", itertools.count()
        scratch.mkdir(parents=True, exist_ok=True)
        self.flags = ["--data", data(scratch), *FLAGS, "--epochs", epochs, "--workers", workers, *flags]
        self.plants = () if pictures else (without_pictures,)
        self.epochs = epochs
        Attempt(scratch / "first", "--help").wait()  # imports everything
        began = time.monotonic()
        different = self.finish(self.run)  # with itself: nothing, if it ends
        assert not different, different
        self.seconds = time.monotonic() - began

    def folder(self) -> Path:
        return self.scratch / f"run{next(self._names)}"

    def _notes(self, out: Path) -> Path:
        """Where an attempt writes about itself: not to the disk that may be full."""
        return self.scratch / "notes" / "-".join(out.parts[-2:])

    def start(self, out: Path, *more: object, plant: Callable[[], None] | None = None) -> Attempt:
        plants = self.plants if plant is None else (*self.plants, plant)
        return Attempt(self._notes(out), "--out", out, "--resume", *self.flags, *more, plants=plants)

    def finish(self, out: Path, *more: object) -> list[str]:
        """Resumes a run, to the end; what is then different from this one."""
        attempt = self.start(out, *more)
        status = attempt.wait()
        if status:
            return [f"exit status {status}: {attempt.output}"]
        return self.different(out)

    def different(self, out: Path) -> list[str]:
        """What of a finished run is not as here."""
        # A run that was killed in its very end leaves nothing to the next, which then draws no numbers.
        equal = rng_state(self._notes(out)) in (rng_state(self._notes(self.run)), NOTHING_LEFT)
        return differences(self.run, out) + ([] if equal else ["state of the random generator"])

    def begun(self) -> Path:
        """A run that was killed in its last epoch: with a last and a previous checkpoint."""
        first = self.scratch / "begun"
        if not first.exists():
            attempt = self.start(first, plant=partial(planted.signal_at, 4 * self.epochs - 2, signal.SIGKILL))
            assert attempt.wait() == KILLED, attempt.output
        return Path(shutil.copytree(first, self.folder()))


def kills(reference: Reference, count: int, seed: int, *more: object) -> Record:
    """SIGKILL at random moments, so often in a row, each time resumed; every third while a file is being written."""
    rng, out, moments = random.Random(seed), reference.folder(), Counter[str]()
    done, trainings, different = 0, 1, []
    while done < count:
        attempt = reference.start(out, *more)
        if done % 3 == 2:
            drafts, left = f".{rng.choice(AIMS)}.*.part", set(out.glob(".*.part"))  # left by the kill before
            until(lambda: set(out.glob(drafts)) - left, attempt, reference.seconds)  # noqa: B023
        else:
            until(lambda: False, attempt, rng.uniform(0, reference.seconds), pause=1e-3)
        attempt.send(signal.SIGKILL)
        status = attempt.wait()
        if status != KILLED:
            assert status == 0, attempt.output  # it was faster: the next kills are those of another training
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
    """SIGINT and SIGTERM at random moments of the training: the step is finished, all is saved, status 130."""
    rng, out, done, wrong = random.Random(seed), reference.folder(), Counter[str](), []
    while sum(done.values()) < count:
        number = rng.choice((signal.SIGINT, signal.SIGTERM))
        attempt = reference.start(out)
        until(lambda: attempt.moment == "training", attempt)  # noqa: B023
        until(lambda: False, attempt, rng.uniform(0, 0.3 * reference.seconds), pause=1e-3)
        attempt.send(number)
        status = attempt.wait()
        if status == 0:  # it was in its last steps
            shutil.rmtree(out)
            continue
        done[signal.Signals(number).name] += 1
        if status != 130 or len(attempt.said()) != 1 or "and saved; continue with" not in attempt.said()[0]:
            wrong.append(f"{status}: {attempt.output}")
    return {"signals": dict(done), "wrong": wrong, "different": reference.finish(out)}


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """A file system of so many bytes. Raises OSError where it is not allowed."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        raise OSError(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def disk(reference: Reference, rooms: int, *more: object) -> Record:
    """A disk that becomes full after so many bytes, at several places of a run: one sentence, nothing half written, and
    with more room the run goes on."""
    named, wrong, different, completed = Counter[str](), [], [], 0
    needed = sum(file.stat().st_size // 4096 * 4096 + 4096 for file in reference.run.iterdir() if file.is_file())
    largest = max(file.stat().st_size for file in reference.run.iterdir())
    whole = 2 * needed + 2 * largest  # what a run with room uses, and more
    for number in range(rooms):
        place = reference.scratch / f"disk{number}"
        with small_disk(place, whole):
            room = int((needed + largest) * number / rooms)
            out, filler = place / "run", place / "filler"
            filler.write_bytes(bytes(whole - room // 4096 * 4096))
            attempt = reference.start(out, *more)
            status = attempt.wait()
            completed += status == 0
            said = attempt.said()
            if status:
                if len(said) != 1 or "No space left on device" not in said[0] or "Traceback" in attempt.output:
                    wrong.append(f"{room}: {status}: {attempt.output}")
                else:
                    named[Path(said[0].split(": ")[1]).name] += 1
            wrong += unreadable(out)
            filler.unlink()
            different += reference.finish(out, *more)
    return {
        "disks": rooms,
        "had room": completed,
        "file that did not fit": dict(named),
        "wrong": wrong,
        "different": different,
    }


def workers(reference: Reference, *hows: str) -> Record:
    """A process that reads data ends: the run says so and ends, and goes on when it is resumed."""
    said, wrong, different = {}, [], []
    for how in hows:
        out = reference.folder()
        began = time.monotonic()
        attempt = reference.start(out, plant=partial(planted.worker_fault, how, 7))
        status = attempt.wait()
        said[how] = {"status": status, "seconds": round(time.monotonic() - began, 1), "said": attempt.said()}
        clear = len(attempt.said()) == 1 and "Traceback" not in attempt.output
        if how == "raises":  # a mistake in a program: with its traceback, and the sample
            clear = attempt.output.rstrip().endswith("RuntimeError: sample 7: ZeroDivisionError: planted")
        if status != 1 or not clear:
            wrong.append(f"{how}: {status}: {attempt.output}")
        different += reference.finish(out)
    return {"faults": said, "wrong": wrong, "different": different}


def together(reference: Reference) -> Record:
    """Two trainings into one folder: the second is refused, whether it resumes or not; after a kill of the first there
    is no lock, even while one of its workers lives on."""
    out, wrong = reference.folder(), []
    first = reference.start(out, plant=partial(planted.worker_fault, "busy", 7))
    until(lambda: (out / "last.pt").exists(), first)
    before = {path: path.read_bytes() for path in out.iterdir()}
    second = reference.start(out)
    status = second.wait()
    refused = f"pointgrad train: {out}: is being trained by process {first.process.pid}"
    if (status, second.said()) != (2, [refused]):
        wrong.append(f"{status}: {second.output}")
    if before != {path: path.read_bytes() for path in out.iterdir()}:
        wrong.append("the second one wrote something")
    first.send(signal.SIGKILL)
    first.wait()
    return {"wrong": wrong, "different": reference.finish(out)}


def clock(reference: Reference, count: int) -> Record:
    """The time of day jumps by years at every look, and files are dated into the past and the future."""
    different, negative = [], []
    rng = random.Random(0)
    for _ in range(count):
        out = reference.begun()
        for path in out.iterdir():
            years = rng.choice((-50, -1, 1, 50)) * 365 * 86400
            os.utime(path, (time.time() + years,) * 2)
        attempt = reference.start(out, plant=planted.jumping_clock)
        if attempt.wait():
            different.append(attempt.output)
        different += reference.different(out)
        lines = (out / "metrics.csv").read_text().splitlines()
        column = lines[0].split(",").index("seconds")
        negative += [line for line in lines[1:] if float(line.split(",")[column]) < 0]
    return {"trainings": count, "negative durations": negative, "different": different}

"""`python -m reliability.files.corpus --out FILE.json`: read damaged files of every kind, and count the outcomes.

Each file is derived from a valid one with a fixed seed (`damage.py`), and read in a separate process with limits of
memory and time. It may be read, or refused with an error of the library: one line that begins with the path. Anything
else is a failure (exit status 1): a different exception, a warning, too much memory, a hang or a crash. Small files
that declare huge sizes (`false_sizes.py`) and files that are highly compressed (`compressed.py`) are read first, in the
same way.
"""

import argparse
import ctypes
import multiprocessing
import os
import resource
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pointgrad.bench import write
from pointgrad.bench.machine import machine
from pointgrad.cli.config import ConfigError
from pointgrad.data import FileError
from pointgrad.train.checkpoint import CheckpointError

from ..arguments import at_least, out_file
from ..checkout import commit
from .compressed import LIMIT, compressed
from .damage import damaged
from .false_sizes import LARGE, false_sizes
from .subjects import SUBJECTS

MEMORY = 512 << 20  # additional bytes that reading may allocate; the files have a few thousand bytes
SECONDS = 20  # for one file
OWN = (FileError, CheckpointError, ConfigError, ValueError)  # exact types, without subclasses
LIBC = ctypes.CDLL(None)
READ, REFUSED = "read", "refused"
PACKAGES = ("numpy", "laspy", "lazrs", "h5py", "python-neo-lzf", "pyyaml")


class Task(NamedTuple):
    """A file to read, given by its kind and its number or bytes, and the additional bytes that reading may allocate."""

    subject: str
    number: int | bytes
    memory: int = MEMORY


class Outcome(NamedTuple):
    subject: str
    number: int | bytes
    what: str  # read, refused, exception, warning, memory, hang or crash
    words: str
    peak: int = 0  # additional bytes


def run(tasks: Iterable[tuple[str, int | bytes] | tuple[str, int | bytes, int]]) -> Iterator[Outcome]:
    """Read the files of tasks, see `Task`. A process that ends is replaced by a new one."""
    context = multiprocessing.get_context("spawn")
    rest = (Task(*task) for task in tasks)
    task = next(rest, None)
    while task is not None:
        ours, theirs = context.Pipe()
        worker = context.Process(target=_work, args=(theirs,), daemon=True)
        worker.start()
        theirs.close()
        try:
            ours.recv()  # ready
            while task is not None:
                ours.send(task)
                if not ours.poll(SECONDS):
                    yield Outcome(*task[:2], "hang", f"no response in {SECONDS} seconds")
                    break
                try:
                    yield Outcome(*task[:2], *ours.recv())
                except EOFError:
                    worker.join()
                    yield Outcome(*task[:2], "crash", f"the process ended with {worker.exitcode}")
                    break
                task = next(rest, None)
            else:
                break
            task = next(rest, None)
        finally:
            worker.kill()
            worker.join()


def _work(pipe: Connection) -> None:
    torch.set_num_threads(1)
    os.environ["RAYON_NUM_THREADS"] = "1"  # threads of the LAZ decoder, each of which reserves address space
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        good = {subject: SUBJECTS[subject].make(folder) for subject in SUBJECTS}
        for subject, raw in good.items():  # imports all libraries before the limit is set
            attempt(subject, raw, folder)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        pipe.send("ready")
        while True:
            subject, number, memory = pipe.recv()
            raw = number if isinstance(number, bytes) else make(good, subject, number)
            pipe.send(attempt(subject, raw, folder, memory))


def make(good: dict[str, bytes], subject: str, number: int) -> bytes:
    """Return a damaged file; number 0 is the valid one."""
    others = list(good)
    other = good[others[(others.index(subject) + number) % len(others)]]
    return damaged(good[subject], other, f"{subject} {number}") if number else good[subject]


def attempt(subject: str, raw: bytes, folder: Path, memory: int | None = None) -> tuple[str, str, int]:
    """Read one file. Returns the outcome, its description, and the peak of additional memory.

    Args:
        subject: Kind of the file.
        raw: Its content.
        folder: Where to write it.
        memory: Limit on additional bytes; default: none.
    """
    path = folder / f"a.{SUBJECTS[subject].suffix}"
    path.write_bytes(raw)
    if hasattr(LIBC, "malloc_trim"):
        LIBC.malloc_trim(0)  # returns memory of the files before, which would otherwise be used again
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    what, words = READ, ""
    most = resource.RLIM_INFINITY if memory is None else _status("VmSize") + memory
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            SUBJECTS[subject].read(path)
        if caught:
            what, words = "warning", str(caught[0].message)
    except Exception as error:
        what, words = judge(error, path)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # raised by Rust libraries
            raise
        what, words = "exception", f"{type(error).__name__}: {error}"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return what, words, max(0, _status("VmHWM") - before)


def judge(error: BaseException, path: Path) -> tuple[str, str]:
    """Classify an error: refused if it is well-formed, otherwise a failure."""
    words = str(error)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or "can't allocate memory" in str(cause):
            return "memory", words
        cause = cause.__cause__ or cause.__context__
    named = words.startswith((f"{path}: ", str(path.with_name(path.name.partition(".")[0] + ".labels.npy: "))))
    fine = type(error) in OWN and named and "\n" not in words and len(words) < 2000
    return (REFUSED, words) if fine else ("exception", f"{type(error).__name__}: {words[:300]}")


def _status(name: str) -> int:
    """Read a size from /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise KeyError(name)


def count(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Count outcomes by subject, and list the failures."""
    rows: dict[str, Counter[str]] = {}
    peaks: Counter[str] = Counter()
    wrong = []
    for outcome in outcomes:
        rows.setdefault(outcome.subject, Counter())[outcome.what] += 1
        peaks[outcome.subject] = max(peaks[outcome.subject], outcome.peak)
        if outcome.what not in (READ, REFUSED):
            wrong.append(outcome._asdict())
    table = [
        {"subject": name, "files": row.total(), **row, "peak_mib": round(peaks[name] / 2**20, 1)}
        for name, row in rows.items()
    ]
    total = {key: sum(row[key] for row in rows.values()) for key in (READ, REFUSED)}
    return {"files": sum(row.total() for row in rows.values()), **total, "wrong": len(wrong), "rows": table,
            "failures": wrong[:200]}  # fmt: skip


def describe() -> dict[str, Any]:
    """Describe the machine and the versions of the libraries."""
    return {**machine("cpu"), "commit": commit(), **{p: metadata.version(p) for p in PACKAGES}}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", type=at_least(1), default=1000, help="damaged files of each kind")
    parser.add_argument("--first", type=int, default=1, help="number of the first file")
    parser.add_argument("--only", nargs="+", default=list(SUBJECTS), choices=SUBJECTS, help="kinds of files")
    parser.add_argument("--out", type=out_file, help="file for the counts, which are also printed")
    parser.add_argument("--keep", type=Path, help="path for file number --first of kind --only; then exit")
    options = parser.parse_args()
    if options.keep:
        with tempfile.TemporaryDirectory() as name:
            good = {subject: SUBJECTS[subject].make(Path(name)) for subject in SUBJECTS}
        options.keep.write_bytes(make(good, options.only[0], options.first))
        return 0
    described = describe()
    small = [(file.subject, file.raw) for file in false_sizes()]
    outcomes = list(run(small))
    refused = [outcome.what == REFUSED and outcome.peak < LARGE for outcome in outcomes]
    for outcome, right in zip(outcomes, refused, strict=True):
        if not right:
            print(outcome.subject, outcome.what, outcome.peak, outcome.words[:200], file=sys.stderr)
    print(f"{sum(refused)} of {len(small)} small files that declare huge sizes are refused")
    dense = list(compressed())
    unpacked = list(run((subject, raw, LIMIT) for *_, subject, raw in dense))
    bounded = [outcome.what in (READ, REFUSED) and outcome.peak <= LIMIT for outcome in unpacked]
    for (kind, share, *_), outcome, right in zip(dense, unpacked, bounded, strict=True):
        if not right:
            print(kind, share, outcome.what, outcome.peak, outcome.words[:200], file=sys.stderr)
    print(f"{sum(bounded)} of {len(dense)} highly compressed files are read or refused within {LIMIT >> 20} MiB")
    numbers = range(options.first, options.first + options.files)
    result = count(run((subject, number) for number in numbers for subject in options.only))
    for row in result["rows"]:
        print(*(f"{value}" if key == "subject" else f"{key} {value}" for key, value in row.items()), sep="  ")
    for failure in result["failures"]:
        print(failure["subject"], failure["number"], failure["what"], failure["words"][:200], file=sys.stderr)
    if options.out:
        limits = {"memory_bytes": MEMORY, "seconds": SECONDS}
        small_files = {"files": len(small), "refused": sum(refused), "largest_bytes": LARGE}
        dense_files = {"files": len(dense), "bounded": sum(bounded), "memory_bytes": LIMIT}
        extra = {"limits": limits, "false_sizes": small_files, "compressed": dense_files}
        write({"machine": described, **extra, **result}, options.out)
    return 1 if result["wrong"] or not all(refused) or not all(bounded) else 0


if __name__ == "__main__":
    sys.exit(main())

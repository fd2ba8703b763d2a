"""Operators of every room called from everywhere at once: the same bits as alone, and no deadlock.

    python -m reliability.cpu.concurrency --rounds 200 --out reliability/results/concurrency.json

In a round, every thread or process calls one case of each room, forward and backward, drawn from the tests' tables of
cases that are large enough for several threads (`work.py`). Each situation runs in a process of its own,
under a watchdog that prints where every Python thread stands when time is up. Needs torch and numpy only.
"""

import argparse
import contextlib
import faulthandler
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pointgrad.bench import write
from pointgrad.bench.machine import machine
from reliability.arguments import at_least, out_file
from reliability.cpu.work import Work, backward_of_a_network, deep_backward, families, network

ROOT = Path(__file__).parents[2]
THREADS = 8
THREAD_COUNTS = (1, 2, 3, 7)  # what torch.set_num_threads is given
LIMIT = 1800  # seconds for one situation
CHILD_LIMIT = 60  # and for one child
ALL = 1000  # cases of a room
SAME, HUNG = "same", "time is up"
MUST_SEE = {"planted_difference": "different: planted, results [0]", "planted_deadlock": HUNG}
WATCHDOG = "Timeout ("  # how faulthandler begins


class Difference(Exception):
    """A call returned other bits than it does alone."""


class Calls:
    """The work, and what each piece of it gives alone, in one thread."""

    def __init__(self, cases: int, alone: dict[str, str] | None = None) -> None:
        torch.set_num_threads(1)
        self.cases = cases
        self.families = families(cases)
        self.alone = alone or {work.name: work.digest() for family in self.families for work in family}
        torch.set_num_threads(2)
        self.one_of_each_family("starts the pool's threads")

    def check(self, work: Work) -> int:
        return _equal(work.digest(), self.alone[work.name], work.name)

    def one_of_each_family(self, seed: str, between: Callable[[random.Random], None] | None = None) -> int:
        draw = random.Random(seed)
        for family in draw.sample(self.families, len(self.families)):
            if between is not None:
                between(draw)
            self.check(draw.choice(family))
        return len(self.families)


def at_once(task: Callable[[int], int], threads: int = THREADS) -> int:
    """The sum of task(0) to task(threads - 1), which begin together; the first error of any of them is raised."""
    start = threading.Barrier(threads)

    def begin(number: int) -> int:
        start.wait()
        return task(number)

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(begin, range(threads)))


def python_threads(calls: Calls, rounds: int) -> int:
    return sum(at_once(partial(_draw, calls, r)) for r in range(rounds))


def _draw(calls: Calls, round: int, thread: int) -> int:
    return calls.one_of_each_family(f"{round} {thread}")


def set_num_threads(calls: Calls, rounds: int) -> int:
    """Each thread changes the number between its calls, while the others are inside theirs."""

    return sum(at_once(partial(_draw_and_change, calls, r)) for r in range(rounds))


def _draw_and_change(calls: Calls, round: int, thread: int) -> int:
    return calls.one_of_each_family(f"{round} {thread}", lambda draw: torch.set_num_threads(draw.choice(THREAD_COUNTS)))


def backward(calls: Calls, rounds: int) -> int:
    """Backward passes of a deep graph: of one graph from all threads, of a graph per thread, and nested so deeply that
    torch hands them to autograd's own threads."""
    torch.set_num_threads(1)
    own = backward_of_a_network(*network(seed=0))
    nested = deep_backward()
    torch.set_num_threads(2)
    for _ in range(rounds):
        graph = network(seed=0)
        at_once(lambda n, graph=graph: _equal(backward_of_a_network(*graph), own, "one graph from many threads"))
        at_once(lambda n: _equal(backward_of_a_network(*network(seed=0)), own, "a graph per thread"))
        at_once(lambda n: _equal(deep_backward(), nested, "nested backward"), threads=2)
    return rounds * (2 * THREADS + 2)


def _equal(received: str, expected: str, name: str) -> int:
    if received == expected:
        return 1
    pairs = zip(received.split(), expected.split(), strict=True)
    raise Difference(f"{name}, results {[number for number, (mine, theirs) in enumerate(pairs) if mine != theirs]}")


def forked(calls: Calls, rounds: int) -> int:
    """Children of a process whose other threads are inside operators at the moment of the fork."""
    stop = threading.Event()

    def keep_busy(number: int) -> None:
        while not stop.is_set():
            calls.one_of_each_family(f"busy {number}")

    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(keep_busy, number) for number in range(2)]
        try:
            counts = [_in_processes("fork", calls, f"{r}") for r in range(rounds)]
        finally:
            stop.set()
        for each in busy:
            each.result()
    return sum(counts)


def spawned(calls: Calls, rounds: int) -> int:
    return sum(_in_processes("spawn", calls, f"{r}") for r in range(rounds))


def _in_processes(method: str, calls: Calls, seed: str) -> int:
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    # A new interpreter makes the same calls itself.
    given = calls if method == "fork" else (calls.cases, calls.alone)
    seeds = [f"{seed} {n}" for n in range(2 if method == "fork" else 1)]
    children = [context.Process(target=_child, args=(answers, given, each), daemon=True) for each in seeds]
    for child in children:
        child.start()
    for child in children:
        child.join()
    if any(child.exitcode == -signal.SIGALRM for child in children):
        raise RuntimeError(f"{WATCHDOG}{CHILD_LIMIT} s) in a {method}ed child")
    if any(child.exitcode for child in children):
        raise RuntimeError(f"a {method}ed child ended with status {[child.exitcode for child in children]}")
    received = [answers.get() for _ in children]
    for answer in received:
        if isinstance(answer, str):
            raise Difference(answer)
    return sum(received)


def _child(answers: Any, given: Calls | tuple[int, dict[str, str]], seed: str) -> None:
    """Answers with the number of calls, or with what was different."""
    # A signal: the parent's watchdog is a thread that a forked child does not have, but would wait for.
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(CHILD_LIMIT)
    try:
        if isinstance(given, Calls):
            calls = given
            use_the_pool_in_a_forked_child()
        else:
            calls = Calls(*given)
        answers.put(calls.one_of_each_family(seed))
    except Difference as difference:
        answers.put(str(difference))
    signal.alarm(0)


def use_the_pool_in_a_forked_child() -> None:
    """torch's own parallel loops hang in a forked child, so torch gets one thread there, as in a DataLoader; our
    kernels are still told to use three."""
    torch.set_num_threads(1)
    torch.get_num_threads = lambda: 3


class _Drawn(torch.utils.data.Dataset):
    """Items that call operators, in a worker."""

    def __init__(self, calls: Calls, rounds: int) -> None:
        self.calls, self.rounds = calls, rounds

    def __len__(self) -> int:
        return self.rounds

    def __getitem__(self, number: int) -> int:
        return self.calls.one_of_each_family(f"item {number}")


def loader(calls: Calls, rounds: int) -> int:
    """A training: workers call operators while the process that forked them does so too."""
    total = 0
    for start in range(0, rounds, 10):
        data = _Drawn(calls, min(10, rounds - start) * 2)
        workers = torch.utils.data.DataLoader(
            data, batch_size=None, num_workers=2, timeout=120, multiprocessing_context="fork",
            worker_init_fn=_worker,
        )  # fmt: skip
        for count in workers:
            total += count + calls.one_of_each_family(f"beside {start}")
    return total


def _worker(number: int) -> None:
    use_the_pool_in_a_forked_child()


def planted_difference(calls: Calls, rounds: int) -> int:
    """An operator that keeps its result in memory that all threads share: `python_threads` must see it."""
    shared = torch.zeros(20000)

    class Careless(Work):
        name = "planted"

        def digest(self) -> str:
            mine = float(threading.get_ident())
            shared.fill_(mine)
            time.sleep(0.001)
            return str(bool((shared == mine).all()))

    careless = Careless.__new__(Careless)
    calls.families, calls.alone = [[careless]], {"planted": careless.digest()}
    return python_threads(calls, rounds)


def planted_deadlock(calls: Calls, rounds: int) -> int:
    """A lock that is taken twice: the watchdog must see it."""
    lock = threading.Lock()
    return at_once(lambda n: lock.acquire())


SITUATIONS = {
    # backward last: once it has started autograd's own threads, torch refuses to differentiate in forked children.
    function.__name__: function
    for function in (spawned, python_threads, set_num_threads, forked, loader, backward)
}
PLANTED = {function.__name__: function for function in (planted_difference, planted_deadlock)}


def run_here(calls: Calls, situation: str, rounds: int, limit: float) -> dict[str, Any]:
    """One situation in this process, which the watchdog ends when time is up."""
    faulthandler.dump_traceback_later(limit, exit=True)
    before = time.monotonic()
    try:
        count, outcome = (SITUATIONS | PLANTED)[situation](calls, rounds), SAME
    except Difference as difference:
        count, outcome = 0, f"different: {difference}"
    faulthandler.cancel_dump_traceback_later()
    return {
        "rounds": rounds, "calls": count, "outcome": outcome, "seconds": round(time.monotonic() - before, 1),
    }  # fmt: skip


def run(situations: list[str], rounds: int, cases: int = ALL, limit: float = LIMIT) -> dict[str, dict[str, Any]]:
    """Situations one after another in one process of their own; after the first that hangs or fails, none."""
    command = [sys.executable, "-m", "reliability.cpu.concurrency", "--here", *situations]
    command += ["--rounds", str(rounds), "--cases", str(cases), "--limit", str(limit)]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=out, stderr=log, start_new_session=True, cwd=ROOT)
        try:
            status = process.wait(limit * len(situations) + 120)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # children too, where the watchdog ended their parent
        process.wait()
        out.seek(0)
        log.seek(0)
        results = dict(json.loads(line) for line in out.read().splitlines())
        said = log.read()
    if status != 0:
        outcome = HUNG if status is None or WATCHDOG in said else f"failed with status {status}"
        stopped = next(name for name in situations if name not in results)
        results[stopped] = {"rounds": rounds, "calls": 0, "outcome": outcome, "log": said[-6000:]}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(1), default=200)
    parser.add_argument("--cases", type=at_least(1), default=ALL, help="at most so many of each room")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for one situation")
    parser.add_argument("--here", nargs="+", choices=[*SITUATIONS, *PLANTED], help="only these, in this process")
    parser.add_argument("--out", type=out_file)
    given = parser.parse_args()
    if given.here:
        # Python 3.12 warns of forking a process that has threads: that it works is the point here.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        calls = Calls(given.cases)
        for situation in given.here:
            print(json.dumps([situation, run_here(calls, situation, given.rounds, given.limit)]), flush=True)
        return
    planted = run(["planted_difference"], 2, 1) | run(["planted_deadlock"], 1, 1, 10)
    seen = {name: result["outcome"] for name, result in planted.items()}
    print(json.dumps(seen), flush=True)
    results = {}
    for situation in SITUATIONS:
        # A new interpreter takes seconds to start.
        rounds = -(-given.rounds // 10) if situation == "spawned" else given.rounds
        results |= run([situation], rounds, given.cases, given.limit)
        print(situation, json.dumps(results[situation]), flush=True)
    if given.out:
        report = {
            "machine": machine("cpu"), "threads": THREADS, "torch_threads": list(THREAD_COUNTS),
            "free_threaded": not getattr(sys, "_is_gil_enabled", lambda: True)(),
            "planted_and_seen": seen, "situations": results,
        }  # fmt: skip
        write(report, given.out)
    same = all(result["outcome"] == SAME for result in results.values())
    sys.exit(0 if same and seen == MUST_SEE else 1)


if __name__ == "__main__":
    main()

"""Concurrent calls of operators of every family: results must be identical to serial ones, without deadlocks.

    python -m reliability.cpu.concurrency --rounds 200 --out reliability/results/concurrency.json

In a round, every thread or process calls one random test case of each family, forward and backward, with inputs that
are large enough for several threads (`work.py`). Each situation runs in a separate process with a time limit, after
which the stack of every Python thread is printed. Needs only torch and numpy.
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
THREAD_COUNTS = (1, 2, 3, 7)  # arguments of torch.set_num_threads
LIMIT = 1800  # seconds per situation
CHILD_LIMIT = 60  # seconds per child process
ALL = 1000  # more cases than any family has
SAME, HUNG = "same", "time is up"
MUST_SEE = {"planted_difference": "different: planted, results [0]", "planted_deadlock": HUNG}
WATCHDOG = "Timeout ("  # beginning of the output of faulthandler


class Difference(Exception):
    """A concurrent call returned different bits than a serial one."""


class Calls:
    """The calls to make, and their digests when made serially in one thread."""

    def __init__(self, cases: int, expected: dict[str, str] | None = None) -> None:
        torch.set_num_threads(1)
        self.cases = cases
        self.families = families(cases)
        self.expected = expected or {work.name: work.digest() for family in self.families for work in family}
        torch.set_num_threads(2)
        self.one_of_each_family("warm-up")  # starts the threads of the pool

    def check(self, work: Work) -> int:
        return _equal(work.digest(), self.expected[work.name], work.name)

    def one_of_each_family(self, seed: str, between: Callable[[random.Random], None] | None = None) -> int:
        """Make and check one random call of each family. Returns the number of calls."""
        draw = random.Random(seed)
        for family in draw.sample(self.families, len(self.families)):
            if between is not None:
                between(draw)
            self.check(draw.choice(family))
        return len(self.families)


def at_once(task: Callable[[int], int], threads: int = THREADS) -> int:
    """Run task(0) to task(threads - 1) in threads that start together. Returns the sum, or raises the first error."""
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
    """Each thread changes the number of threads between its calls, while other threads are inside theirs."""
    return sum(at_once(partial(_draw_and_change, calls, r)) for r in range(rounds))


def _draw_and_change(calls: Calls, round: int, thread: int) -> int:
    return calls.one_of_each_family(f"{round} {thread}", lambda draw: torch.set_num_threads(draw.choice(THREAD_COUNTS)))


def backward(calls: Calls, rounds: int) -> int:
    """Backward passes of one graph from all threads, of one graph per thread, and nested ones.

    The nesting is so deep that torch runs the inner passes in autograd's own threads.
    """
    torch.set_num_threads(1)
    expected = backward_of_a_network(*network(seed=0))
    nested = deep_backward()
    torch.set_num_threads(2)
    for _ in range(rounds):
        graph = network(seed=0)
        at_once(lambda n, graph=graph: _equal(backward_of_a_network(*graph), expected, "one graph from many threads"))
        at_once(lambda n: _equal(backward_of_a_network(*network(seed=0)), expected, "one graph per thread"))
        at_once(lambda n: _equal(deep_backward(), nested, "nested backward"), threads=2)
    return rounds * (2 * THREADS + 2)


def _equal(received: str, expected: str, name: str) -> int:
    if received == expected:
        return 1
    pairs = zip(received.split(), expected.split(), strict=True)
    raise Difference(f"{name}, results {[number for number, (mine, theirs) in enumerate(pairs) if mine != theirs]}")


def forked(calls: Calls, rounds: int) -> int:
    """Child processes, forked while other threads of the parent are inside operators."""
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
    results = context.SimpleQueue()
    # A spawned process creates the calls itself.
    given = calls if method == "fork" else (calls.cases, calls.expected)
    seeds = [f"{seed} {n}" for n in range(2 if method == "fork" else 1)]
    children = [context.Process(target=_child, args=(results, given, each), daemon=True) for each in seeds]
    for child in children:
        child.start()
    for child in children:
        child.join()
    if any(child.exitcode == -signal.SIGALRM for child in children):
        raise RuntimeError(f"{WATCHDOG}{CHILD_LIMIT} s) in a {method}ed child")
    if any(child.exitcode for child in children):
        raise RuntimeError(f"a {method}ed child ended with status {[child.exitcode for child in children]}")
    received = [results.get() for _ in children]
    for result in received:
        if isinstance(result, str):
            raise Difference(result)
    return sum(received)


def _child(results: Any, given: Calls | tuple[int, dict[str, str]], seed: str) -> None:
    """Send the number of calls, or a description of the difference, to the parent."""
    # Uses a signal, since the watchdog thread of the parent does not exist in a forked child.
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(CHILD_LIMIT)
    try:
        if isinstance(given, Calls):
            calls = given
            use_the_pool_in_a_forked_child()
        else:
            calls = Calls(*given)
        results.put(calls.one_of_each_family(seed))
    except Difference as difference:
        results.put(str(difference))
    signal.alarm(0)


def use_the_pool_in_a_forked_child() -> None:
    """Let our kernels use three threads, and torch one, as in a DataLoader.

    torch's own parallel loops hang in a forked child.
    """
    torch.set_num_threads(1)
    torch.get_num_threads = lambda: 3


class _Drawn(torch.utils.data.Dataset):
    """A dataset whose items call operators in a worker."""

    def __init__(self, calls: Calls, rounds: int) -> None:
        self.calls, self.rounds = calls, rounds

    def __len__(self) -> int:
        return self.rounds

    def __getitem__(self, number: int) -> int:
        return self.calls.one_of_each_family(f"item {number}")


def loader(calls: Calls, rounds: int) -> int:
    """DataLoader workers and their parent process call operators at the same time."""
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
    """An operator that keeps its result in memory shared by all threads, which `python_threads` must detect."""
    shared = torch.zeros(20000)

    class Careless(Work):
        name = "planted"

        def digest(self) -> str:
            mine = float(threading.get_ident())
            shared.fill_(mine)
            time.sleep(0.001)
            return str(bool((shared == mine).all()))

    careless = Careless.__new__(Careless)
    calls.families, calls.expected = [[careless]], {"planted": careless.digest()}
    return python_threads(calls, rounds)


def planted_deadlock(calls: Calls, rounds: int) -> int:
    """A lock that is acquired twice, which the watchdog must detect."""
    lock = threading.Lock()
    return at_once(lambda n: lock.acquire())


SITUATIONS = {
    # backward is last: once it has started autograd's threads, torch does not differentiate in forked children.
    function.__name__: function
    for function in (spawned, python_threads, set_num_threads, forked, loader, backward)
}
PLANTED = {function.__name__: function for function in (planted_difference, planted_deadlock)}


def run_here(calls: Calls, situation: str, rounds: int, limit: float) -> dict[str, Any]:
    """Run one situation in this process, which the watchdog ends after `limit` seconds."""
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
    """Run situations one after another in a new process, until one hangs or fails."""
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
                os.killpg(process.pid, signal.SIGKILL)  # includes children whose parent was ended by the watchdog
        process.wait()
        out.seek(0)
        log.seek(0)
        results = dict(json.loads(line) for line in out.read().splitlines())
        text = log.read()
    if status != 0:
        outcome = HUNG if status is None or WATCHDOG in text else f"failed with status {status}"
        stopped = next(name for name in situations if name not in results)
        results[stopped] = {"rounds": rounds, "calls": 0, "outcome": outcome, "log": text[-6000:]}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(1), default=200, help="rounds per situation")
    parser.add_argument("--cases", type=at_least(1), default=ALL, help="largest number of cases per family")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds per situation")
    parser.add_argument("--here", nargs="+", choices=[*SITUATIONS, *PLANTED], help="run only these, in this process")
    parser.add_argument("--out", type=out_file, help="JSON file for the results")
    given = parser.parse_args()
    if given.here:
        # Python 3.12 warns about forking a process with threads, which is what is tested here.
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
        # Spawning takes seconds.
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

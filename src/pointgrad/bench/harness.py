"""Checks and times the rows of the benchmark.

All implementations are checked before the first one is timed. The implementations of a row are timed alternately in
one process, so that other load on the machine affects all of them.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from pointgrad.errors import one_line

from . import clocks
from .comparison import Comparison, Declined, Implementation, Row, Setup
from .peers import Peers

SECONDS = 8.0  # time limit of one implementation in one row, not counting its first call
PATIENCE = 20.0  # an implementation whose first call takes longer gets no second call to warm up
SERIES_MS = {"cpu": 2_000.0, "cuda": 500.0}  # a slower implementation is not run for the next size of a series

Result = dict[str, Any]


@dataclass
class Harness:
    """Measures rows one after another."""

    setup: Setup
    peers: Peers
    compiles: bool = True
    _last: dict[tuple[str, str], float] = field(default_factory=dict)

    def measure(self, row: Row) -> Result:
        """Check and time one row.

        Args:
            row: The row to measure.

        Returns:
            The result in the format of the JSON file. If ours is wrong or raises, nothing is timed: `state` is then
            "wrong" or "failed", and `reason` holds the error.
        """
        torch.manual_seed(0)
        result: Result = {"name": row.name, "state": "timed", "implementations": {}}
        if row.series:
            result |= {"series": row.series, "size": row.size}
        try:
            comparison = row.build()
        except Declined as reason:
            return result | {"state": "declined", "reason": str(reason)}
        seconds: dict[str, float] = {}
        ready: dict[str, Implementation] = {}
        for name, kind, make in self._implementations(row, comparison):
            state, error, implementation, seconds[name] = check_first_call(make, comparison)
            result["implementations"][name] = {"kind": kind, "state": state} | ({"reason": error} if error else {})
            if implementation is not None:
                ready[name] = implementation
            elif name == "ours":
                return result | {"state": state, "reason": error}
        self._time(row, comparison, ready, seconds, result["implementations"])
        return result | self._summarize(comparison, result["implementations"])

    def _implementations(
        self, row: Row, comparison: Comparison
    ) -> Iterator[tuple[str, str, Callable[[], Implementation]]]:
        """Name, kind and constructor of each implementation."""
        yield "ours", "ours", lambda: comparison.ours
        for name, plain in comparison.plain.items():
            yield name, "plain", self._unless_slow(row, name, lambda plain=plain: plain)  # type: ignore[misc]
        if comparison.compiled is not None and self.compiles and not self.setup.quick:
            yield "compiled", "compiled", _reset_compiler(comparison.compiled)
        for name, related in comparison.related.items():
            yield name, "related", lambda related=related: related  # type: ignore[misc]
        if comparison.work is not None:
            for name, make in self.peers.implementations(*comparison.work):
                yield name, "peer", self._unless_slow(row, name, make)

    def _unless_slow(self, row: Row, name: str, make: Callable[[], Implementation]) -> Callable[[], Implementation]:
        last = self._last.get((row.series, name), 0.0) if row.series else 0.0
        if last <= SERIES_MS[self.setup.device]:
            return make

        def decline() -> Implementation:
            raise Declined(f"took {last:.0f} ms for the previous, smaller size")

        return decline

    def _time(
        self,
        row: Row,
        comparison: Comparison,
        ready: dict[str, Implementation],
        seconds: dict[str, float],
        results: dict[str, Result],
    ) -> None:
        def clock(call: Callable[[], Any]) -> float:
            return comparison.clock(call) if comparison.clock else clocks.milliseconds(call, self.setup.device)

        most = min(row.rounds, 3) if self.setup.quick else row.rounds
        rounds: dict[str, int] = {}
        times: dict[str, list[float]] = {name: [] for name in ready}

        def time_once(name: str, implementation: Implementation) -> list[float]:
            """The time of one call. An implementation that raises is dropped from the row, except ours."""
            try:
                return [clock(implementation.call)]
            except Exception as error:
                if name == "ours":
                    raise
                results[name] |= {"state": "failed", "reason": _reason(error)}
                ready.pop(name)
                return []

        for name, implementation in list(ready.items()):
            # The first call may have compiled kernels, so a second one estimates the duration.
            if seconds[name] < PATIENCE or results[name]["kind"] in ("ours", "compiled"):
                begin = time.perf_counter()
                time_once(name, implementation)
                seconds[name] = time.perf_counter() - begin
            rounds[name] = max(1, min(most, int(SECONDS / max(seconds[name], 1e-9))))
        for number in range(max(rounds.values())):
            for name, implementation in list(ready.items()):
                if number < rounds[name]:
                    times[name] += time_once(name, implementation)
        for name, implementation in ready.items():
            results[name] |= {"ms": clocks.summary(times[name]), "rounds": rounds[name]}
            results[name]["ratio"] = results[name]["ms"]["median"] / results["ours"]["ms"]["median"]
            slow = comparison.clock is not None or seconds[name] > SECONDS
            results[name]["peak_MiB"] = None if slow else clocks.peak_mib(implementation.call, self.setup.device)
            self._last[row.series, name] = results[name]["ms"]["median"]

    def _summarize(self, comparison: Comparison, results: dict[str, Result]) -> Result:
        """The fastest alternative to ours, and the time of a copy of the same number of bytes."""
        alternatives = {name: each for name, each in results.items() if each["kind"] in ("plain", "peer")}
        timed = {name: each for name, each in alternatives.items() if "ms" in each}
        summary: Result = {}
        if timed:
            best = min(timed, key=lambda name: timed[name]["ms"]["median"])
            summary["best"] = {"name": best, "ratio": timed[best]["ratio"]}
        if comparison.moved:
            floor = clocks.copy_ms(comparison.moved, self.setup.device, 3 if self.setup.quick else 11)
            ours = results["ours"]["ms"]["median"]
            summary |= {"moved_bytes": comparison.moved, "floor_ms": floor, "times_floor": ours / floor}
        return summary


def missing_compiler(device: str) -> str:
    """The reason why `torch.compile` cannot work on this machine, or an empty string."""
    names = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "clang++"]
    if device == "cpu" and not any(map(shutil.which, names)):
        return f"skipping compiled PyTorch: torch.compile needs a C++ compiler, found no {' or '.join(names)}"
    return ""


def check_first_call(
    make: Callable[[], Implementation], comparison: Comparison
) -> tuple[str, str, Implementation | None, float]:
    """Build an implementation, call it once, and check the result.

    Args:
        make: Builds the implementation.
        comparison: Holds the check.

    Returns:
        State, reason, the implementation if it can be timed, and the seconds of its first call.
    """
    begin = time.perf_counter()
    try:
        implementation = make()
        begin = time.perf_counter()
        outcome = implementation.call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        received = implementation.read(outcome)
    except Declined as reason:
        return "declined", str(reason), None, 0.0
    except Exception as error:  # peer libraries may raise anything; the run continues
        return "failed", _reason(error), None, 0.0
    try:
        (implementation.check or comparison.check)(received)
    except Exception as error:  # a result of the wrong type may raise in the check
        return "wrong", _reason(error), None, 0.0
    return "timed", "", implementation, seconds


def _reset_compiler(make: Callable[[], Implementation]) -> Callable[[], Implementation]:
    """Discard compiled code, so that each row is compiled for its own shapes only."""

    def reset_and_make() -> Implementation:
        torch._dynamo.reset()
        return make()

    return reset_and_make


def _reason(error: BaseException) -> str:
    return one_line(error, with_type=not isinstance(error, AssertionError), limit=200)

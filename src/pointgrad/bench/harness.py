"""How a row is checked and timed.

Everyone is checked before anyone is timed. All contestants of a row take turns in the same run, so that a busy machine
slows all of them.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from . import clocks
from .contest import Attempt, Contest, Declined, Row, Setup
from .peers import Peers

SECONDS = 8.0  # what one contestant may take of one row, beyond its first call
PATIENCE = 20.0  # whose first call took longer is not warmed up again
SERIES_MS = {"cpu": 2_000.0, "cuda": 500.0}  # over this, a contestant is not asked for the next size of a series

Result = dict[str, Any]


@dataclass
class Harness:
    """Measures rows, one after another."""

    setup: Setup
    peers: Peers
    compiles: bool = True
    _last: dict[tuple[str, str], float] = field(default_factory=dict)

    def measure(self, row: Row) -> Result:
        """The result of a row, as the JSON file has it.

        If ours is wrong or raises, nothing is timed: `state` is then not "timed", and `reason` says why.
        """
        torch.manual_seed(0)
        result: Result = {"name": row.name, "state": "timed", "contestants": {}}
        if row.series:
            result |= {"series": row.series, "size": row.size}
        try:
            contest = row.build()
        except Declined as why:
            return result | {"state": "declined", "reason": str(why)}
        seconds: dict[str, float] = {}
        ready: dict[str, Attempt] = {}
        for name, kind, make in self._entrants(row, contest):
            state, reason, attempt, seconds[name] = _try(make, contest)
            result["contestants"][name] = {"kind": kind, "state": state} | ({"reason": reason} if reason else {})
            if attempt is not None:
                ready[name] = attempt
            elif name == "ours":
                return result | {"state": state, "reason": reason}
        self._time(row, contest, ready, seconds, result["contestants"])
        return result | self._judge(row, contest, result["contestants"])

    def _entrants(self, row: Row, contest: Contest) -> Iterator[tuple[str, str, Callable[[], Attempt]]]:
        yield "ours", "ours", lambda: contest.ours
        for name, attempt in contest.plain.items():
            yield name, "plain", self._unless_slow(row, name, lambda attempt=attempt: attempt)  # type: ignore[misc]
        if contest.compiled is not None and self.compiles and not self.setup.quick:
            yield "compiled", "compiled", _fresh(contest.compiled)
        for name, attempt in contest.beside.items():
            yield name, "beside", lambda attempt=attempt: attempt  # type: ignore[misc]
        if contest.work is not None:
            for name, make in self.peers.attempts(*contest.work):
                yield name, "peer", self._unless_slow(row, name, make)

    def _unless_slow(self, row: Row, name: str, make: Callable[[], Attempt]) -> Callable[[], Attempt]:
        last = self._last.get((row.series, name), 0.0) if row.series else 0.0
        if last <= SERIES_MS[self.setup.device]:
            return make

        def decline() -> Attempt:
            raise Declined(f"{last:.0f} ms for fewer points were long enough")

        return decline

    def _time(
        self, row: Row, contest: Contest, ready: dict[str, Attempt], seconds: dict[str, float], told: dict[str, Result]
    ) -> None:
        def clock(call: Callable[[], Any]) -> float:
            return contest.clock(call) if contest.clock else clocks.milliseconds(call, self.setup.device)

        most = min(row.rounds, 3) if self.setup.quick else row.rounds
        rounds: dict[str, int] = {}
        times: dict[str, list[float]] = {name: [] for name in ready}

        def turn(name: str, attempt: Attempt) -> list[float]:
            """Who raises now is out, unless it is ours."""
            try:
                return [clock(attempt.call)]
            except Exception as error:
                if name == "ours":
                    raise
                told[name] |= {"state": "failed", "reason": _line(error)}
                ready.pop(name)
                return []

        for name, attempt in list(ready.items()):
            # The first call may have compiled kernels; a second one tells how long it takes.
            if seconds[name] < PATIENCE or told[name]["kind"] in ("ours", "compiled"):
                begin = time.perf_counter()
                turn(name, attempt)
                seconds[name] = time.perf_counter() - begin
            rounds[name] = max(1, min(most, int(SECONDS / max(seconds[name], 1e-9))))
        for number in range(max(rounds.values())):
            for name, attempt in list(ready.items()):
                if number < rounds[name]:
                    times[name] += turn(name, attempt)
        for name, attempt in ready.items():
            told[name] |= {"ms": clocks.summary(times[name]), "rounds": rounds[name]}
            told[name]["ratio"] = told[name]["ms"]["median"] / told["ours"]["ms"]["median"]
            slow = contest.clock is not None or seconds[name] > SECONDS
            told[name]["peak_MiB"] = None if slow else clocks.peak_mib(attempt.call, self.setup.device)
            self._last[row.series, name] = told[name]["ms"]["median"]

    def _judge(self, row: Row, contest: Contest, told: dict[str, Result]) -> Result:
        """The best rival, the floor, and what was asked, each with whether it is met."""
        ours = told["ours"]["ms"]["median"]
        rivals = {name: each for name, each in told.items() if each["kind"] in ("plain", "peer") and "ms" in each}
        result: Result = {}
        if rivals:
            best = min(rivals, key=lambda name: rivals[name]["ms"]["median"])
            result["best"] = {"name": best, "ratio": rivals[best]["ratio"]}
        if contest.moved:
            floor = clocks.copy_ms(contest.moved, self.setup.device, 3 if self.setup.quick else 11)
            result |= {"moved_bytes": contest.moved, "floor_ms": floor, "times_floor": ours / floor}
        asked: dict[str, Any] = {}
        against = told.get(row.against or result.get("best", {}).get("name"), {})  # without a time nothing is judged
        if row.at_least is not None and "ratio" in against:
            met = against["ratio"] >= row.at_least
            asked["times_faster"] = {"at_least": row.at_least, "than": row.against, "met": met}
        if row.at_most is not None:
            asked["ms"] = {"at_most": row.at_most, "met": ours <= row.at_most}
        if row.floor_at_most is not None and contest.moved:
            asked["times_floor"] = {"at_most": row.floor_at_most, "met": result["times_floor"] <= row.floor_at_most}
        if row.above is not None and "ms" in against:
            more = ours - against["ms"]["median"]
            asked["ms_above"] = {"at_most": row.above, "than": row.against, "received": more, "met": more <= row.above}
        peaks = [each["peak_MiB"] for each in rivals.values() if each["peak_MiB"] is not None]
        if row.memory_at_least is not None and peaks and told["ours"]["peak_MiB"] is not None:
            less = min(peaks) / max(told["ours"]["peak_MiB"], 1e-9)
            asked["times_less_memory"] = {"at_least": row.memory_at_least, "met": less >= row.memory_at_least}
        return result | ({"asked": asked} if asked and not self.setup.quick else {})


def no_compiler(device: str) -> str:
    """Why `torch.compile` cannot work here, or nothing."""
    names = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "clang++"]
    if device == "cpu" and not any(map(shutil.which, names)):
        return f"nothing is compiled: torch.compile needs a C++ compiler, and {' or '.join(names)} is not there"
    return ""


def _try(make: Callable[[], Attempt], contest: Contest) -> tuple[str, str, Attempt | None, float]:
    """State, reason, the attempt if it may be timed, and the seconds of its first call."""
    begin = time.perf_counter()
    try:
        attempt = make()
        begin = time.perf_counter()
        outcome = attempt.call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        received = attempt.read(outcome)
    except Declined as why:
        return "declined", str(why), None, 0.0
    except Exception as error:  # someone else's library: whatever it raises, the run goes on
        return "failed", _line(error), None, 0.0
    try:
        (attempt.check or contest.check)(received)
    except Exception as error:  # a result of another shape or type is as wrong as another number
        return "wrong", _line(error), None, 0.0
    return "timed", "", attempt, seconds


def _fresh(make: Callable[[], Attempt]) -> Callable[[], Attempt]:
    """Compiled for this row's shapes alone."""

    def anew() -> Attempt:
        torch._dynamo.reset()
        return make()

    return anew


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    name = "" if isinstance(error, AssertionError) and text else f"{type(error).__name__}: "
    return (name + text).rstrip(": ")[:200]

"""What a row of the benchmark is: a piece of work, who does it, how a result is judged, and what is asked."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Call = Callable[[], Any]
Check = Callable[[Any], None]


def short(number: int) -> str:
    """1600000 as 1.6M, 100000 as 100k; other numbers as they are."""
    if number >= 1_000_000 and number % 100_000 == 0:
        return f"{number / 1_000_000:g}M"
    return f"{number // 1000}k" if number % 1000 == 0 and number else str(number)


class Declined(Exception):
    """Raised in place of an attempt that nobody should wait for, or that a library cannot make; it says why."""


@dataclass(frozen=True)
class Setup:
    """Where and how a suite runs."""

    device: str
    quick: bool = False

    @property
    def gpu(self) -> bool:
        return self.device == "cuda"

    def size(self, number: int) -> int:
        """A number of points or rows; in a quick run a small part of it."""
        return max(number // 128, 8) if self.quick else number


@dataclass(frozen=True)
class Attempt:
    """One way to do the work.

    call: what is timed; it converts nothing.
    read: brings what `call` returns into the form that the check expects, untimed.
    check: instead of the row's, where another precision is meant.
    """

    call: Call
    read: Callable[[Any], Any] = lambda result: result
    check: Check | None = None


@dataclass
class Contest:
    """The contestants of a row, ready to run.

    check: raises AssertionError for a wrong result; it judges everyone, ours first.
    plain: forms in plain PyTorch. compiled: makes the form that `torch.compile` built.
    beside: shown, but no rival: a part of the work, or the same work through another door.
    work: its name and its arguments, for the peers that can do it (see `peers`).
    moved: bytes that must pass through memory: each input read once, each output written once.
    clock: milliseconds of one call, if the device's usual clock is not meant.
    """

    ours: Attempt
    check: Check
    plain: dict[str, Attempt] = field(default_factory=dict)
    compiled: Callable[[], Attempt] | None = None
    beside: dict[str, Attempt] = field(default_factory=dict)
    work: tuple[str, dict[str, Any]] | None = None
    moved: int = 0
    clock: Callable[[Call], float] | None = None


@dataclass(frozen=True)
class Row:
    """Work with its name, and what is asked of ours. Nothing is allocated before `build`.

    at_least: times faster than the fastest rival (plain form or peer), or than the one that `against` names.
    at_most: milliseconds. floor_at_most: times the floor: a copy that moves as many bytes.
    memory_at_least: times less peak memory than the rival that takes least.
    above: milliseconds more than the contestant that `against` names.
    series, size: rows that do the same work for more and more points; who was too slow is not asked again.
    """

    name: str
    build: Callable[[], Contest]
    at_least: float | None = None
    against: str | None = None
    at_most: float | None = None
    floor_at_most: float | None = None
    memory_at_least: float | None = None
    above: float | None = None
    rounds: int = 11
    series: str = ""
    size: int = 0

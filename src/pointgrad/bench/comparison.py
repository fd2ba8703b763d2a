"""Rows of the benchmark: the work, the implementations to compare, and the check that every result must pass."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Call = Callable[[], Any]
Check = Callable[[Any], None]


def short(number: int) -> str:
    """Abbreviate round numbers: 1600000 is 1.6M, 100000 is 100k, 4096 stays 4096."""
    if number >= 1_000_000 and number % 100_000 == 0:
        return f"{number / 1_000_000:g}M"
    return f"{number // 1000}k" if number % 1000 == 0 and number else str(number)


class Declined(Exception):
    """Raised instead of building an implementation that is too slow for the row, or does not support it."""


@dataclass(frozen=True)
class Setup:
    """Device and input sizes of a run."""

    device: str
    quick: bool = False

    @property
    def gpu(self) -> bool:
        return self.device == "cuda"

    def size(self, number: int) -> int:
        """A number of clouds, points or rows: `number` itself, or a small fraction of a large number in a quick run."""
        return max(number // 128, 8) if self.quick and number > 32 else number


@dataclass(frozen=True)
class Implementation:
    """One way to do the work of a row.

    Attributes:
        call: The timed call. It must not include conversions of inputs or results.
        read: Converts the result of `call` to the form that the check expects. Not timed.
        check: Replaces the check of the row, for example where another precision is intended.
    """

    call: Call
    read: Callable[[Any], Any] = lambda result: result
    check: Check | None = None


@dataclass
class Comparison:
    """All implementations of the work of a row, ready to run.

    Attributes:
        ours: The implementation in pointgrad.
        check: Raises AssertionError for a wrong result. Applied to every implementation.
        plain: Forms in plain PyTorch, by name.
        compiled: Builds a plain form compiled with `torch.compile`.
        related: Timed and shown, but not an alternative to ours: a part of the work, or the same work through
            another API.
        work: Name and arguments of the work, for the peer libraries that support it (see `peers`).
        moved: Bytes that must pass through memory: each input read once, each output written once.
        clock: Measures the milliseconds of one call, in place of the default clock of the device.
    """

    ours: Implementation
    check: Check
    plain: dict[str, Implementation] = field(default_factory=dict)
    compiled: Callable[[], Implementation] | None = None
    related: dict[str, Implementation] = field(default_factory=dict)
    work: tuple[str, dict[str, Any]] | None = None
    moved: int = 0
    clock: Callable[[Call], float] | None = None


@dataclass(frozen=True)
class Row:
    """A named piece of work. Inputs are allocated by `build`.

    Attributes:
        name: Name in tables and results, unique among all rows of a device.
        build: Allocates the inputs and returns the implementations.
        rounds: Number of timed calls of each implementation.
        series: Rows of one series do the same work on more and more points. An implementation that was too slow for
            one size is not run for the next.
        size: Number of points, for rows of a series.
    """

    name: str
    build: Callable[[], Comparison]
    rounds: int = 11
    series: str = ""
    size: int = 0

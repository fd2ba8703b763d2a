"""`pointgrad bench [SUITE...]`: how fast this machine is, with proof that it is right."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from .fail import fail

WRONG = 2  # exit status, as the help of the command says
REFUSED = 1
STOPPED = 130


@dataclass
class Bench:
    """Checks, then times, operators beside plain and compiled PyTorch and every peer library that is installed.

    Exit status: 0; 1 if a result of ours is wrong, whose row is not timed; 2 for a wrong command line.
    """

    suites: Annotated[Positional[tuple[str, ...]], arg(metavar="SUITE")] = ()
    """Which work; --list names them. By default all but the slow ones."""

    device: Literal["cpu", "cuda"] = "cpu"
    """Where."""

    only: str = ""
    """Only rows whose name has all these words: --only "nearest 4096"."""

    out: Path | None = None
    """A JSON file for everything that was measured; folders are made."""

    quick: bool = False
    """Tiny inputs, few rounds, nothing compiled: shows that all of it works here, not how fast."""

    list: bool = False
    """Name the suites, with what they measure, and measure nothing."""

    def run(self) -> int:
        from pointgrad import bench

        if self.list:
            for name in bench.NAMES:
                print(f"{name:12} {bench.describe(name)}")
            return 0
        try:
            record = bench.run(self.suites, self.device, self.only, self.out, self.quick)
        except bench.WrongRequest as error:
            return fail("bench", WRONG, str(error))
        except KeyboardInterrupt:
            return fail("bench", STOPPED, "stopped; nothing is written")
        return REFUSED if any(row["state"] in ("wrong", "failed") for row in record["rows"]) else 0

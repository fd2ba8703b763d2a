"""`pointgrad bench [FAMILY...]`: check and time the operators on this machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from .status import ExitStatus, fail


@dataclass
class Bench:
    """Check and then time the operators against plain PyTorch, compiled PyTorch and every installed peer library.

    Exit status: 0 on success; 1 if a result of pointgrad is wrong, in which case that row is not timed; 2 for an
    invalid command line.
    """

    families: Annotated[Positional[tuple[str, ...]], arg(metavar="FAMILY")] = ()
    """Families of operators to measure; see --list. By default all but the slow ones."""

    device: Literal["cpu", "cuda"] = "cpu"
    """Device to measure on."""

    only: str = ""
    """Measure only rows whose name contains all of these words, for example --only "nearest 4096"."""

    out: Path | None = None
    """JSON file for the results. Missing folders are created."""

    quick: bool = False
    """Use tiny inputs and few rounds, and do not compile: a test of the benchmark, whose times mean nothing."""

    list: bool = False
    """List the families and exit."""

    def run(self) -> int:
        from pointgrad import bench

        if self.list:
            for name in bench.NAMES:
                print(f"{name:12} {bench.describe(name)}")
            return ExitStatus.OK
        try:
            record = bench.run(self.families, self.device, self.only, self.out, self.quick)
        except bench.RequestError as error:
            return fail("bench", ExitStatus.USAGE, error, self)
        except KeyboardInterrupt:
            return fail("bench", ExitStatus.INTERRUPTED, "interrupted; no results were written")
        wrong = any(row["state"] in ("wrong", "failed") for row in record["rows"])
        return ExitStatus.FAILED if wrong else ExitStatus.OK

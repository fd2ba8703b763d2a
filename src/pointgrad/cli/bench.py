"""`pointgrad bench [SUITE...]`: correctness and speed of operators on this machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from .status import ExitStatus, fail


@dataclass
class Bench:
    """Check and time operators, beside plain and compiled PyTorch and every peer library that is installed.

    Exit status: 0; 1 if a result of pointgrad is wrong (such rows are not timed); 2 for a wrong command line.
    """

    suites: Annotated[Positional[tuple[str, ...]], arg(metavar="SUITE")] = ()
    """Benchmarks to run; --list shows them. By default all except the slow ones."""

    device: Literal["cpu", "cuda"] = "cpu"
    """Device to measure."""

    only: str = ""
    """Run only rows whose name contains all these words: --only "nearest 4096"."""

    out: Path | None = None
    """JSON file for all measurements; its folder is created."""

    quick: bool = False
    """Use tiny inputs, few repetitions and no compilation, to test the benchmark itself."""

    list: bool = False
    """List the benchmarks and exit."""

    def run(self) -> int:
        from pointgrad import bench

        if self.list:
            for name in bench.NAMES:
                print(f"{name:12} {bench.describe(name)}")
            return ExitStatus.OK
        try:
            record = bench.run(self.suites, self.device, self.only, self.out, self.quick)
        except bench.WrongRequest as error:
            return fail("bench", ExitStatus.USAGE, error)
        except KeyboardInterrupt:
            return fail("bench", ExitStatus.INTERRUPTED, "interrupted; nothing is written")
        wrong = any(row["state"] in ("wrong", "failed") for row in record["rows"])
        return ExitStatus.FAILED if wrong else ExitStatus.OK

"""`python -m reliability.numbers.properties [--cases 1000] [--backend NAME] --out FILE.json`: many inputs per law.

Runs `tests/ops/properties` with this many inputs per law and records the number of inputs and the outcome. Results of
other backends in the file are kept. Without `--backend`, the default backend of the device.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from ..arguments import out_file

ROOT = Path(__file__).parents[2]
LAWS = ROOT / "tests" / "ops" / "properties"


class Outcomes:
    """A pytest plugin that records the outcome and the number of inputs of each test."""

    def __init__(self) -> None:
        self.of: dict[str, str] = {}
        self.inputs: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.of[report.nodeid] = report.outcome
        if report.when == "teardown":
            self.inputs[report.nodeid] = dict(report.user_properties).get("inputs", 0)

    def laws(self) -> dict[str, dict[str, Any]]:
        """Laws that ran, and laws that failed before: if the process crashed, the number of inputs is unknown."""
        tried = {name: self.inputs.get(name, 0) for name in self.of}
        return {
            name: {"inputs": tried[name], "outcome": outcome}
            for name, outcome in self.of.items()
            if tried[name] or outcome == "failed"
        }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000, help="number of inputs per law")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="laws run at the same time")
    parser.add_argument("--backend", choices=["cpu", "reference", "triton"])
    parser.add_argument("--out", type=out_file, required=True)
    options = parser.parse_args(arguments)
    os.environ["POINTGRAD_CASES"] = str(options.cases)
    if options.backend:
        os.environ["POINTGRAD_BACKEND"] = options.backend

    import pytest

    outcomes, begin = Outcomes(), time.time()
    workers = ["-p", "xdist", "-n", str(options.at_once)]
    pytest.main(["-q", *workers, "-p", "no:cacheprovider", f"--rootdir={ROOT}", str(LAWS)], plugins=[outcomes])
    # Imported late: the tests set environment variables that torch and Triton read.
    import torch

    from pointgrad.bench import write
    from pointgrad.bench.machine import machine

    laws = outcomes.laws()
    if not laws:
        print(f"no law ran; {options.out} is unchanged", file=sys.stderr)
        return 1
    failed = sum(outcome != "passed" for outcome in outcomes.of.values())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    run = {
        "machine": machine(device),
        "cases": options.cases,
        "seconds": round(time.time() - begin),
        "laws": len(laws),
        "inputs": sum(law["inputs"] for law in laws.values()),
        "failed": failed,
        "by_law": dict(sorted(laws.items())),
    }
    where = f"{device}, {options.backend or ('triton' if device == 'cuda' else 'cpu')}"
    record = (
        json.loads(options.out.read_text()) if options.out.exists() else {"program": "reliability.numbers.properties"}
    )
    record.setdefault("runs", {})[where] = run
    write(record, options.out)
    print(f"{where}: {run['laws']} laws, {run['inputs']} inputs, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m reliability.foreign FOLDER... --out FILE.json`: run the tests of other libraries on `pointgrad.compat`.

Each folder holds the sources of a library, such as a clone of its repository. Its tests are copied, without the
library itself, and run unchanged with `python -m pointgrad.compat run`; `suites.py` lists the few parts of their
scaffolding that are replaced, and tests that are out of scope. A test during which the process crashes or hangs
counts as failed, and the remaining tests run in a new process. The exit status is 1 if a test fails.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from pointgrad.bench import write
from pointgrad.bench.machine import machine

from ..arguments import at_least, out_file
from ..checkout import ROOT, commit
from . import grouped
from .suites import GRAPHS, SUITES, Suite

SECONDS = 300  # without progress
COMPAT = ["-m", "pointgrad.compat", "run"]
DONE = (0, 1, 2, 5)  # pytest: passed, failed, failed to import a file, nothing left to run
REFUSAL = "works on graphs, not on points"  # a function that exists because programs import it, see compat
NO_CUDA = ("Torch not compiled with CUDA enabled", "Found no NVIDIA driver", "No CUDA GPUs are available")


def recognized(folder: Path) -> Suite:
    """The suite whose files a folder contains."""
    for suite in SUITES:
        if all((folder / path).exists() for path in (suite.version, *suite.tests)):
            return suite
    names = ", ".join(suite.name for suite in SUITES)
    raise argparse.ArgumentTypeError(f"must contain the sources of one of {names}, got {str(folder)!r}")


def run(suite: Suite, sources: Path, seconds: int = SECONDS) -> dict[str, Any]:
    """Run a suite, and count and list the outcomes."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder)
        copy(suite, sources, stage / "tests")
        tests = outcomes(suite, sources, stage, seconds)
        failed = [test for test, (outcome, _) in tests.items() if outcome == "failed"]
        before = outcomes(suite, sources, stage, seconds, only=failed) if suite.compare and failed else {}
    for test in failed:
        if REFUSAL in tests[test][1] and before.get(test, ("",))[0] == "skipped":
            tests[test] = ("out of scope", GRAPHS)
    listed = [{"test": test, "reason": tests[test][1]} for test in failed if tests[test][0] == "failed"]
    known = [test for test in failed if before.get(test, ("",))[0] == "failed"]
    kinds = {
        kind: dict(Counter(reason for outcome, reason in tests.values() if outcome == kind).most_common())
        for kind in ("skipped", "out of scope")
    }
    return {
        "library": suite.name,
        "version": version(suite, sources),
        "passed": sum(outcome == "passed" for outcome, _ in tests.values()),
        "failed": [each for each in listed if each["test"] not in known],
        "failed_without_compat": [each for each in listed if each["test"] in known] if suite.compare else None,
        "skipped": kinds["skipped"],
        "out_of_scope": kinds["out of scope"],
        "seconds": round(time.monotonic() - began),
        "commit": commit(),
        "machine": machine("cpu"),
    }


def version(suite: Suite, sources: Path) -> str:
    found = re.search(r"""^__version__ = ["'](.+)["']""", (sources / suite.version).read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{suite.version} must define __version__")
    return found[1]


def copy(suite: Suite, sources: Path, target: Path) -> None:
    """Copy the tests."""
    target.mkdir()
    for path in suite.copied:
        if (sources / path).is_dir():
            shutil.copytree(sources / path, target / path, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(sources / path, target / path)


def outcomes(
    suite: Suite, sources: Path, stage: Path, seconds: int, only: Collection[str] | None = None
) -> dict[str, tuple[str, str]]:
    """Outcome and reason of every test with compat, or of the tests in `only` without compat."""
    journal, settings = stage / "journal", stage / "settings.json"
    journal.write_text("")
    settings.write_text(
        json.dumps(
            {
                "journal": str(journal),
                "tests": suite.tests if only is None else sorted({test.partition("::")[0] for test in only}),
                "only": None if only is None else sorted(only),
                "helpers": {name: str((sources / path).resolve()) for name, path in suite.helpers.items()},
                "out_of_scope": suite.out_of_scope if only is None else {},
                "seconds": seconds,
            }
        )
    )
    program = [str(Path(__file__).with_name("session.py")), str(settings)]
    compat = [*COMPAT, *(["--cpu"] if suite.cpu and not torch.cuda.is_available() else [])]
    command = [sys.executable, *(compat if only is None else []), *program]
    while True:
        status, text = process(command, stage / "tests")
        events = [json.loads(line) for line in journal.read_text().splitlines()]
        running = unfinished(events)
        if running is None:
            break
        with journal.open("a") as file:
            file.write(json.dumps({"test": running, "outcome": "failed", "reason": ended(status, seconds)}) + "\n")
    last = events[-1].get("ended") if events else None
    if last not in DONE:
        raise SystemExit(f"{suite.name}: the process {ended(status, seconds)}\n{text[-2000:]}")
    found = {event["test"]: (event["outcome"], event["reason"]) for event in events if "outcome" in event}
    if status != last:
        found["exit of the process"] = ("failed", ended(status, seconds))
    paths = re.compile("|".join(re.escape(f"{path}/") for path in (stage / "tests", ROOT, sources.resolve())))
    return {test: readable(outcome, paths.sub("", reason)) for test, (outcome, reason) in found.items()}


def unfinished(events: list[dict[str, str]]) -> str | None:
    """The test or file that was running when the process ended, if any."""
    begun = [event["test"] for event in events if len(event) == 1]
    finished = {event["test"] for event in events if len(event) > 1}
    return next((test for test in begun if test not in finished), None)


def readable(outcome: str, reason: str) -> tuple[str, str]:
    """Outcome and reason, where a test that fails only because the machine has no GPU is skipped."""
    if outcome == "failed" and any(message in reason for message in NO_CUDA):
        return "skipped", "needs CUDA"
    return outcome, reason


def ended(status: int, seconds: int) -> str:
    """Describe how a process ended."""
    if status == -signal.SIGALRM:
        return f"made no progress for {seconds} s"
    return f"crashed with {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def process(command: list[str], folder: Path) -> tuple[int, str]:
    """Run a process and the processes that it starts. Returns its exit status and output."""
    paths = [str(ROOT / "src"), str(folder), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
    with (folder.parent / "output").open("w+") as output:
        child = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            status = child.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        output.seek(0)
        return status, output.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="sources of a library")
    parser.add_argument("--seconds", type=at_least(1), default=SECONDS, help="time limit for one test")
    parser.add_argument("--out", type=out_file, required=True, help="results; other libraries in it are kept")
    arguments = parser.parse_args()
    try:
        suites = [(recognized(folder), folder) for folder in arguments.folders]
    except argparse.ArgumentTypeError as error:
        parser.error(f"FOLDER {error}")
    failed = False
    for suite, folder in suites:
        record = run(suite, folder, arguments.seconds)
        results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
        results[f"{record['library']} {record['version']}"] = record
        write(dict(sorted(results.items())), arguments.out)
        counts = {"passed": record["passed"], "failed": len(record["failed"])}
        counts |= {key: sum(record[key].values()) for key in ("skipped", "out_of_scope")}
        print(f"{suite.name} {record['version']}: {counts}, {record['seconds']} s", flush=True)
        for (test, reason), count in grouped(record["failed"]).items():
            print(f"  {test}: {reason}" + (f" ({count} cases)" if count > 1 else ""))
        failed |= bool(record["failed"])
    sys.exit(int(failed))


if __name__ == "__main__":
    main()

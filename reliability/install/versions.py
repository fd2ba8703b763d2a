"""Records the outcome of the tests with one pair of Python and torch versions.

    python -m reliability.install.versions junit.xml --selection "" --commit C --out reliability/results/versions.json

`versions.sh` runs this with the interpreter that ran the tests. Adds or replaces the entry of its pair of versions,
with the counts of pytest's report.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import sysconfig
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from reliability.arguments import out_file

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def counts(report: Path) -> dict[str, Any]:
    """Numbers of outcomes in a JUnit report, and the reasons of skipped tests."""
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    if not suites or not sum(int(suite.get("tests", 0)) for suite in suites):
        raise ValueError(f"{report} must contain at least one test, got none")
    total = Counter({"tests": 0, "failures": 0, "errors": 0, "skipped": 0})
    for suite in suites:
        total.update({name: int(suite.get(name, 0)) for name in total})
    reasons = Counter(
        skip.get("message", "") for suite in suites for case in suite.iter("testcase") for skip in case.iter("skipped")
    )
    failed = total["failures"] + total["errors"]
    return {
        "passed": total["tests"] - failed - total["skipped"],
        "skipped": total["skipped"],
        "failed": failed,
        "seconds": round(sum(float(suite.get("time", 0)) for suite in suites)),
        "skips": dict(reasons.most_common()),
    }


def versions() -> dict[str, str | None]:
    """Versions of this interpreter and of the relevant packages. Unlike `pointgrad.bench`, needs only torch."""
    return {
        "python": platform.python_version() + ("t" if FREE_THREADED else ""),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "numpy": _version("numpy"),
        "system": f"{platform.system()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "date": time.strftime("%Y-%m-%d"),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def merged(entries: list[dict[str, Any]], entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries, with `entry` replacing an older one of the same versions and selection."""

    def key(each: dict[str, Any]) -> tuple[Any, ...]:
        return each["python"], each["torch"], each["selection"]

    kept = [each for each in entries if key(each) != key(entry)]
    return sorted([*kept, entry], key=lambda each: (*map(key_of_version, key(each)[:2]), each["selection"]))


def key_of_version(version: str) -> list[int]:
    """Sort key of a version such as "2.6.0+cpu" or "3.13.1t"."""
    return [int("".join(filter(str.isdigit, part)) or 0) for part in version.partition("+")[0].split(".")]


def write(entries: list[dict[str, Any]], path: Path) -> None:
    """Write atomically with the standard library, since pointgrad may not be importable."""
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(json.dumps(entries, indent=1) + "\n")
    os.replace(draft, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path, help="file written by pytest --junitxml")
    parser.add_argument("--selection", default="", help="pytest arguments that selected tests, empty if all tests ran")
    parser.add_argument("--commit", help="commit of the checkout when the run began, empty if unknown")
    parser.add_argument("--out", type=out_file, required=True, help="JSON file with the entries of all versions")
    options = parser.parse_args()
    entries = json.loads(options.out.read_text()) if options.out.exists() else []
    entry = {**versions(), "commit": options.commit or None, "selection": options.selection, **counts(options.report)}
    write(merged(entries, entry), options.out)
    print(
        f"Python {entry['python']}, torch {entry['torch']}: {entry['passed']} passed, {entry['skipped']} skipped, "
        f"{entry['failed']} failed"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""One pytest process: `python session.py SETTINGS.json` runs tests and records each outcome in a journal.

The journal has one JSON object per line, written at once, so that it is complete if the process crashes. A process that
makes no progress for `seconds` ends with SIGALRM. Tests whose outcome is already in the journal are not run again.
"""

import fnmatch
import importlib.util
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest


class Recorder:
    """Pytest plugin that writes the journal."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        path = Path(settings["journal"])
        events = [json.loads(line) for line in path.read_text().splitlines()]
        self.done = {event["test"] for event in events if "outcome" in event}
        self.journal = path.open("a")
        self.reports: list[Any] = []

    def write(self, test: str, **event: str | int) -> None:
        """Write an event, and start the time limit again."""
        self.journal.write(json.dumps({"test": test, **event}) + "\n")
        self.journal.flush()
        signal.alarm(self.settings["seconds"])

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.write("", ended=int(exitstatus))

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        """Skip a file during whose import an earlier process crashed."""
        return collection_path.relative_to(config.rootpath).as_posix() in self.done or None

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        if isinstance(collector, pytest.Module):
            self.write(collector.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.nodeid.endswith(".py"):
            if report.passed:
                self.write(report.nodeid, imported="")
            elif self.wanted(report.nodeid):
                self.done.add(report.nodeid)
                self.write(report.nodeid, **self.outcome(report.nodeid, [report]))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        found = {item.nodeid for item in items} | self.done
        for pattern in self.settings["out_of_scope"]:
            if not fnmatch.filter(found, pattern):
                raise pytest.UsageError(f"out_of_scope must match tests, got {pattern!r}, which matches none")
        for item in items:
            if item.nodeid not in self.done and self.scope(item.nodeid):
                self.write(item.nodeid, **self.outcome(item.nodeid, []))
                self.done.add(item.nodeid)
        items[:] = [item for item in items if item.nodeid not in self.done and self.wanted(item.nodeid)]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.reports = []
        self.write(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.write(nodeid, **self.outcome(nodeid, self.reports))

    def wanted(self, test: str) -> bool:
        return self.settings["only"] is None or test in self.settings["only"]

    def scope(self, test: str) -> str | None:
        """Reason why a test is out of scope, if it is."""
        reasons = self.settings["out_of_scope"].items()
        return next((reason for pattern, reason in reasons if fnmatch.fnmatchcase(test, pattern)), None)

    def outcome(self, test: str, reports: list[Any]) -> dict[str, str]:
        """Outcome and reason of a test: it fails if any phase does, and is skipped if any phase is."""
        reason = self.scope(test)
        if reason:
            return {"outcome": "out of scope", "reason": reason}
        for outcome in ("failed", "skipped"):
            for report in reports:
                if report.outcome == outcome:
                    return {"outcome": outcome, "reason": first_line(report)}
        return {"outcome": "passed", "reason": ""}


def first_line(report: Any) -> str:
    """First line of the reason for a failure or a skip."""
    text = getattr(report, "wasxfail", "")
    if isinstance(report.longrepr, tuple):  # a skip: file, line and reason
        text = text or report.longrepr[2].removeprefix("Skipped: ")
    elif hasattr(report.longrepr, "reprcrash") and report.longrepr.reprcrash is not None:
        text = text or report.longrepr.reprcrash.message
    else:  # an error during the import of a file ends with the message
        lines = [line[1:].strip() for line in str(report.longrepr).splitlines() if line.startswith("E ")]
        text = text or "\n".join(lines) or str(report.longrepr)
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    if "in DataLoader worker process" in lines[0]:  # a traceback follows
        return lines[-1][:300]
    end = 2 if lines[0].endswith(":") else 1  # only the type of the error
    return " ".join(lines[:end])[:300]


def load_helper(name: str, path: str) -> None:
    """Import a module of test helpers from the sources of the library, unless compat has it."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])


def main() -> int:
    settings = json.loads(Path(sys.argv[1]).read_text())
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).parent]
    for name, path in settings["helpers"].items():
        load_helper(name, path)
    recorder = Recorder(settings)
    options = ["--rootdir=.", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "--continue-on-collection-errors"]
    tests = [path for path in settings["tests"] if path not in recorder.done]
    if tests:
        return pytest.main([*options, *tests], plugins=[recorder])
    recorder.pytest_sessionfinish(0)  # every file was run by an earlier process
    return 0


if __name__ == "__main__":
    sys.exit(main())

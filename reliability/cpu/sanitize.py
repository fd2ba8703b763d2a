"""Tests the C++ kernels with AddressSanitizer, UndefinedBehaviorSanitizer or ThreadSanitizer.

    python -m reliability.cpu.sanitize address --out reliability/results/sanitizers.json

Builds the module with the sanitizer in a separate folder, checks that this module is loaded and that the sanitizer
reports each defect in `planted.cpp`, and runs the tests of the operators. Every report is recorded and fails the run.
Needs GCC, nanobind and the dependencies of the tests.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pointgrad.bench import write
from pointgrad.bench.machine import machine
from reliability.arguments import at_least, out_file
from reliability.checkout import commit

ROOT = Path(__file__).parents[2]
FILES = [
    path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "tests" / "ops").glob("test_*.py"))
    if path.stem not in ("test_devices", "test_gpu")  # no C++ kernels
]
# Tests that run no C++ kernels or only repeat them: Triton's interpreter, plain PyTorch, tracing, and finite
# differences, whose gradients test_agrees_with_reference covers.
DESELECTED = [
    "cpu-triton",
    "cpu-reference",
    "test_compile",
    "test_compiled",
    "test_export",
    "test_opcheck",
    "gradcheck",
]


@dataclass(frozen=True)
class Tool:
    library: str
    options: dict[str, str]
    planted: dict[str, str]  # calls of planted.cpp, and text of the expected report
    deselected: tuple[str, ...] = ()
    situations: tuple[str, ...] = ()  # situations of concurrency.py to run
    threads: int = 2


TOOLS = {
    "address": Tool(
        "libasan.so",
        # Leaks are not detected, since Python never frees some of its memory. A failed allocation must return null to
        # the kernels, as it does without the sanitizer.
        {"ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:allocator_may_return_null=1"},
        {
            "planted.read_past_the_end(pointer, 10)": "heap-buffer-overflow",
            "planted.read_after_return()": "stack-use-after-return",
        },
    ),
    "undefined": Tool(
        "libubsan.so",
        {"UBSAN_OPTIONS": "print_stacktrace=1"},
        {
            "planted.add_to_the_largest(ctypes.c_int64(1))": "signed integer overflow",
            "planted.cast_to_int(ctypes.c_double(1e30))": "outside the range of representable values",
            "planted.read_past_an_array(5)": "out of bounds",
            "planted.shift(40)": "shift exponent",
        },
    ),
    "thread": Tool(
        "libtsan.so",
        # Python and torch are not instrumented, so their own threads cannot be checked.
        {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1:report_signal_unsafe=0:die_after_fork=0:halt_on_error=0"},
        {
            "planted.add_in_two_threads(pointer, 1000)": "data race",
            "in_two_python_threads(lambda: planted.add_without_a_lock(pointer, 5000000))": "data race",
        },
        # Repeated small calls cover no other interaction of threads than a single one.
        deselected=("nan_and_infinity", "expanded", "non_contiguous", "autocast", "writes_every_element"),
        situations=("python_threads", "set_num_threads", "backward"),
        threads=4,
    ),
}

PLANTED = """
import ctypes, sys, threading, torch
planted = ctypes.CDLL(sys.argv[1])
values = torch.zeros(10)
pointer = ctypes.c_void_p(values.data_ptr())
def in_two_python_threads(call):
    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


class Build:
    """A build of the module with one sanitizer."""

    def __init__(self, name: str) -> None:
        self.name, self.tool = name, TOOLS[name]
        self.folder = ROOT / "build" / f"sanitize-{name}"
        self.package = self.folder / "package"
        self.reports = self.folder / "reports"

    def build(self) -> None:
        configure = ["cmake", "-S", str(ROOT), "-B", str(self.folder), f"-DPOINTGRAD_SANITIZE={self.name}"]
        subprocess.run([*configure, f"-DPython_EXECUTABLE={sys.executable}"], check=True)
        subprocess.run(["cmake", "--build", str(self.folder), "--parallel"], check=True)
        inner = self.package / "pointgrad"
        inner.mkdir(parents=True, exist_ok=True)
        for entry in inner.iterdir():
            entry.unlink()
        for source in (ROOT / "src" / "pointgrad").iterdir():
            if source.suffix != ".so":
                (inner / source.name).symlink_to(source)
        (module,) = self.folder.glob("_native*.so")
        (inner / module.name).symlink_to(module)
        # Runs in every interpreter, including workers, since an editable install takes precedence over PYTHONPATH.
        (self.package / "sitecustomize.py").write_text(
            "import sys\n"
            'sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]\n'
        )

    def python(self, *arguments: str, timeout: float, show: bool = False) -> subprocess.CompletedProcess[str]:
        """Run an interpreter with the sanitizer and its module. The output is captured unless `show` is set."""
        libraries = [_runtime(self.tool.library), _runtime("libstdc++.so")]  # must be loaded before torch
        options = {name: f"{value}:log_path={self.reports}/report" for name, value in self.tool.options.items()}
        environment = {
            **os.environ, **options, "LD_PRELOAD": " ".join(libraries), "PYTHONMALLOC": "malloc",
            "PYTHONPATH": f"{self.package}:{ROOT}", "OMP_NUM_THREADS": str(self.tool.threads),
        }  # fmt: skip
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, env=environment, cwd=ROOT, text=True, capture_output=not show, timeout=timeout
        )  # fmt: skip

    def take_reports(self) -> list[str]:
        """Reports since the previous call."""
        self.reports.mkdir(parents=True, exist_ok=True)
        files = sorted(self.reports.iterdir())
        texts = [file.read_text(errors="replace") for file in files]
        for file in files:
            file.unlink()
        return texts

    def check_itself(self) -> dict[str, str]:
        """Check that the module is the instrumented one and that every planted defect is reported, and return these."""
        done = self.python("-c", "from pointgrad.ops import native; print(native.module.sanitizer)", timeout=300)
        if done.stdout.strip() != self.name:
            sys.exit(f"the loaded module was not built with {self.name}: {done.stdout}{done.stderr}")
        self.take_reports()
        seen = {}
        for call, expected in self.tool.planted.items():
            done = self.python("-c", PLANTED + call, str(self.folder / "libplanted.so"), timeout=300)
            text = "\n".join([*self.take_reports(), done.stderr])
            if expected not in text:
                sys.exit(f"{self.name} does not report {call}: {text[-2000:]}")
            seen[call] = expected
        return seen

    def run_tests(self, timeout: float) -> dict[str, Any]:
        results = self.folder / "tests.xml"
        results.unlink(missing_ok=True)
        without = " and ".join(f"not {name}" for name in (*DESELECTED, *self.tool.deselected))
        pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={results}"]
        run = self.python(*pytest, *FILES, "-k", without, timeout=timeout, show=True)
        if not results.exists():
            return {"tests": 0, "failed": f"the run ended early, with status {run.returncode}"}
        suite = ElementTree.parse(results).getroot()[0]
        counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
        return {
            "tests": counts["tests"] - counts["skipped"], "failed": counts["failures"] + counts["errors"],
            "skipped": counts["skipped"],
        }  # fmt: skip

    def run_situations(self, rounds: int, timeout: float) -> dict[str, Any]:
        if not self.tool.situations:
            return {}
        arguments = ["--here", *self.tool.situations, "--rounds", str(rounds), "--limit", str(timeout)]
        run = self.python("-m", "reliability.cpu.concurrency", *arguments, timeout=timeout + 60)
        done = dict(json.loads(line) for line in run.stdout.splitlines())
        for situation in set(self.tool.situations) - set(done):
            done[situation] = {"calls": 0, "outcome": f"failed with status {run.returncode}", "log": run.stderr[-3000:]}
        print(done, flush=True)
        return done


def _runtime(library: str) -> str:
    """Path of a runtime library of GCC."""
    done = subprocess.run(["gcc", f"-print-file-name={library}"], check=True, text=True, capture_output=True)
    return str(Path(done.stdout.strip()).resolve())


def _first_lines(report: str) -> str:
    """The error of a report, and its locations in our sources."""
    lines = report.splitlines()
    error = next((line for line in lines if re.search(r"ERROR|WARNING|runtime error", line)), report[:200])
    locations = [line.strip() for line in lines if "pointgrad/ops" in line][:4]
    return "\n".join([error.strip(), *locations])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", choices=TOOLS, help="the sanitizer")
    parser.add_argument("--rounds", type=at_least(1), default=2, help="rounds of each concurrent situation")
    parser.add_argument("--timeout", type=float, default=3000, help="seconds for the tests")
    parser.add_argument("--out", type=out_file, help="JSON file with the results of all sanitizers")
    given = parser.parse_args()
    tried, build = commit(), Build(given.tool)
    build.build()
    planted = build.check_itself()
    print("reported:", planted, flush=True)
    before = time.monotonic()
    tests = build.run_tests(given.timeout)
    situations = build.run_situations(given.rounds, given.timeout)
    reports = [_first_lines(report) for report in build.take_reports()]
    for report in reports:
        print(report)
    compiler = subprocess.run(["g++", "--version"], check=True, text=True, capture_output=True).stdout.splitlines()[0]
    result = {
        "machine": machine("cpu") | {"threads": build.tool.threads}, "compiler": compiler, "commit": tried,
        "options": build.tool.options, "planted_and_seen": planted, **tests,
    }  # fmt: skip
    result |= {"situations": situations} if situations else {}
    result |= {"reports": reports, "seconds": round(time.monotonic() - before)}
    if given.out:
        all_tools = json.loads(given.out.read_text()) if given.out.exists() else {}
        all_tools[given.tool] = result
        write(all_tools, given.out)
    same = all(each["outcome"] == "same" for each in situations.values())
    sys.exit(0 if not reports and tests["failed"] == 0 and tests["tests"] and same else 1)


if __name__ == "__main__":
    main()

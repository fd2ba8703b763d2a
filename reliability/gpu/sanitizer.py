"""Runs `reliability.gpu.kernels` with the tools of NVIDIA's compute-sanitizer and records their reports.

    python -m reliability.gpu.sanitizer --out reliability/results/gpu_sanitizer.json

Memory is not cached, so that each tensor has its own allocation, which is followed by padding. Every tool must first
report a planted error, to prove that it works. A kernel that was never launched fails the run.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pointgrad.bench import write
from pointgrad.bench.machine import machine

from ..arguments import at_least, out_file
from .kernels import entries

TOOLS = {"memcheck": ["--padding", "64"], "racecheck": [], "synccheck": []}
SUMMARY = re.compile(r"========= ((?:ERROR|RACECHECK) SUMMARY: .*)")
SEEN = re.compile(r"[1-9]\d* error")


def run_kernels(tool: str | None, arguments: list[str], limit: float) -> tuple[str, str]:
    """Run `reliability.gpu.kernels` with a tool, or without one. Returns its state and its output."""
    command = [sys.executable, "-m", "reliability.gpu.kernels", *arguments]
    if tool:
        watch = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *TOOLS[tool]]
        if tool == "racecheck" and "--planted" not in arguments:  # torch's kernels would take minutes
            for name in entries():
                watch += ["--kernel-name", f"kernel_name={name.rpartition('.')[2]}"]
        command = [*watch, *command]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired as stopped:
        return f"not finished in {limit:.0f} s", (stopped.stderr or b"").decode(errors="replace")
    state = {0: "clean", 9: "errors"}.get(done.returncode, f"exit status {done.returncode}")
    return state, done.stdout + done.stderr


def run_in_parts(tool: str | None, parts: int, limit: float, more: list[str]) -> dict[str, Any]:
    """Run all calls with a tool, in `parts` parallel processes, and return the combined result."""
    begin = time.monotonic()

    def run(part: int) -> tuple[str, str]:
        return run_kernels(tool, ["--part", str(part), str(parts), *more], limit)

    with ThreadPoolExecutor(parts) as pool:
        results = list(pool.map(run, range(parts)))
    states = sorted({state for state, _ in results})
    counted = [json.loads(line) for _, text in results for line in text.splitlines() if line.startswith('{"calls"')]
    launched: dict[str, int] = {}
    for count in counted:
        for name, forms in count["launched"].items():
            launched[name] = launched.get(name, 0) + forms
    failed = [text.splitlines() for state, text in results if state != "clean"]
    reports = [line for lines in failed for line in lines if line.startswith("=========")]
    return {
        "tool": tool or "none",
        "options": TOOLS[tool] if tool else [],
        "arguments": more,
        "state": ", ".join(states),
        "summaries": sorted({found for _, text in results for found in SUMMARY.findall(text)}),
        "calls": sum(count["calls"] for count in counted),
        "kernels": len(launched),
        "never_launched": [name for name, forms in launched.items() if not forms],
        "seconds": round(time.monotonic() - begin),
        "reports": reports[:300],
        "last_lines": [lines[-3:] for lines in failed],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS), help="tools to run")
    parser.add_argument("--parts", type=at_least(1), default=min(os.cpu_count() or 1, 14), help="parallel processes")
    parser.add_argument("--limit", type=float, default=600, help="seconds per tool")
    parser.add_argument("--out", type=out_file, required=True, help="JSON file for the results")
    arguments, more = parser.parse_known_args()  # other arguments are passed to kernels.py
    if shutil.which("compute-sanitizer") is None:
        raise SystemExit("compute-sanitizer must be on the PATH; it is part of the CUDA toolkit")
    version = subprocess.run(["compute-sanitizer", "--version"], capture_output=True, text=True).stdout
    record: dict[str, Any] = {"machine": machine("cuda"), "version": version.split("Version ")[-1].strip(), "tools": []}
    # Compile all kernels first, which would take long with a tool.
    print(run_in_parts(None, arguments.parts, arguments.limit, more), flush=True)
    for tool in arguments.tools:
        state, text = run_kernels(tool, ["--planted", tool], 120)
        run = run_in_parts(tool, arguments.parts, arguments.limit, more)
        summary = (SUMMARY.findall(text) or [state])[-1]
        if not SEEN.search(summary):  # the exit status may be that of the program, which the error ends
            run["state"] += ", planted error not reported"
        record["tools"].append({**run, "planted_error": summary, "planted_state": state})
        print(json.dumps(record["tools"][-1], indent=1), flush=True)
        write(record, arguments.out)
    if any(run["state"] != "clean" or run["never_launched"] for run in record["tools"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

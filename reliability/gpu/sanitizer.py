"""Runs `reliability.gpu.kernels` under the tools of NVIDIA's compute-sanitizer and writes down what they said.

    python -m reliability.gpu.sanitizer --out reliability/results/gpu_sanitizer.json

Memory is not cached, so that each tensor ends where its allocation ends, and a padding follows each allocation.
First every tool is shown a kernel with a planted error: a tool that does not see it proves nothing. A kernel that was
never launched fails the run.
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


def ran(tool: str | None, arguments: list[str], limit: float) -> tuple[str, str]:
    """How it ended, and all that was printed; under no tool if that is None."""
    command = [sys.executable, "-m", "reliability.gpu.kernels", *arguments]
    if tool:
        watch = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *TOOLS[tool]]
        if tool == "racecheck" and "--planted" not in arguments:  # it takes minutes for torch's kernels: only for ours
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


def in_parts(tool: str | None, parts: int, limit: float, more: list[str]) -> dict[str, Any]:
    begin = time.monotonic()

    def run(part: int) -> tuple[str, str]:
        return ran(tool, ["--part", str(part), str(parts), *more], limit)

    with ThreadPoolExecutor(parts) as pool:
        results = list(pool.map(run, range(parts)))
    states = sorted({state for state, _ in results})
    counted = [json.loads(line) for _, text in results for line in text.splitlines() if line.startswith('{"calls"')]
    launched: dict[str, int] = {}
    for count in counted:
        for name, forms in count["launched"].items():
            launched[name] = launched.get(name, 0) + forms
    troubled = [text.splitlines() for state, text in results if state != "clean"]
    said = [line for lines in troubled for line in lines if line.startswith("=========")]
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
        "said": said[:300],
        "last_lines": [lines[-3:] for lines in troubled],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=["memcheck", "racecheck", "synccheck"])
    parser.add_argument("--parts", type=at_least(1), default=min(os.cpu_count() or 1, 14), help="processes at once")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one tool")
    parser.add_argument("--out", type=out_file, required=True)
    arguments, more = parser.parse_known_args()  # the rest is for kernels.py
    if shutil.which("compute-sanitizer") is None:
        raise SystemExit("compute-sanitizer must be on the PATH; it comes with CUDA's toolkit")
    version = subprocess.run(["compute-sanitizer", "--version"], capture_output=True, text=True).stdout
    record: dict[str, Any] = {"machine": machine("cuda"), "version": version.split("Version ")[-1].strip(), "tools": []}
    # Compiles everything first: under a tool that would take long.
    print(in_parts(None, arguments.parts, arguments.limit, more), flush=True)
    for tool in arguments.tools:
        state, text = ran(tool, ["--planted", tool], 120)
        run = in_parts(tool, arguments.parts, arguments.limit, more)
        said = (SUMMARY.findall(text) or [state])[-1]
        if not SEEN.search(said):  # not by the exit status, which is the program's own where the error ends it
            run["state"] += ", planted error not seen"
        record["tools"].append({**run, "planted_error": said, "planted_state": state})
        print(json.dumps(record["tools"][-1], indent=1), flush=True)
        write(record, arguments.out)
    if any(run["state"] != "clean" or run["never_launched"] for run in record["tools"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

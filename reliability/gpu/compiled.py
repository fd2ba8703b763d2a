"""Compiles all variants of the Triton kernels that the test cases launch, for GPUs that need not be available.

    python -m reliability.gpu.compiled record out/launches.json
    python -m reliability.gpu.compiled compile out/launches.json cuda:80:32 --out reliability/results/compiled.json

`record` runs the test cases in Triton's interpreter (3.7 or later), with the block sizes of a GPU, and records the
arguments of every launch. `compile` compiles these variants for each target (backend:architecture:warp size) with the
installed Triton, which may be an older one. Nothing is launched.
"""

import argparse
import importlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from pointgrad.writing import replace_bytes
from reliability.arguments import at_least, out_file
from reliability.checkout import commit

COOPERATIVE = "launch_cooperative_grid"  # option for programs that synchronize; supported since Triton 3.3


def record(few: bool) -> dict[str, list[str]]:
    """Record the launches of the test cases, in all dtypes, with atomics and in deterministic mode.

    Args:
        few: Use one case of each operator, in float32 only.

    Returns:
        Arguments of the different launches, as JSON, by kernel.
    """
    os.environ["TRITON_INTERPRET"] = "1"
    import triton
    from triton.runtime import interpreter

    import pointgrad
    from pointgrad.catalog import CASES, Make
    from pointgrad.ops import launch
    from reliability.gpu.kernels import DTYPES, SHARED, differentiated, sample
    from reliability.interpreter import speed_up

    speed_up()
    launch.INTERPRETED = False  # use the launch parameters of a GPU
    launch.jit = triton.jit
    launch.shared_memory = lambda device: 227 << 10
    launch.has_tf32 = lambda device: True
    from pointgrad.ops.sampling import kernels as sampling

    torch.cuda.get_device_properties = lambda device=None: SimpleNamespace(multi_processor_count=132)
    launches: dict[str, dict[str, None]] = defaultdict(dict)
    run = interpreter.InterpretedFunction.run

    def run_and_record(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        encoded = [list(map(_encode, args)), {name: _encode(value) for name, value in kwargs.items()}]
        launches[f"{kernel.fn.__module__}:{kernel.fn.__name__}"][json.dumps(encoded)] = None
        if COOPERATIVE not in kwargs:  # the interpreter runs programs serially, so they cannot wait for each other
            run(kernel, *args, grid=grid, warmup=warmup, **kwargs)

    interpreter.InterpretedFunction.run = run_and_record
    cases, dtypes, ways = [case for case in CASES if case.op.registered], DTYPES, (False, True)
    if few:
        cases, dtypes = [*{case.op.name: case for case in reversed(cases)}.values()], DTYPES[:1]
    with pointgrad.backend("triton"):
        for case, dtype, deterministic in product(cases, dtypes, (False, True)):
            torch.use_deterministic_algorithms(deterministic)
            for cooperative in ways if case.op.call is pointgrad.farthest_point_sampling else ways[:1]:
                sampling.can_launch_cooperatively = lambda cooperative=cooperative: cooperative
                differentiated(case, case.sample.build(Make(dtype, "cpu")))
        for cooperative, dtype, (clouds, points, _) in product(ways[few:], dtypes[:2], SHARED):
            sampling.can_launch_cooperatively = lambda cooperative=cooperative: cooperative
            sample(torch.rand(clouds, points, 3, dtype=dtype), 2)
    return {kernel: list(forms) for kernel, forms in launches.items()}


def _encode(value: Any) -> Any:
    """An argument as JSON. A tensor becomes its dtype and its offset from a multiple of 16 bytes, in elements."""
    import triton.language as tl

    if isinstance(value, torch.Tensor):
        return {
            "tensor": str(value.dtype).removeprefix("torch."),
            "from": value.data_ptr() % 16 // value.element_size(),
        }
    return {"type": str(value)} if isinstance(value, tl.dtype) else value


def _decode(value: Any) -> Any:
    import triton.language as tl

    if not isinstance(value, dict):
        return tuple(value) if isinstance(value, list) else value
    if "type" in value:
        return tl.dtype(value["type"])
    return torch.empty(64, dtype=getattr(torch, value["tensor"]))[value["from"] :]


class NoGpu:
    """A Triton driver for a GPU that is not available."""

    def __init__(self, target: str) -> None:
        from triton.backends.compiler import GPUTarget

        backend, architecture, warp = target.split(":")
        self.target = GPUTarget(backend, int(architecture) if architecture.isdigit() else architecture, int(warp))

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def part_of(launches: Path, part: int, parts: int) -> list[tuple[str, str]]:
    """Every `parts`-th variant, starting with `part`, with its kernel."""
    found = json.loads(launches.read_text())
    return [(kernel, form) for kernel, forms in found.items() for form in forms][part::parts]


def child(launches: Path, target: str, part: int, parts: int, first: int) -> None:
    """Compile the variants of a part, beginning with number `first`, and print the hash or the error of each."""
    import triton

    from pointgrad.ops.launch import can_launch_cooperatively

    triton.runtime.driver.set_active(NoGpu(target))
    for kernel, form in part_of(launches, part, parts)[first:]:
        module, _, name = kernel.partition(":")
        function = getattr(importlib.import_module(module), name)
        args, kwargs = json.loads(form)
        compiled_hash, reason = None, ""
        try:
            if COOPERATIVE not in kwargs or can_launch_cooperatively():
                named = {key: _decode(value) for key, value in kwargs.items()}
                compiled_hash = function.run(*map(_decode, args), grid=(1,), warmup=True, **named).hash
        except Exception as error:
            # In older versions of Triton, the message holds the location, and the cause the reason.
            cause = f"\n{error.__cause__}" if error.__cause__ else ""
            reason = f"{type(error).__name__}: {error}{cause}"[-2000:]
        print(json.dumps([compiled_hash, reason]), flush=True)


def compile_part(launches: Path, target: str, part: int, parts: int) -> tuple[set[str], dict[str, str]]:
    """Compile a part of the variants in new processes, since the compiler may crash.

    Returns:
        Hashes of the compiled variants, and the reasons of the failed ones.
    """
    forms = part_of(launches, part, parts)
    outcomes: list[tuple[str | None, str]] = []
    while len(outcomes) < len(forms):
        command = [sys.executable, "-m", "reliability.gpu.compiled", "child", str(launches), target]
        command += [str(number) for number in (part, parts, len(outcomes))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            outcomes += [tuple(json.loads(line)) for line in process.stdout]
        if process.returncode:
            status = f"exit status {process.returncode}"
            outcomes.append((None, signal.Signals(-process.returncode).name if process.returncode < 0 else status))
    failed = {f"{kernel} {form}": reason for (kernel, form), (_, reason) in zip(forms, outcomes, strict=True) if reason}
    return {compiled_hash for compiled_hash, _ in outcomes if compiled_hash}, failed


def compile_all(launches: Path, target: str, at_once: int) -> dict[str, Any]:
    """Compile all variants for a target, in `at_once` processes."""
    import triton

    tested, begin = commit(), time.monotonic()
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(at_once) as pool:
        os.environ["TRITON_CACHE_DIR"] = cache  # empty, so that everything is compiled
        found = list(pool.map(lambda part: compile_part(launches, target, part, at_once), range(at_once)))
    return {
        "target": target, "triton": triton.__version__, "torch": torch.__version__, "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"), "commit": tested, "seconds": round(time.monotonic() - begin),
        "kernels": len(json.loads(launches.read_text())), "forms": len(set().union(*(forms for forms, _ in found))),
        "failed": {form: reason for _, failed in found for form, reason in failed.items()},
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    recording = actions.add_parser("record", help="record the launches of the test cases")
    recording.add_argument("launches", type=out_file, help="JSON file to write")
    recording.add_argument("--few", action="store_true", help="one case of each operator, in float32 only")
    compiling = actions.add_parser("compile", help="compile the recorded launches")
    compiling.add_argument("launches", type=Path, help="JSON file written by record")
    compiling.add_argument(
        "targets", nargs="+", type=target, metavar="TARGET", help="for example cuda:90:32 or hip:gfx942:64"
    )
    compiling.add_argument("--at-once", type=at_least(1), default=os.cpu_count(), help="number of processes")
    compiling.add_argument(
        "--out", type=out_file, required=True, help="JSON file; results of other versions and targets are kept"
    )
    working = actions.add_parser("child")
    working.add_argument("launches", type=Path)
    working.add_argument("target")
    for name in ("part", "parts", "first"):
        working.add_argument(name, type=int)
    given = parser.parse_args()
    if given.action == "child":
        child(given.launches, given.target, given.part, given.parts, given.first)
        return 0
    if given.action == "record":
        given.launches.write_text(json.dumps(record(given.few), indent=0))
        return 0
    if not json.loads(given.launches.read_text()):
        parser.error(f"{given.launches} must contain at least one launch, got none")
    os.environ.pop("TRITON_INTERPRET", None)
    runs = json.loads(given.out.read_text()) if given.out.exists() else []
    failed = 0
    for name in given.targets:
        result = compile_all(given.launches, name, given.at_once)
        runs = [run for run in runs if (run["triton"], run["target"]) != (result["triton"], name)] + [result]
        replace_bytes(given.out, f"{json.dumps(runs, indent=1)}\n".encode())
        failed += len(result["failed"])
        counts = f"{result['forms']} variants of {result['kernels']} kernels, {len(result['failed'])} failed"
        print(f"{name}: {counts}", flush=True)
        for form, reason in result["failed"].items():
            print(form, reason, sep="\n", file=sys.stderr)
    return 1 if failed else 0


def target(text: str) -> str:
    """Argument type of a target, such as cuda:90:32."""
    if not re.fullmatch(r"cuda:\d+:32|hip:gfx\w+:(32|64)", text):
        raise argparse.ArgumentTypeError(f"must have the form cuda:90:32 or hip:gfx942:64, got {text}")
    return text


if __name__ == "__main__":
    sys.exit(main())

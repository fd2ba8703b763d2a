"""The forms of Triton kernels that the contract launches, compiled by the installed Triton for GPUs that are not there.

    python -m reliability.gpu.compiled record out/launches.json
    python -m reliability.gpu.compiled compile out/launches.json cuda:80:32 --out reliability/results/compiled.json

`record` writes down with which arguments the contract's cases launch kernels, while Triton's interpreter (3.7 or later)
runs them with the tiles of a GPU. `compile` compiles all of these for each target, backend:architecture:warp size, with
any Triton: the one that an old torch brings, say. Nothing is launched.
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

COOPERATIVE = "launch_cooperative_grid"  # for programs that wait for each other; Triton knows it from 3.3 on


def record(few: bool) -> dict[str, list[str]]:
    """What the contract's cases launch, in all dtypes, with atomics and in deterministic mode: arguments by kernel."""
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter

    import pointgrad
    from pointgrad.catalog import CASES, Make
    from pointgrad.ops import launch
    from reliability.gpu.kernels import DTYPES, SHARED, differentiated, sample

    launch.INTERPRETED = False  # gives kernels what a GPU would be given
    from pointgrad.ops.sampling import kernels as sampling

    torch.cuda.get_device_properties = lambda device=None: SimpleNamespace(multi_processor_count=132)
    launches: dict[str, dict[str, None]] = defaultdict(dict)
    run = interpreter.InterpretedFunction.run

    def run_and_record(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        written = [list(map(_written, args)), {name: _written(value) for name, value in kwargs.items()}]
        launches[f"{kernel.fn.__module__}:{kernel.fn.__name__}"][json.dumps(written)] = None
        if COOPERATIVE not in kwargs:  # the interpreter runs one program after another: none could wait for a later one
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


def _written(value: Any) -> Any:
    """Of a tensor its dtype and how far it begins behind a multiple of 16 bytes, in elements."""
    import triton.language as tl

    if isinstance(value, torch.Tensor):
        return {
            "tensor": str(value.dtype).removeprefix("torch."),
            "from": value.data_ptr() % 16 // value.element_size(),
        }
    return {"type": str(value)} if isinstance(value, tl.dtype) else value


def _read(value: Any) -> Any:
    import triton.language as tl

    if not isinstance(value, dict):
        return value
    if "type" in value:
        return tl.dtype(value["type"])
    return torch.empty(64, dtype=getattr(torch, value["tensor"]))[value["from"] :]


class NoGpu:
    """Triton's driver of a GPU that is only compiled for."""

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
    """Every so-and-so-many-th form, with its kernel."""
    found = json.loads(launches.read_text())
    return [(kernel, form) for kernel, forms in found.items() for form in forms][part::parts]


def child(launches: Path, target: str, part: int, parts: int, first: int) -> None:
    """Compiles the forms of a part, from one of them on, and prints for each what Triton calls it, or why not."""
    import triton

    from pointgrad.ops.launch import can_launch_cooperatively

    triton.runtime.driver.set_active(NoGpu(target))
    for kernel, form in part_of(launches, part, parts)[first:]:
        module, _, name = kernel.partition(":")
        function = getattr(importlib.import_module(module), name)
        args, kwargs = json.loads(form)
        made, why = None, ""
        try:
            if COOPERATIVE not in kwargs or can_launch_cooperatively():
                named = {key: _read(value) for key, value in kwargs.items()}
                made = function.run(*map(_read, args), grid=(1,), warmup=True, **named).hash
        except Exception as error:
            # Older Tritons say where in the error, and why in its cause.
            cause = f"\n{error.__cause__}" if error.__cause__ else ""
            why = f"{type(error).__name__}: {error}{cause}"[-2000:]
        print(json.dumps([made, why]), flush=True)


def compiled(launches: Path, target: str, part: int, parts: int) -> tuple[set[str], dict[str, str]]:
    """What Triton calls the forms of a part; and of those that were refused which, and why. In a process of its own: a
    compiler may crash."""
    forms = part_of(launches, part, parts)
    said: list[tuple[str | None, str]] = []
    while len(said) < len(forms):
        command = [sys.executable, "-m", "reliability.gpu.compiled", "child", str(launches), target]
        command += [str(number) for number in (part, parts, len(said))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            said += [tuple(json.loads(line)) for line in process.stdout]
        if process.returncode:
            how = f"exit status {process.returncode}"
            said.append((None, signal.Signals(-process.returncode).name if process.returncode < 0 else how))
    failed = {f"{kernel} {form}": why for (kernel, form), (_, why) in zip(forms, said, strict=True) if why}
    return {made for made, _ in said if made}, failed


def compile_all(launches: Path, target: str, at_once: int) -> dict[str, Any]:
    import triton

    tried, begin = commit(), time.monotonic()
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(at_once) as pool:
        os.environ["TRITON_CACHE_DIR"] = cache  # an empty one
        found = list(pool.map(lambda part: compiled(launches, target, part, at_once), range(at_once)))
    return {
        "target": target, "triton": triton.__version__, "torch": torch.__version__, "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"), "commit": tried, "seconds": round(time.monotonic() - begin),
        "kernels": len(json.loads(launches.read_text())), "forms": len(set().union(*(forms for forms, _ in found))),
        "failed": {form: why for _, failed in found for form, why in failed.items()},
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    recording = actions.add_parser("record")
    recording.add_argument("launches", type=out_file)
    recording.add_argument("--few", action="store_true", help="one case of each operator, in float32 only")
    compiling = actions.add_parser("compile")
    compiling.add_argument("launches", type=Path)
    compiling.add_argument("targets", nargs="+", type=a_target, metavar="TARGET", help="cuda:90:32, hip:gfx942:64")
    compiling.add_argument("--at-once", type=at_least(1), default=os.cpu_count())
    compiling.add_argument("--out", type=out_file, required=True, help="runs of other Tritons and targets in it stay")
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
        parser.error(f"{given.launches} must hold at least one launch, got none")
    os.environ.pop("TRITON_INTERPRET", None)
    runs = json.loads(given.out.read_text()) if given.out.exists() else []
    refused = 0
    for target in given.targets:
        made = compile_all(given.launches, target, given.at_once)
        runs = [run for run in runs if (run["triton"], run["target"]) != (made["triton"], target)] + [made]
        replace_bytes(given.out, f"{json.dumps(runs, indent=1)}\n".encode())
        refused += len(made["failed"])
        print(
            f"{target}: {made['forms']} forms of {made['kernels']} kernels, {len(made['failed'])} refused", flush=True
        )
        for form, why in made["failed"].items():
            print(form, why, sep="\n", file=sys.stderr)
    return 1 if refused else 0


def a_target(text: str) -> str:
    if not re.fullmatch(r"cuda:\d+:32|hip:gfx\w+:(32|64)", text):
        raise argparse.ArgumentTypeError(f"a target must look like cuda:90:32 or hip:gfx942:64, got {text}")
    return text


if __name__ == "__main__":
    sys.exit(main())

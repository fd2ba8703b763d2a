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
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
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
    from pointgrad.ops import launch
    from reliability.gpu.kernels import CASES, DTYPES, SHARED, Make, differentiated, sample

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
    cases, dtypes, ways = [case for case in CASES if not case.plain], DTYPES, (False, True)
    if few:
        cases, dtypes = [*{case.operator: case for case in reversed(cases)}.values()], DTYPES[:1]
    with pointgrad.backend("triton"):
        for case, dtype, deterministic in product(cases, dtypes, (False, True)):
            torch.use_deterministic_algorithms(deterministic)
            for cooperative in ways if case.operator is pointgrad.farthest_point_sampling else ways[:1]:
                sampling.can_launch_cooperatively = lambda cooperative=cooperative: cooperative
                differentiated(case, case.inputs(Make(dtype, "cpu")))
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


def compiled(launches: dict[str, list[str]], target: str, kernel: str) -> tuple[int, dict[str, str]]:
    """How many forms of one kernel there are, and of those that were refused which, and why."""
    import triton

    from pointgrad.ops.launch import can_launch_cooperatively

    triton.runtime.driver.set_active(NoGpu(target))
    module, _, name = kernel.partition(":")
    function = getattr(importlib.import_module(module), name)
    forms, failed = set(), {}
    for written in launches[kernel]:
        args, kwargs = json.loads(written)
        if COOPERATIVE in kwargs and not can_launch_cooperatively():
            continue
        try:
            made = function.run(
                *map(_read, args), grid=(1,), warmup=True, **{key: _read(value) for key, value in kwargs.items()}
            )
            if made is None:
                raise RuntimeError(f"Triton compiled nothing of {kernel}")
            forms.add(id(made))  # Triton keeps them
        except Exception as error:
            failed[f"{kernel} {written}"] = f"{type(error).__name__}: {error}"[-2000:]
    return len(forms), failed


def compile_all(launches: dict[str, list[str]], target: str, at_once: int) -> dict[str, Any]:
    import triton

    of = commit()
    begin = time.monotonic()
    kernels = sorted(launches, key=lambda kernel: -len(launches[kernel]))
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache  # an empty one, also of the processes
        with ProcessPoolExecutor(at_once, get_context("spawn")) as pool:
            found = list(pool.map(partial(compiled, launches, target), kernels))
    failed = {form: why for _, each in found for form, why in each.items()}
    return {
        "target": target, "triton": triton.__version__, "torch": torch.__version__, "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"), "commit": of, "kernels": len(launches),
        "forms": sum(forms for forms, _ in found), "failed": failed, "seconds": round(time.monotonic() - begin),
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
    given = parser.parse_args()
    if given.action == "record":
        given.launches.write_text(json.dumps(record(given.few), indent=0))
        return 0
    launches = json.loads(given.launches.read_text())
    if not launches:
        parser.error(f"{given.launches} must hold at least one launch, got none")
    os.environ.pop("TRITON_INTERPRET", None)
    runs = json.loads(given.out.read_text()) if given.out.exists() else []
    refused = 0
    for target in given.targets:
        made = compile_all(launches, target, given.at_once)
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

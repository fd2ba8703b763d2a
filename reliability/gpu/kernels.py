"""Launches every Triton kernel of pointgrad on a GPU with many inputs, and prints which ones were launched.

    python -m reliability.gpu.kernels

`reliability.gpu.sanitizer` runs this with tools that check every memory access. The inputs are the test cases in all
dtypes, with first and second derivatives, with atomics and in deterministic mode, larger inputs, and invalid sizes and
indices.
"""

import argparse
import ast
import importlib
import inspect
import json
import pkgutil
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton

import pointgrad
from pointgrad import ops
from pointgrad.catalog import CASES, Case, Make, first_float

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# Clouds, points and samples, one for each strategy of farthest point sampling: one warp per cloud, one program, several
# programs, and streaming.
SHARED = ((40, 500, 20), (2, 5000, 80), (1, 60_000, 100), (1, 600_000, 12))


def entries() -> dict[str, Any]:
    """All kernels by `family.name`, except those that are only called by other kernels."""
    found: dict[str, Any] = {}
    called: list[Any] = []
    for info in pkgutil.walk_packages(ops.__path__, ops.__name__ + "."):
        if not info.name.endswith(("kernels", ".segments", ".mixing")):
            continue
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            if isinstance(value, triton.JITFunction) and value.fn.__module__ == info.name:
                found[f"{info.name.removeprefix('pointgrad.ops.')}.{name}"] = value
                nodes = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(value.fn))))
                names = (node.func for node in nodes if isinstance(node, ast.Call))
                called += [vars(module).get(name.id) for name in names if isinstance(name, ast.Name)]
    return {name: kernel for name, kernel in found.items() if not any(kernel is other for other in called)}


def variants(kernel: Any) -> int:
    """Number of compiled variants of a kernel that this process has launched."""
    return sum(len(cache[0]) for cache in kernel.device_caches.values())


def differentiated(case: Case, arguments: dict[str, Any]) -> None:
    """Run a call, its backward pass, and the backward pass of that."""
    named = case.op.sources(arguments)
    results = case({**arguments, **named})
    if not named:
        return
    output, sources = first_float(results), list(named.values())
    first = torch.autograd.grad(output, sources, torch.randn_like(output), create_graph=True)
    live = [grad for grad in first if grad.requires_grad]
    if live:
        torch.autograd.grad(live, sources, [torch.randn_like(grad) for grad in live], allow_unused=True)


def calls(large: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    """Names and calls."""
    for case in CASES:
        if not case.op.registered:
            continue
        for dtype in DTYPES:
            arguments = case.sample.build(Make(dtype, "cuda"))
            yield f"{case.name}, {dtype}", lambda case=case, arguments=arguments: differentiated(case, arguments)
        if large and case.sample.large:
            arguments = case.sample.large(Make(torch.float32, "cuda"))
            yield f"{case.name}, large", lambda case=case, arguments=arguments: differentiated(case, arguments)
    for batch, size, count in SHARED:
        points = torch.rand(batch, size, 3, device="cuda")
        yield f"sampling {size}", lambda points=points, count=count: sample(points, count)
    # Invalid sizes and indices, which are only read on the device, must not cause accesses out of bounds.
    points, features = torch.rand(50, 3, device="cuda"), torch.rand(50, 7, device="cuda", requires_grad=True)
    for bounds in ([0, 20, 70], [-4, 90, 50], [40, 2, 50], [0, 2**40, 3]):
        offsets = torch.tensor(bounds, device="cuda")
        yield f"offsets {bounds}", lambda offsets=offsets: _invalid_offsets(points, offsets)
    for bad in (50, -2, 2**40, -(2**40)):
        index = torch.tensor([[0, bad, 3], [bad, bad, 49]], device="cuda")
        yield f"index {bad}", lambda index=index: _invalid_index(features, index)


def sample(points: torch.Tensor, count: int) -> None:
    pointgrad.farthest_point_sampling(points, count, return_radius=True)


def _invalid_offsets(points: torch.Tensor, offsets: torch.Tensor) -> None:
    pointgrad.farthest_point_sampling(points, 4, offsets=offsets)
    pointgrad.knn(points, 3, offsets=offsets)
    pointgrad.knn(points, 3, points[:9], offsets=offsets, query_offsets=offsets)
    pointgrad.ball_query(points, 0.3, 3, offsets=offsets)
    pointgrad.segment(points, offsets)
    pointgrad.segment(points, offsets, "max")
    pointgrad.segment_softmax(points, offsets)


def _invalid_index(features: torch.Tensor, index: torch.Tensor) -> None:
    pointgrad.gather(features, index.view(-1)).sum().backward()
    pointgrad.group(features, index).sum().backward()
    weights = torch.rand(2, 3, device="cuda", requires_grad=True)
    pointgrad.interpolate_at(features, index, weights).sum().backward()
    pointgrad.scatter(torch.rand(2, 3, 5, device="cuda", requires_grad=True), index, 50).sum().backward()
    pointgrad.scatter(torch.rand(2, 3, 5, device="cuda", requires_grad=True), index, 50, "max").sum().backward()
    pointgrad.histogram(index, 50)


# Planted errors that the tools must report: an access out of bounds, a data race, and a divergent barrier.
PLANTED = {
    "memcheck": 'extern "C" __global__ void planted(float* x) { x[threadIdx.x + 32] = 1; }',
    "racecheck": """extern "C" __global__ void planted(float* x) {
        __shared__ float s[64];
        s[threadIdx.x] = threadIdx.x;
        x[threadIdx.x] = s[63 - threadIdx.x];
    }""",
    "synccheck": """extern "C" __global__ void planted(float* x) {
        if (threadIdx.x < 40) { __syncthreads(); }
        x[0] = 1;
    }""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="include the large inputs of the test cases")
    parser.add_argument(
        "--part", type=int, nargs=2, default=(0, 1), metavar=("I", "N"), help="run every N-th call, beginning with I"
    )
    parser.add_argument("--only", type=re.compile, default="", metavar="REGEX", help="run calls whose name matches")
    parser.add_argument(
        "--planted", choices=PLANTED, help="only launch a kernel with an error that this tool must report"
    )
    arguments = parser.parse_args()
    if arguments.planted:
        threads = 32 if arguments.planted == "memcheck" else 64
        kernel = torch.cuda._compile_kernel(PLANTED[arguments.planted], "planted")
        kernel((1, 1, 1), (threads, 1, 1), (torch.zeros(threads, device="cuda"),))
        torch.cuda.synchronize()
        return
    torch.manual_seed(0)
    part, parts = arguments.part
    done = 0
    for number, (name, call) in enumerate(calls(arguments.large)):
        if number % parts != part or not arguments.only.search(name):
            continue
        print(name, file=sys.stderr, flush=True)  # shows where the process stopped
        for deterministic in (False, True):
            torch.use_deterministic_algorithms(deterministic)
            try:
                call()
                torch.cuda.synchronize()
            except Exception as error:
                raise RuntimeError(f"{name}, deterministic {deterministic}") from error
            done += 1
    launched = {name: variants(kernel) for name, kernel in entries().items()}
    print(json.dumps({"calls": done, "launched": launched}))


if __name__ == "__main__":
    main()

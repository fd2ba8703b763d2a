"""Overhead of small calls over their kernels, and of the import over torch's."""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor

import pointgrad

from ..comparison import Call, Comparison, Implementation, Row, Setup


def _average(repeats: int, call: Call) -> float:
    """Average milliseconds of many consecutive calls, each too short to be timed alone."""
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3 / repeats


def small_calls(device: str) -> dict[str, tuple[Call, dict[str, Call], Call]]:
    """By name: the public function, its plain forms, and the C++ kernel without the public function."""
    from pointgrad.ops.gather import cpu as gather
    from pointgrad.ops.interpolate import cpu as interpolate
    from pointgrad.ops.sampling import cpu as sampling

    points = torch.rand(8, 3, generator=torch.Generator().manual_seed(0)).to(device)
    index = torch.tensor([1, 0, 3], device=device)
    corners, cell, live = points.repeat(4, 1).view(4, 8, 3), points[:4], points.clone().requires_grad_()
    return {
        "gather": (
            lambda: pointgrad.gather(points, index), {"index_select": lambda: points.index_select(0, index)},
            lambda: gather.gather(points, index),
        ),
        "gather, recording a gradient": (
            lambda: pointgrad.gather(live, index), {"index_select": lambda: live.index_select(0, index)},
            lambda: gather.gather(points, index),
        ),
        "trilinear": (
            lambda: pointgrad.trilinear(corners, cell), {}, lambda: interpolate.trilinear(corners, cell, None),
        ),
        "farthest_point_sampling": (
            lambda: pointgrad.farthest_point_sampling(points, 2), {},
            lambda: sampling.farthest_point_sampling(points, None, 2, None, None, False),
        ),
    }  # fmt: skip


def compare(name: str, setup: Setup) -> Comparison:
    ours, plain, kernel = small_calls(setup.device)[name]
    with pointgrad.backend("reference"):
        expected = ours().detach()

    def check(received: Tensor) -> None:
        torch.testing.assert_close(received.detach(), expected)

    return Comparison(
        Implementation(ours),
        check,
        {each: Implementation(call) for each, call in plain.items()},
        related={} if setup.gpu else {"kernel": Implementation(kernel, check=lambda received: None)},
        clock=functools.partial(_average, 20 if setup.quick else 2000),
    )


def importing() -> Comparison:
    """Import time, measured by a new process for each call."""
    program = "import time, torch, numpy; t = time.perf_counter(); import pointgrad; print(time.perf_counter() - t)"

    # Bytecode is cached, as for an installed package.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def milliseconds() -> float:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return float(done.stdout) * 1e3

    return Comparison(Implementation(milliseconds), lambda received: None, clock=lambda call: call())


def rows(setup: Setup) -> Iterator[Row]:
    for name in ("gather", "gather, recording a gradient", "trilinear", "farthest_point_sampling"):
        yield Row(f"a call of {name}, a few rows", functools.partial(compare, name, setup))
    yield Row("import pointgrad, after torch", importing, rounds=5)

"""What a small call costs besides its kernel, and what an import costs besides torch's."""

import functools
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor

import pointgrad

from ..contest import Attempt, Call, Contest, Row, Setup


def _average(repeats: int, call: Call) -> float:
    """Milliseconds of one call of many in a row: so short that one alone cannot be timed."""
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3 / repeats


def contest(name: str, setup: Setup) -> Contest:
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(8, 3, generator=generator).to(setup.device)
    index = torch.tensor([1, 0, 3], device=setup.device)
    corners, cell = points.repeat(4, 1).view(4, 8, 3), points[:4]
    beside: dict[str, Call] = {}
    plain: dict[str, Call] = {}
    if name == "gather":
        ours: Call = lambda: pointgrad.gather(points, index)  # noqa: E731
        plain["index_select"] = lambda: points.index_select(0, index)
    elif name == "gather, recording a gradient":
        learning = points.clone().requires_grad_()
        ours = lambda: pointgrad.gather(learning, index)  # noqa: E731
        plain["index_select"] = lambda: learning.index_select(0, index)
    elif name == "trilinear":
        ours = lambda: pointgrad.trilinear(corners, cell)  # noqa: E731
    else:
        ours = lambda: pointgrad.farthest_point_sampling(points, 2)  # noqa: E731
    if not setup.gpu:
        beside["kernel"] = _kernel(name, points, index, corners, cell)
    with pointgrad.backend("reference"):
        expected = ours().detach()

    def check(received: Tensor) -> None:
        torch.testing.assert_close(received.detach(), expected)

    return Contest(
        Attempt(ours),
        check,
        {each: Attempt(call) for each, call in plain.items()},
        beside={each: Attempt(call, check=lambda received: None) for each, call in beside.items()},
        clock=functools.partial(_average, 20 if setup.quick else 2000),
    )


def _kernel(name: str, points: Tensor, index: Tensor, corners: Tensor, cell: Tensor) -> Call:
    """The C++ function alone, behind the door."""
    from pointgrad.ops.gather import cpu as gather
    from pointgrad.ops.interpolate import cpu as interpolate
    from pointgrad.ops.sampling import cpu as sampling

    if name.startswith("gather"):
        return lambda: gather.gather(points, index)
    if name == "trilinear":
        return lambda: interpolate.trilinear(corners, cell, None)
    return lambda: sampling.farthest_point_sampling(points, None, 2, None, None, False)


def importing() -> Contest:
    """Each time in a process of its own, which says how long it took."""
    program = "import time, torch, numpy; t = time.perf_counter(); import pointgrad; print(time.perf_counter() - t)"

    # With compiled bytecode, as an installed package has it.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def milliseconds() -> float:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return float(done.stdout) * 1e3

    return Contest(Attempt(milliseconds), lambda received: None, clock=lambda call: call())


def rows(setup: Setup) -> Iterator[Row]:
    for name in ("gather", "gather, recording a gradient", "trilinear", "farthest_point_sampling"):
        asked = not setup.gpu and "gradient" not in name
        yield Row(
            f"a call of {name}, a few rows",
            functools.partial(contest, name, setup),
            above=0.025 if asked else None,
            against="kernel" if asked else None,
        )
    yield Row("import pointgrad, after torch", importing, at_most=300.0, rounds=5)

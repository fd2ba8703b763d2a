"""Does an installed pointgrad work, with its C++ kernels? Prints what it found as JSON; raises if something is wrong.

    python -I reliability/install/smoke.py

Every case of the tests' tables runs forward and backward, on the C++ kernels and on the reference, and both must agree.
Which C++ functions were entered is counted, so that a fallback to plain PyTorch does not pass for them. With -I nothing
of the checkout is imported but those tables; needs torch, numpy and pointgrad only.
"""

import json
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import native
from tests.cases import CASES, Case, Make


class Counted:
    """The native module, with its calls counted."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        self.calls[name] += 1
        return function


def functions(module: Any) -> set[str]:
    return {name for name in dir(module) if not name.startswith("_")}


def results(case: Case, backend: str) -> list[Tensor]:
    """What a call returns, and the gradients of its first floating result."""
    torch.manual_seed(0)
    arguments = case.inputs(Make())
    sources = {name: arguments[name].detach().requires_grad_() for name in case.differentiable}
    with pointgrad.backend(backend):
        outputs = case({**arguments, **sources})
        if not sources:
            return list(outputs)
        output = next(each for each in outputs if each.is_floating_point())
        upstream = torch.arange(output.numel()).remainder(7).sub(2.5).reshape(output.shape).to(output.dtype)
        return [*outputs, *torch.autograd.grad(output, list(sources.values()), upstream)]


def try_cases(cases: list[Case]) -> dict[str, Any]:
    """Runs the cases; how many of each room ran, and which C++ functions they entered."""
    if native.module is None:
        raise RuntimeError(f"the C++ module must load, got: {native.why_missing}")
    counted = native.module = Counted(native.module)
    try:
        rooms: Counter[str] = Counter()
        for case in cases:
            for mine, theirs in zip(results(case, "cpu"), results(case, "reference"), strict=True):
                torch.testing.assert_close(mine, theirs, msg=lambda text, case=case: f"{case.name}: {text}")
            rooms[case.operator.__module__.removeprefix("pointgrad.ops.")] += 1
        native.empty(torch.empty(0), (2**21,)).fill_(1)  # large enough for memory that is used again
    finally:
        native.module = counted._module
    return {"cases": dict(sorted(rooms.items())), "entered": sorted(set(counted.calls) & functions(native.module))}


def try_command() -> str:
    """What the command says where its packages are not installed: one line, and the status of a wrong command line."""
    command = Path(sysconfig.get_path("scripts")) / "pointgrad"
    said = subprocess.run([command, "--help"], capture_output=True, text=True, timeout=120)
    if said.returncode != 2 or said.stdout or said.stderr.count("\n") != 1 or "pip install" not in said.stderr:
        raise RuntimeError(f"the command must say in one line what to install, got {said}")
    return said.stderr.strip()


def main() -> None:
    package, module = Path(pointgrad.__file__), Path(native.module.__file__ if native.module else "")
    if "site-packages" not in package.parts or module.parent != package.parent:
        raise RuntimeError(f"the installed package must be tried, got {package} and {module}")
    found = try_cases(CASES)
    if left := functions(native.module) - set(found["entered"]):
        found["not entered"] = sorted(left)
    gil = getattr(sys, "_is_gil_enabled", None)
    found |= {"module": module.name, "command": try_command(), "gil": True if gil is None else gil()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()

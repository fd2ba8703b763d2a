"""Check an installed pointgrad and its C++ kernels. Prints the findings as JSON; raises if something is wrong.

    python -I reliability/install/smoke.py

Every sample of the catalogue runs forward and backward, on the C++ kernels and on the reference, and both must agree.
The calls of C++ functions are counted, so that a fallback to plain PyTorch does not pass for them. With -I nothing of
the checkout is imported; needs torch, numpy and pointgrad only.
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
from pointgrad.catalog import CASES, FAMILIES, Case, Make
from pointgrad.ops import native

FAMILY_OF = {op.name: family for family, operators in FAMILIES.items() for op in operators}


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
    """The results of a call, and the gradients of the first floating one."""
    torch.manual_seed(0)
    with pointgrad.backend(backend):
        return case.with_gradients(case.sample.build(Make()))


def try_cases(cases: list[Case]) -> dict[str, Any]:
    """Run the cases and count them by family, and the C++ functions that they call."""
    if native.module is None:
        raise RuntimeError(f"the C++ module must load, got: {native.why_missing}")
    counted = native.module = Counted(native.module)
    try:
        families: Counter[str] = Counter()
        for case in cases:
            for mine, theirs in zip(results(case, "cpu"), results(case, "reference"), strict=True):
                torch.testing.assert_close(mine, theirs, msg=lambda text, case=case: f"{case.name}: {text}")
            families[FAMILY_OF[case.op.name]] += 1
        native.empty(torch.empty(0), (2**21,)).fill_(1)  # large enough for a reusable buffer
    finally:
        native.module = counted._module
    return {"cases": dict(sorted(families.items())), "entered": sorted(set(counted.calls) & functions(native.module))}


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

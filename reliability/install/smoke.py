"""Smoke test of an installed pointgrad and its C++ kernels. Prints the result as JSON, and raises on failure.

    python -I reliability/install/smoke.py

Every sample of the catalogue runs forward and backward, with the C++ kernels and with the reference, and the results
must agree. The C++ functions that were called are recorded, so that a fallback to plain PyTorch does not go unnoticed.
With -I nothing of the checkout is imported. Needs only torch, numpy and pointgrad.
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
    """The native module with call counts."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        self.calls[name] += 1
        return function


def functions(module: Any) -> set[str]:
    """Names of the public functions of a module."""
    return {name for name in dir(module) if not name.startswith("_")}


def results(case: Case, backend: str) -> list[Tensor]:
    """The outputs of a call, and the gradients of its first floating-point output."""
    torch.manual_seed(0)
    with pointgrad.backend(backend):
        return case.with_gradients(case.sample.build(Make()))


def try_cases(cases: list[Case]) -> dict[str, Any]:
    """Run the cases. Returns the number of cases per family and the C++ functions that were called."""
    if native.module is None:
        raise RuntimeError(f"the C++ module must be importable, got: {native.why_missing}")
    counted = native.module = Counted(native.module)
    try:
        families: Counter[str] = Counter()
        for case in cases:
            for actual, desired in zip(results(case, "cpu"), results(case, "reference"), strict=True):
                torch.testing.assert_close(actual, desired, msg=lambda text, case=case: f"{case.name}: {text}")
            families[FAMILY_OF[case.op.name]] += 1
        native.empty(torch.empty(0), (2**21,)).fill_(1)  # large enough for a reusable buffer
    finally:
        native.module = counted._module
    return {"cases": dict(sorted(families.items())), "entered": sorted(set(counted.calls) & functions(native.module))}


def try_command() -> str:
    """Check that the command prints one line that names its missing packages, and exits with status 2."""
    command = Path(sysconfig.get_path("scripts")) / "pointgrad"
    done = subprocess.run([command, "--help"], capture_output=True, text=True, timeout=120)
    if done.returncode != 2 or done.stdout or done.stderr.count("\n") != 1 or "pip install" not in done.stderr:
        raise RuntimeError(f"the command must print one line with the packages to install, got {done}")
    return done.stderr.strip()


def main() -> None:
    package, module = Path(pointgrad.__file__), Path(native.module.__file__ if native.module else "")
    if "site-packages" not in package.parts or module.parent != package.parent:
        raise RuntimeError(f"pointgrad must be installed in site-packages, got {package} and {module}")
    found = try_cases(CASES)
    if left := functions(native.module) - set(found["entered"]):
        found["not entered"] = sorted(left)
    gil = getattr(sys, "_is_gil_enabled", None)
    found |= {"module": module.name, "command": try_command(), "gil": True if gil is None else gil()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()

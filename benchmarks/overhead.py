"""What a call costs besides its kernel, and what an import costs besides torch's."""

import subprocess
import sys
import time
from collections.abc import Callable

import torch

import pointgrad
from pointgrad.ops.gather import cpu as gather_cpu
from pointgrad.ops.interpolate import cpu as interpolate_cpu
from pointgrad.ops.sampling import cpu as sampling_cpu


def microseconds(call: Callable[[], object], repeats: int = 4000) -> float:
    for _ in range(500):
        call()
    best = float("inf")
    for _ in range(7):
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        best = min(best, (time.perf_counter() - begin) / repeats)
    return best * 1e6


def call_overhead() -> dict[str, str]:
    features, index = torch.rand(8, 3), torch.tensor([1, 0, 3])
    points = torch.rand(8, 3)
    corners = torch.rand(4, 8, 3)
    cell = torch.rand(4, 3)
    calls = {
        "gather": (
            lambda: pointgrad.gather(features, index),
            lambda: gather_cpu.gather(features, index),
        ),
        "trilinear": (
            lambda: pointgrad.trilinear(corners, cell),
            lambda: interpolate_cpu.trilinear(corners, cell, None),
        ),
        "farthest_point_sampling": (
            lambda: pointgrad.farthest_point_sampling(points, 2),
            lambda: sampling_cpu.farthest_point_sampling(points, None, None, 2, None, None, False),
        ),
    }
    notes = {}
    for name, (public, kernel) in calls.items():
        whole, alone = microseconds(public), microseconds(kernel)
        notes[f"overhead of {name}"] = (
            f"{whole - alone:.1f} us (asked: at most 25; call {whole:.1f}, kernel {alone:.1f})"
        )
    learning = features.clone().requires_grad_()
    whole = microseconds(lambda: pointgrad.gather(learning, index))
    notes["overhead of gather, recording a gradient"] = f"{whole - microseconds(calls['gather'][1]):.1f} us"
    return notes


def import_time() -> dict[str, str]:
    def seconds(code: str) -> float:
        timed = f"begin = time.perf_counter(); {code}; print(time.perf_counter() - begin)"
        program = f"import time, torch, numpy; {timed}"
        runs = [
            subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
            for _ in range(5)
        ]
        return min(float(run.stdout) for run in runs)

    return {"import pointgrad, after torch": f"{seconds('import pointgrad'):.3f} s (asked: less than 0.3)"}

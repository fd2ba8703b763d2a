"""Deterministic mode on a GPU: all operators must return the same bits in every run, forward and backward.

    python -m reliability.gpu.repeats --runs 20 --out reliability/results/gpu_repeats.json

Each test case, on its large input if it has one, runs repeatedly with `torch.use_deterministic_algorithms(True)`, while
another stream is busy so that programs finish in varying order. Cases that differ without deterministic mode are
counted as well, to show that the test can fail.
"""

import argparse
from typing import Any

import torch
from torch import Tensor

from pointgrad.bench import write
from pointgrad.bench.machine import machine
from pointgrad.catalog import CASES, Case, Make

from ..arguments import at_least, out_file


def run_once(case: Case, arguments: dict[str, Any]) -> list[Tensor]:
    """Outputs and gradients of a case."""
    torch.manual_seed(3)
    return case.with_gradients(arguments)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(
        a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8)
    )


def differing(case: Case, dtype: torch.dtype, runs: int) -> int:
    """Number of runs that differ from the first one."""
    torch.manual_seed(0)
    arguments = (case.sample.large or case.sample.build)(Make(dtype, "cuda"))
    first, other, noise = run_once(case, arguments), torch.cuda.Stream(), torch.rand(512, 512, device="cuda")
    different = 0
    for turn in range(1, runs):
        with torch.cuda.stream(other):
            for _ in range(turn % 4):
                noise = torch.tanh(noise @ noise)
        again = run_once(case, arguments)
        different += not all(same_bits(a, b) for a, b in zip(first, again, strict=True))
    return different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=at_least(2), default=20, help="runs of each case")
    parser.add_argument("--out", type=out_file, required=True, help="JSON file for the results")
    arguments = parser.parse_args()
    failed, nondeterministic, count = [], [], 0
    for case in CASES:
        for dtype in (torch.float32, torch.bfloat16):
            torch.use_deterministic_algorithms(True)
            if differing(case, dtype, arguments.runs):
                failed.append(f"{case.name}, {dtype}")
            torch.use_deterministic_algorithms(False)
            if differing(case, dtype, arguments.runs):
                nondeterministic.append(f"{case.name}, {dtype}")
            count += 1
        counts = f"{len(failed)} differ in deterministic mode, {len(nondeterministic)} otherwise"
        print(f"{case.name}: so far {counts}", flush=True)
    record = {
        "machine": machine("cuda"),
        "runs": arguments.runs,
        "cases": count,
        "differ_in_deterministic_mode": failed,
        "differ_otherwise": nondeterministic,
    }
    write(record, arguments.out)
    counts = f"{len(failed)} differ in deterministic mode, {len(nondeterministic)} otherwise"
    print(f"{count} cases x {arguments.runs} runs: {counts}")
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()

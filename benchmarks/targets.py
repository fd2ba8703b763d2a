"""Performance targets, and a program that compares a result of `pointgrad bench` with them.

    python -m benchmarks.targets benchmarks/results/cpu.json

Exit status: 0 if every measured target is met, 1 otherwise.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import read


@dataclass(frozen=True)
class Target:
    """Requirements on one row.

    Attributes:
        times_faster: At least this many times faster than the alternative named by `than`, by default the fastest
            plain form or peer.
        than: Name of the implementation to compare with.
        ms: At most this many milliseconds.
        ms_above: At most this many milliseconds more than the implementation named by `than`.
        times_floor: At most this many times the floor, which is the time of a copy of as many bytes.
        times_less_memory: At least this many times less peak memory than the plain form or peer that needs least.
    """

    times_faster: float | None = None
    than: str | None = None
    ms: float | None = None
    ms_above: float | None = None
    times_floor: float | None = None
    times_less_memory: float | None = None


FLOOR = Target(times_floor=1.25)
OVERHEAD = Target(ms_above=0.025, than="kernel")
IMPORT = Target(ms=300.0)

# Targets by device, family and name of the row.
TARGETS: dict[str, dict[str, dict[str, Target]]] = {
    "cpu": {
        "attention": {
            "aggregate 10k x 16 x 128, and back": Target(times_faster=3.0, than="PyTorch"),
            "attention 10k x 16 x 128, and back": Target(times_faster=3.0, than="PyTorch"),
        },
        "gather": {
            "gather 1.6M x 64 of 100k forward": Target(times_faster=3.0, than="index_select"),
            "group 100k x 16 x 64 forward": Target(times_faster=3.0, than="index_select"),
            "group 100k x 16 x 64 backward": Target(times_faster=3.0, than="index_select"),
            "group 100k x 16 x 64, neighbours forward": Target(times_faster=3.0, than="index_select"),
        },
        "interpolate": {
            "trilinear 65536 x 8 x 64 forward": Target(times_faster=1.5),
            "trilinear 65536 x 8 x 64 backward, points": Target(times_faster=8.0, than="eager slices"),
            "grid_sample 200k, 32 x 64^3 forward": Target(times_faster=4.0, than="PyTorch"),
            "grid_sample 200k, 32 x 64^3 backward": Target(times_faster=4.0, than="PyTorch"),
            "grid_sample 200k, 32 x 64^3 backward, points": Target(times_faster=4.0, than="PyTorch"),
        },
        "loss": {  # at most 1.1 times slower
            "cross entropy 1M x 200, and back": Target(times_faster=0.91, than="PyTorch"),
            "cross entropy 1M x 200 bfloat16, and back": Target(times_faster=0.91, than="PyTorch"),
        },
        "neighbors": {
            "k nearest 4096, k 16": Target(times_faster=2.5),
            "k nearest 100k, k 16": Target(times_faster=4.0),
            "k nearest 1M, k 16": Target(times_faster=3.0),
            "k nearest of a LiDAR sweep, k 16": Target(times_faster=3.0),
            "ball 1 x 100k, 100k queries, r 0.02": Target(times_faster=3.0),
        },
        "overhead": {
            "a call of gather, a few rows": OVERHEAD,
            "a call of trilinear, a few rows": OVERHEAD,
            "a call of farthest_point_sampling, a few rows": OVERHEAD,
            "import pointgrad, after torch": IMPORT,
        },
        "sampling": {
            "farthest points 1 x 4096 -> 1024": Target(times_faster=1.3),
            "farthest points 1 x 16384 -> 4096": Target(times_faster=1.5),
            "farthest points 1 x 100k -> 25k": Target(times_faster=4.0),
            "farthest points 32 x 4096 -> 1024": Target(times_faster=2.5),
        },
        "scatter": {
            "scatter sum 1.6M x 64 -> 100k": Target(times_faster=3.0, than="index_add"),
            "segment sum 1.6M x 64 -> 100k": Target(times_faster=3.0, than="index_add"),
        },
        "voxels": {"voxelize 1M points": Target(ms=150.0)},
    },
    "cuda": {
        "attention": {
            "aggregate 100k x 16 x 128, and back": Target(times_faster=3.0, than="PyTorch", times_less_memory=4.0),
            "attention 100k x 16 x 128, and back": Target(times_faster=3.0, than="PyTorch", times_less_memory=4.0),
            "aggregate 3 of 1024, 16 x 4096 x 256 forward": FLOOR,
            "aggregate 3 of 1024, 16 x 4096 x 256 backward": FLOOR,
        },
        "conv": {
            "unfold 32 x 64 x 56^2": FLOOR,
            "fold 32 x 64 x 56^2": FLOOR,
        },
        "gather": {
            "gather 1.6M x 64 of 100k forward": FLOOR,
            "group 100k x 16 x 64 forward": FLOOR,
            "group 100k x 16 x 64 backward": FLOOR,
            "group 100k x 16 x 64, neighbours forward": FLOOR,
        },
        "interpolate": {
            "trilinear 65536 x 8 x 256 forward": FLOOR,
            "trilinear 65536 x 8 x 256 backward": FLOOR,
            "trilinear 65536 x 8 x 256 backward, points": Target(
                times_faster=8.0, than="eager slices", times_floor=1.25
            ),
            "interpolate 3 of 1024, 16 x 4096 x 256 forward": FLOOR,
            "interpolate 3 of 1024, 16 x 4096 x 256 backward": FLOOR,
            "grid_sample 1M, 32 x 128^3 forward": Target(times_faster=1.5, than="PyTorch"),
            "grid_sample 1M, 32 x 128^3 backward": Target(times_faster=2.0, than="PyTorch"),
            "grid_sample 1M, 32 x 128^3 backward, points": Target(times_faster=2.0, than="PyTorch"),
        },
        "loss": {  # at most 1.1 times slower
            "cross entropy 1M x 200, and back": Target(times_faster=0.91, than="PyTorch", times_less_memory=2.0),
            "cross entropy 1M x 200 bfloat16, and back": Target(
                times_faster=0.91, than="PyTorch", times_less_memory=2.0
            ),
        },
        "neighbors": {
            "k nearest 16 x 4096, k 16": Target(ms=0.3),
            "k nearest 1 x 100k, k 16": Target(ms=1.0),
            "k nearest 1 x 1M, k 16": Target(ms=7.0),
            "ball 16 x 4096, 1024 queries, r 0.1": Target(ms=0.5),
            "ball 8 x 16384, 4096 queries, r 0.1": Target(ms=1.0),
            "ball 1 x 200k, 50k queries, r 0.02": Target(ms=0.8),
        },
        "overhead": {"import pointgrad, after torch": IMPORT},
        "sampling": {
            "farthest points 32 x 4096 -> 1024": Target(ms=0.45),
            "farthest points 8 x 16384 -> 4096": Target(ms=4.7),
            "farthest points 1 x 100k -> 25k": Target(ms=35.0),
            "farthest points 1 x 1M -> 20k": Target(ms=140.0),
        },
        "scatter": {
            "scatter sum 1.6M x 64 -> 100k": FLOOR,
            "segment sum 1.6M x 64 -> 100k": FLOOR,
        },
    },
}

TRAINING_STEP = {"cpu": 3.0, "cuda": 2.0}  # benchmarks.networks: times faster than plain PyTorch
LARGE_SCENE_GIB = 3.0  # benchmarks.large_scene: peak memory


@dataclass(frozen=True)
class Verdict:
    """One requirement, such as "≥ 3x PyTorch", the measured number, and whether it is met."""

    requirement: str
    measured: float
    met: bool


def verdicts(row: dict[str, Any], target: Target) -> Iterator[Verdict]:
    """Compare a timed row with its target.

    Requirements that were not measured yield nothing, for example a comparison with a peer that is not installed.
    """
    implementations = row["implementations"]
    ours = implementations["ours"]
    other = implementations.get(target.than or row.get("best", {}).get("name"), {})
    than = f" {target.than}" if target.than else ""

    def at_least(text: str, limit: float, measured: float) -> Verdict:
        return Verdict(text, measured, measured >= limit)

    def at_most(text: str, limit: float, measured: float) -> Verdict:
        return Verdict(text, measured, measured <= limit)

    if target.times_faster is not None and "ratio" in other:
        yield at_least(f"≥ {target.times_faster:g}x{than}", target.times_faster, other["ratio"])
    if target.ms is not None:
        yield at_most(f"≤ {target.ms:g} ms", target.ms, ours["ms"]["median"])
    if target.times_floor is not None and "times_floor" in row:
        yield at_most(f"≤ {target.times_floor:g}x floor", target.times_floor, row["times_floor"])
    if target.ms_above is not None and "ms" in other:
        above = ours["ms"]["median"] - other["ms"]["median"]
        yield at_most(f"≤ {target.ms_above:g} ms over{than}", target.ms_above, above)
    if target.times_less_memory is not None:
        alternatives = [each for each in implementations.values() if each["kind"] in ("plain", "peer")]
        peaks = [each["peak_MiB"] for each in alternatives if each.get("peak_MiB") is not None]
        if peaks and ours["peak_MiB"] is not None:
            less = min(peaks) / max(ours["peak_MiB"], 1e-9)
            yield at_least(f"memory ≥ {target.times_less_memory:g}x", target.times_less_memory, less)


def judge(record: dict[str, Any]) -> dict[str, list[Verdict]]:
    """Verdicts by name of the row, for the timed rows of a full run that have a target."""
    if record["quick"]:
        return {}
    targets = {name: target for rows in TARGETS[record["device"]].values() for name, target in rows.items()}
    found = {}
    for row in record["rows"]:
        target = targets.get(row["name"])
        if target is not None and row["state"] == "timed":
            found[row["name"]] = list(verdicts(row, target))
    return found


def summary(row_verdicts: list[Verdict]) -> str:
    """The requirements and whether they are met, as shown in the table of results."""
    return ", ".join(f"{each.requirement}: {'yes' if each.met else 'NO'}" for each in row_verdicts)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.targets",
        description="Compare a result of `pointgrad bench` with the performance targets. "
        "Exit status: 0 if every measured target is met, 1 otherwise.",
    )
    parser.add_argument("result", type=Path, help="JSON file written by `pointgrad bench --out`")
    options = parser.parse_args(arguments)
    record = read(options.result)
    if record["quick"]:
        parser.error(f"{options.result} must be the result of a full run, got a quick one")
    missed = 0
    for name, row_verdicts in judge(record).items():
        for each in row_verdicts:
            print(f"{'met   ' if each.met else 'MISSED'} {name}: {each.requirement}, measured {each.measured:.3g}")
            missed += not each.met
    print(f"{missed} targets missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Memory and time of labelling a LAZ file that is made as large as one likes, by repeating a real scan.

    python -m benchmarks.large_scene --points 5_000_000 50_000_000 --out benchmarks/results/large_scene.json

Each size is labelled by `pointgrad predict` in a process of its own, whose peak of resident memory the system reports.
The network has random weights: memory and time do not depend on what it has learnt.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import laspy
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import pointgrad
from benchmarks.data import DATA
from pointgrad.bench.machine import machine
from pointgrad.data import Prepare

ASKED_GIB = 3.0
CLASSES = ("ground", "vegetation", "building")
SCAN = DATA / "scans" / "house.laz"


def make(path: Path, count: int) -> None:
    """A LAZ file of so many points: copies of a scan side by side, in rows and columns, not overlapping."""
    scan = laspy.read(SCAN)
    size = np.array([scan.X.max() - scan.X.min(), scan.Y.max() - scan.Y.min()]) + 100
    copies = -(-count // len(scan))
    side = int(np.ceil(np.sqrt(copies)))
    with laspy.open(path, "w", header=scan.header, do_compress=True) as writer:
        for copy in range(copies):
            points = scan.points.copy()
            points.X = scan.X + size[0] * (copy % side)
            points.Y = scan.Y + size[1] * (copy // side)
            writer.write_points(points[: count - copy * len(scan)])


def checkpoint(path: Path, voxel: float, piece: int) -> None:
    model = pointgrad.models.pointnet2(task="segmentation", classes=len(CLASSES))
    prepare = Prepare(points=piece, normalize="center", voxel=voxel)
    content = {
        "format": 1,
        "model": model.config,
        "state": model.state_dict(),
        "task": "segmentation",
        "classes": list(CLASSES),
        "prepare": asdict(prepare),
    }
    torch.save(content, path)


def measure(folder: Path, count: int, votes: int) -> dict[str, Any]:
    source, target = folder / f"{count}.laz", folder / "out" / f"{count}.laz"
    begin = time.perf_counter()
    make(source, count)
    made = time.perf_counter() - begin
    network, out = folder / "network.pt", target.parent
    command = [sys.executable, "-m", "benchmarks.large_scene", "--child", network, source, out, str(votes)]
    begin = time.perf_counter()
    answer = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True).stdout
    seconds = time.perf_counter() - begin
    peak = json.loads(answer.splitlines()[-1])
    check(source, target)
    row = {
        "points": count,
        "bytes": source.stat().st_size,
        "seconds": round(seconds, 1),
        "points_per_second": round(count / seconds),
        "peak_MiB": peak,
        "seconds_to_make_the_file": round(made, 1),
        "met": sum(peak.values()) < ASKED_GIB * 1024,
    }
    source.unlink()
    target.unlink()
    return row


def child(network: str, source: str, out: str, votes: str) -> None:
    """Labels a file as the command line does, and prints the peak of this process and of those it started."""
    from pointgrad.cli import main

    status = main(["predict", network, source, "--out", out, "--votes", votes, "--device", "cpu"])
    unit = 1024 if sys.platform == "linux" else 1024**2
    peaks = (resource.getrusage(who).ru_maxrss / unit for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps(dict(zip(("itself", "children"), (round(peak) for peak in peaks), strict=True))))
    sys.exit(status)


def check(source: Path, target: Path) -> None:
    """The same points in the same order, each with a label."""
    with laspy.open(source) as before, laspy.open(target) as after:
        assert before.header.point_count == after.header.point_count
        for old, new in zip(before.chunk_iterator(1_000_000), after.chunk_iterator(1_000_000), strict=True):
            for name in old.array.dtype.names:
                assert np.array_equal(old.array[name], new.array[name]), name
            assert new.label.max() < len(CLASSES)
            assert new.confidence.min() >= 1 / len(CLASSES) - 1e-6


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.large_scene", description=__doc__)
    parser.add_argument("--points", type=int, nargs="+", default=[5_000_000, 50_000_000])
    parser.add_argument("--voxel", type=float, default=2.0, help="metres between the points that the network sees")
    parser.add_argument("--piece", type=int, default=8192, help="points that the network sees together")
    parser.add_argument("--votes", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where there is room for about 50 bytes per point")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        checkpoint(folder / "network.pt", options.voxel, options.piece)
        rows = [measure(folder, count, options.votes) for count in options.points]
    table = Table("points", "file", "seconds", "points / s", "peak memory", "met")
    for row in rows:
        mib = sum(row["peak_MiB"].values())
        table.add_row(
            f"{row['points']:,}", f"{row['bytes'] / 2**20:.0f} MiB", f"{row['seconds']:.0f}",
            f"{row['points_per_second']:,}", f"{mib:.0f} MiB", "yes" if row["met"] else "no",
        )  # fmt: skip
    Console(width=132).print(table)
    if options.out is not None:
        where = machine("cpu") | {name: version(name) for name in ("numpy", "laspy", "lazrs")}
        settings = {"scan": SCAN.name, "network": "pointnet2, segmentation", "voxel": options.voxel,
                    "piece": options.piece, "votes": options.votes, "asked_GiB": ASKED_GIB}  # fmt: skip
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"machine": where, "settings": settings, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()

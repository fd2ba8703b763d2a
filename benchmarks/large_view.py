"""Memory and time of looking at a LAZ file that is made as large as one likes, by repeating a real scan.

    python -m benchmarks.large_view --points 1_000_000 20_000_000 --out benchmarks/results/large_view.json

Each size is opened in the viewer, and drawn by `pointgrad render`, in processes of their own, whose peak of resident
memory the system reports. The viewer's camera then goes close to a corner and back: how long until details are sent.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.large_scene import SCAN, make
from pointgrad.bench.machine import machine

MIB = 1024 if sys.platform == "linux" else 1024**2


def peak() -> int:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB)


def view(path: str) -> dict[str, Any]:
    from pointgrad.view import Viewer, server
    from pointgrad.view.detail import Camera

    before = peak()
    web = server.start("127.0.0.1", None, "pointgrad")
    began = time.perf_counter()
    viewer = Viewer(web, [Path(path)])
    assert viewer.wait()
    opened = time.perf_counter() - began
    assert viewer.levels is not None
    assert viewer.stage is not None
    drawn, moves = viewer.stage.drawn, []
    for share in (0.05, 1.0):  # of the way from a corner to where the whole is seen
        home, middle = viewer.stage.camera_pose(False)
        corner = -viewer.stage.extent / 2
        place = corner + share * (home - corner)
        look = (corner if share < 1 else middle) - place
        viewer._camera = Camera(place, look / np.linalg.norm(look), 0.7)
        began = time.perf_counter()
        viewer.worker.submit("draw", viewer._draw)
        viewer.wait()
        moves.append(round(time.perf_counter() - began, 2))
    row = {
        "points": len(viewer.levels),
        "seconds": round(opened, 1),
        "drawn": drawn,
        "seconds_for_details": moves,
        "peak_MiB": peak(),
        "of_it_before_opening_MiB": before,
    }
    viewer.close()
    server.stop(web)
    return row


def render(path: str) -> dict[str, Any]:
    from pointgrad.cli import main

    began = time.perf_counter()
    assert main(["render", path, "--out", f"{path}.png"]) == 0
    return {"seconds": round(time.perf_counter() - began, 1), "peak_MiB": peak()}


def child(what: str, path: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.large_view", "--child", what, str(path)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(answer.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.large_view", description=__doc__)
    parser.add_argument("--points", type=int, nargs="+", default=[1_000_000, 20_000_000])
    parser.add_argument("--folder", type=Path, help="where there is room for the files, a few bytes per point")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for count in options.points:
            path = Path(folder) / f"{count}.laz"
            make(path, count)
            rows.append({"points": count, "bytes": path.stat().st_size, "view": child("view", path)})
            rows[-1]["render"] = child("render", path)
            path.unlink()
    table = Table("points", "file", "view: seconds", "drawn", "details: seconds", "peak", "render: seconds", "peak")
    for row in rows:
        seen, drawn = row["view"], row["render"]
        table.add_row(
            f"{row['points']:,}", f"{row['bytes'] / 2**20:.0f} MiB", f"{seen['seconds']:.0f}", f"{seen['drawn']:,}",
            " ".join(map(str, seen["seconds_for_details"])), f"{seen['peak_MiB']} MiB", f"{drawn['seconds']:.0f}",
            f"{drawn['peak_MiB']} MiB",
        )  # fmt: skip
    Console(width=132).print(table)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        content = {"machine": machine("cpu"), "scan": SCAN.name, "rows": rows}
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps({"view": view, "render": render}[sys.argv[2]](sys.argv[3])))
    else:
        main()

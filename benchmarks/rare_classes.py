"""Poles and fences of streets, which have 1.3 % of the points: IoU with and without defaults for rare classes.

    python -m benchmarks.scenes --rare --out benchmarks/results/rare_classes_cpu.json

`pointgrad train` runs on the streets of the start page with its command, for 100 epochs instead of 6, and `pointgrad
evaluate` labels three other streets completely. The program fails if the mean IoU of the two classes is below the
target in any run with the defaults, or if a run needs more than ten minutes of processor time.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pointgrad import data
from pointgrad.bench.machine import machine

RARE = ("pole", "fence")
TARGET = 0.75  # mean IoU of the rare classes on whole scans
LIMIT = 600  # seconds of processor time of a run
SEEDS = (0, 1, 2)
POINTS, LENGTH = 60_000, 40
FLAGS = "--epochs 100 --samples-per-cloud 16 --crop-points 2048 --batch-size 4 --lr 0.005 --options width=0.25"
VARIANTS = {
    "defaults": "",
    "equal weights, random crops": "--class-weights none --crop-balance 0",
}


def study(out: Path | None) -> None:
    """Train and evaluate all variants, print a table, and write the results to a JSON file."""
    record: dict[str, Any] = {
        "machine": machine("cpu"),
        "settings": {"flags": FLAGS, "variants": VARIANTS, "target": TARGET, "votes": 1},
        "rows": [],
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part, seeds in (("scans/train", range(5)), ("scans/val", range(5, 6)), ("test", range(100, 103))):
            (folder / part).mkdir(parents=True)
            for seed in seeds:
                data.write(folder / part / f"street{seed}.ply", data.street(POINTS, length=LENGTH, seed=seed))
        for part in ("scans", "test"):
            (folder / part / "classes.txt").write_text("\n".join(data.STREET_CLASSES))
        for variant in VARIANTS:
            for seed in SEEDS:
                row = measure(folder, variant, seed)
                record["rows"].append(row)
                means = f"mIoU {row['mIoU']:.3f}, of rare classes {row['rare mIoU']:.3f}"
                print(variant, f"seed {seed}: {means}, after {row['CPU seconds']:.0f} CPU seconds", flush=True)
                if out is not None:
                    out.parent.mkdir(parents=True, exist_ok=True)
                    out.write_text(json.dumps(record, indent=1) + "\n")
    Console(width=130).print(table(record["rows"]))
    lowest = min(row["rare mIoU"] for row in record["rows"] if row["variant"] == "defaults")
    if lowest < TARGET:
        raise SystemExit(f"mean IoU of {' and '.join(RARE)} must be at least {TARGET}, got {lowest:.3f}")
    if (longest := max(row["CPU seconds"] for row in record["rows"])) > LIMIT:
        raise SystemExit(f"a run must need at most {LIMIT} CPU seconds, got {longest:.0f}")


def measure(folder: Path, variant: str, seed: int) -> dict[str, Any]:
    """Train and evaluate one network."""
    run, metrics = folder / f"{variant}-{seed}", folder / "metrics.json"
    flags = [*FLAGS.split(), *VARIANTS[variant].split(), "--seed", str(seed), "--accelerator", "cpu"]
    begin, used = time.perf_counter(), cpu_seconds()
    command("train", "--data", str(folder / "scans"), "--out", str(run), *flags)
    seconds, used = time.perf_counter() - begin, cpu_seconds() - used
    command("evaluate", str(run), "--data", str(folder / "test"), "--votes", "1", "--json", str(metrics))
    found = json.loads(metrics.read_text())
    classes = {each["class"]: round(each["iou"], 3) for each in found["classes"]}
    return {
        "variant": variant,
        "seed": seed,
        "seconds": round(seconds, 1),
        "CPU seconds": round(used, 1),
        "mIoU": round(found["miou"], 3),
        "rare mIoU": round(statistics.mean(classes[name] for name in RARE), 3),
        "IoU": classes,
    }


def cpu_seconds() -> float:
    """Processor time of all finished child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def command(*arguments: str) -> None:
    """Run a command of pointgrad; its output is shown only if it fails."""
    done = subprocess.run([sys.executable, "-m", "pointgrad", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)


def table(rows: list[dict[str, Any]]) -> Table:
    """One line per run."""
    shown = Table(title=f"whole streets: {FLAGS}", title_justify="left")
    for column in ("variant", "seed", "mIoU", "rare mIoU", *data.STREET_CLASSES, "CPU s"):
        shown.add_column(column, justify="left" if column == "variant" else "right")
    for row in rows:
        values = (row["mIoU"], row["rare mIoU"], *(row["IoU"][name] for name in data.STREET_CLASSES))
        shown.add_row(
            row["variant"], str(row["seed"]), *(f"{value:.3f}" for value in values), f"{row['CPU seconds']:.0f}"
        )
    return shown

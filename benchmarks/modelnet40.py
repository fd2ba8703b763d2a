"""Convert real data to `Arrays` files for training and evaluation.

    python -m benchmarks.modelnet40 --out FOLDER
    pointgrad train --data FOLDER/modelnet40.npz ...
    pointgrad evaluate RUN --data FOLDER/modelnet40.npz

Writes `modelnet40.npz` (9,520 x 1,024 points, 40 classes, a tenth of each class for validation), `dales.npz` (249
objects of 106 to 1,024 points, 5 classes) and `kitti.npz` (1,024 x 128 points, 4 classes), if their originals exist in
the data folder. Its README lists their sources and licenses.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.data import DATA

SEED = 0  # for the order of the points
Arrays = dict[str, np.ndarray]


def modelnet40(path: Path) -> Arrays:
    """float16 represents the 256 levels of a coordinate to within 0.0005, an eighth of their distance."""
    with np.load(path) as file:
        levels = np.cumsum(file["delta"], axis=2, dtype=np.uint8)  # wraps around intentionally
        label, val, classes = file["label"], file["val"], file["classes"]
    points = levels.transpose(1, 2, 0).astype(np.float32) / 127.5 - 1
    # In the file, consecutive points are neighbors.
    order = np.random.default_rng(SEED).random(points.shape[:2], np.float32).argsort(axis=1)
    points = np.take_along_axis(points, order[:, :, None], axis=1)
    return {"points": points.astype(np.float16), "label": label.astype(np.int64), "val": val, "classes": classes}


def dales(path: Path) -> Arrays:
    """Coordinates in meters from the corner of each object, on a grid of one centimeter, as float32."""
    with np.load(path) as file:
        points = file["xyz_cm"].astype(np.float32) / 100
        names = ("offsets", "label", "val", "classes")
        found = {name: file[name] for name in names}
    return {"points": points, **found, "label": found["label"].astype(np.int64)}


def kitti(path: Path) -> Arrays:
    with np.load(path) as file:
        found = {name: file[name] for name in ("points", "label", "val", "classes")}
    return {**found, "label": found["label"].astype(np.int64)}


SOURCES: dict[str, tuple[str, Callable[[Path], Arrays]]] = {
    "modelnet40": ("modelnet40_train_9520x1024_q8.npz", modelnet40),
    "dales": ("dales_objects_dev.npz", dales),
    "kitti": ("kitti_objects_dev.npz", kitti),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to, created if missing")
    parser.add_argument("--data", type=Path, default=DATA / "classification", help="folder of the original files")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    written = 0
    for name, (file, convert) in SOURCES.items():
        source = arguments.data / file
        if not source.exists():
            print(f"{source}: not found, skipped")
            continue
        arrays = convert(source)
        np.savez(arguments.out / f"{name}.npz", **arrays)
        clouds = len(arrays["label"])
        print(f"{arguments.out / name}.npz: {clouds} clouds, {int(arrays['val'].sum())} of them for validation")
        written += 1
    if not written:
        raise SystemExit(f"found none of the original files in {arguments.data}; set --data to their folder")


if __name__ == "__main__":
    main()

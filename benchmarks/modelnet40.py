"""`python -m benchmarks.modelnet40 --out FOLDER [--data FOLDER]`: real data as `Arrays` files, to train and test on.

Writes `modelnet40.npz` (9,520 x 1,024 points, 40 classes, a tenth of each class to validate on), `dales.npz` (249
objects of 106 to 1,024 points, 5 classes) and `kitti.npz` (1,024 x 128 points, 4 classes), of what it finds in the data
folder, whose README says where they come from and under which terms:

    pointgrad train --data FOLDER/modelnet40.npz ...
    pointgrad evaluate RUN --data FOLDER/modelnet40.npz
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.data import DATA

SEED = 0  # of the order of points
Arrays = dict[str, np.ndarray]


def modelnet40(path: Path) -> Arrays:
    """float16 holds the 256 levels of a coordinate to 0.0005, an eighth of their distance."""
    with np.load(path) as file:
        levels = np.cumsum(file["delta"], axis=2, dtype=np.uint8)  # wraps on purpose
        label, val, classes = file["label"], file["val"], file["classes"]
    points = levels.transpose(1, 2, 0).astype(np.float32) / 127.5 - 1
    # The file has the points in the order of a walk from neighbour to neighbour.
    order = np.random.default_rng(SEED).random(points.shape[:2], np.float32).argsort(axis=1)
    points = np.take_along_axis(points, order[:, :, None], axis=1)
    return {"points": points.astype(np.float16), "label": label.astype(np.int64), "val": val, "classes": classes}


def dales(path: Path) -> Arrays:
    """Metres from the corner of each object: on a grid of a centimetre, as float32."""
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
    parser.add_argument("--out", type=Path, required=True, help="where to write; made if it is not there")
    parser.add_argument("--data", type=Path, default=DATA / "classification", help="where the originals are")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    written = 0
    for name, (file, convert) in SOURCES.items():
        source = arguments.data / file
        if not source.exists():
            print(f"{source}: not there, left out")
            continue
        arrays = convert(source)
        np.savez(arguments.out / f"{name}.npz", **arrays)
        clouds = len(arrays["label"])
        print(f"{arguments.out / name}.npz: {clouds} clouds, {int(arrays['val'].sum())} of them to validate on")
        written += 1
    if not written:
        raise SystemExit(f"nothing found in {arguments.data}; --data says where to look")


if __name__ == "__main__":
    main()

"""ModelNet10 and ModelNet40: CAD models of 10 or 40 classes."""

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from pointgrad.data.cloud import Cloud
from pointgrad.data.datasets.arrays import Arrays
from pointgrad.data.datasets.layout import Cache, find, lines, missing
from pointgrad.data.datasets.split import SPLITS, WHOLE, Task, check_split, part_of_training
from pointgrad.data.datasets.tables import need_arrays, read_h5, read_rows
from pointgrad.data.files import FileError, read
from pointgrad.data.mixing import mix

LAYOUTS = (
    "CLASS/train/*.off and CLASS/test/*.off (the official meshes)",
    "ply_data_train*.h5, ply_data_test*.h5 and shape_names.txt (HDF5, 2048 points)",
    "modelnet40_shape_names.txt, modelnet40_train.txt, modelnet40_test.txt and CLASS/*.txt (text, 10,000 points)",
)
FOLDERS = ("ModelNet40", "ModelNet10", "modelnet40_ply_hdf5_2048", "modelnet40_normal_resampled")
CACHE = "pointgrad_cache"


class ModelNet(Dataset[Cloud]):
    """ModelNet in any of its three releases, which are detected by the contents of the folder.

    The HDF5 and text releases have normals: features nx, ny, nz. Sampled meshes and parsed text files are cached in
    `pointgrad_cache` in the folder.

    Args:
        root: The folder, or its parent.
        split: "test" is the published test set. A random tenth of each class of the published training set is "val",
            the rest "train"; "train+val" is all of it.
        sample: Number of points drawn uniformly from the surface of each mesh (official meshes only).
        seed: Seed of the random split.

    Raises:
        FileError: If the folder has none of the three layouts, or a file cannot be read.
    """

    task: Task = "classification"

    def __init__(self, root: str | Path, split: str, *, sample: int = 4096, seed: int = 0) -> None:
        check_split(split, (*SPLITS, WHOLE))
        root = Path(root)
        part = "test" if split == "test" else "train"
        self._clouds: Arrays | _Files
        if location := find(root, FOLDERS, lambda folder: any(folder.glob("*/train/*.off"))):
            self._clouds = _meshes(location, part, sample)
        elif location := find(root, FOLDERS, lambda folder: any(folder.glob("ply_data_train*.h5"))):
            self._clouds = _h5(location, part)
        elif location := find(root, FOLDERS, lambda folder: any(folder.glob("modelnet*_shape_names.txt"))):
            self._clouds = _texts(location, part)
        else:
            raise missing(root, "ModelNet", LAYOUTS, FOLDERS)
        self.classes = self._clouds.classes
        strata = self._clouds.labels
        self._number = list(range(len(strata))) if split == "test" else part_of_training(strata, split, seed)

    def __len__(self) -> int:
        return len(self._number)

    def __getitem__(self, index: int) -> Cloud:
        return self._clouds[self._number[index]]


class _Files(Dataset[Cloud]):
    """A file per cloud, read once and cached."""

    def __init__(self, root: Path, classes: tuple[str, ...], files: list[tuple[Path, int]], sample: int) -> None:
        self.root, self.classes, self.sample = root, classes, sample
        self.paths = [path for path, _ in files]
        self.labels = torch.tensor([label for _, label in files])
        self.cache = Cache(root / CACHE)

    def __getitem__(self, index: int) -> Cloud:
        path = self.paths[index]
        name = str(path.relative_to(self.root))
        name += f".{self.sample}" if self.sample else ""
        columns = torch.from_numpy(self.cache.get(name, [path], lambda: {"columns": self._read(path)})["columns"])
        normals = dict(zip(("nx", "ny", "nz"), columns[:, 3:].unbind(1), strict=False))  # empty for meshes
        return Cloud(columns[:, :3], normals, label=int(self.labels[index]), source=str(path))

    def _read(self, path: Path) -> np.ndarray:
        if not self.sample:
            return read_rows(path, 6, ",").astype(np.float32)
        generator = torch.Generator().manual_seed(mix(*path.name.encode()))
        cloud = read(path, sample=self.sample, generator=generator)
        return (cloud.points + cloud.origin).float().numpy()


def _meshes(root: Path, part: str, sample: int) -> _Files:
    classes = sorted(folder.parent.name for folder in root.glob("*/train") if folder.is_dir())
    files = [(path, label) for label, name in enumerate(classes) for path in sorted((root / name / part).glob("*.off"))]
    if not files:
        raise FileError(f"{root}: expected CLASS/{part}/*.off, found none")
    return _Files(root, tuple(classes), files, sample)


def _texts(root: Path, part: str) -> _Files:
    (names, *_) = sorted(root.glob("modelnet*_shape_names.txt"), reverse=True)  # prefer 40 to 10
    classes = lines(names)
    listing = root / names.name.replace("shape_names", part)
    files = []
    for number, entry in enumerate(lines(listing)):
        name = entry.rpartition("_")[0]  # night_stand_0001
        if name not in classes:
            raise FileError(
                f"{listing}: expected CLASS_NUMBER with a class of {names.name}, got {entry!r} in line {number + 1}"
            )
        files.append((root / name / f"{entry}.txt", classes.index(name)))
    return _Files(root, tuple(classes), files, 0)


def _h5(root: Path, part: str) -> Arrays:
    classes = lines(root / "shape_names.txt")
    files = sorted(root.glob(f"ply_data_{part}*.h5"))
    if not files:
        raise FileError(f"{root}: expected ply_data_{part}*.h5, found none")
    points, labels, normals = [], [], []
    for path in files:
        arrays = read_h5(path)
        data, label = need_arrays(path, arrays, "data", "label")
        points.append(data)
        labels.append(label.reshape(-1))
        normals.append(arrays.get("normal"))
    features = {}
    known = [normal for normal in normals if normal is not None]
    if len(known) == len(files):
        features = {axis: np.concatenate(known)[..., column] for column, axis in enumerate(("nx", "ny", "nz"))}
    everything = {"points": np.concatenate(points), "label": np.concatenate(labels), "classes": np.array(classes)}
    return Arrays({**everything, **features}, task="classification", name=str(root))

"""ShapeNetPart: part segmentation of objects of 16 categories."""

import json
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from pointgrad.data.cloud import Cloud
from pointgrad.data.datasets.arrays import Arrays
from pointgrad.data.datasets.layout import Cache, find, lines, missing
from pointgrad.data.datasets.split import SPLITS, WHOLE, Task, check_split
from pointgrad.data.datasets.tables import need_arrays, read_h5, read_rows
from pointgrad.data.files import FileError
from pointgrad.data.files.errors import naming
from pointgrad.data.files.memory import check_regular

# Number of parts of each category. Parts are numbered consecutively in this order.
PARTS = {
    "Airplane": 4, "Bag": 2, "Cap": 2, "Car": 4, "Chair": 4, "Earphone": 3, "Guitar": 3, "Knife": 2, "Lamp": 4,
    "Laptop": 2, "Motorbike": 6, "Mug": 2, "Pistol": 3, "Rocket": 3, "Skateboard": 3, "Table": 3,
}  # fmt: skip
LAYOUTS = (
    "synsetoffset2category.txt, train_test_split/shuffled_{train,val,test}_file_list.json and SYNSET/*.txt (text)",
    "ply_data_{train,val,test}*.h5 (HDF5, 2048 points)",
)
FOLDERS = ("shapenetcore_partanno_segmentation_benchmark_v0_normal", "hdf5_data", "shapenet_part_seg_hdf5_data")
CACHE = "pointgrad_cache"


class ShapeNetPart(Dataset[Cloud]):
    """ShapeNetPart, 50 parts of 16 categories. The text and HDF5 releases are detected by the contents of the folder.

    The text release has normals: features nx, ny, nz. Parsed text files are cached in `pointgrad_cache` in the folder.

    Args:
        root: The folder, or its parent.
        split: The published "train", "val" or "test", or "train+val".

    Raises:
        FileError: If the folder has neither layout, or a file cannot be read.
    """

    task: Task = "segmentation"
    categories = tuple(PARTS)

    def __init__(self, root: str | Path, split: str) -> None:
        check_split(split, (*SPLITS, WHOLE))
        root = Path(root)
        ends = np.cumsum(list(PARTS.values())).tolist()
        self.parts = tuple(tuple(range(end - count, end)) for end, count in zip(ends, PARTS.values(), strict=True))
        self.classes = tuple(f"{name} {number}" for name, count in PARTS.items() for number in range(count))
        splits = ("train", "val") if split == WHOLE else (split,)
        self._clouds: Arrays | _Texts
        if location := find(root, FOLDERS, lambda folder: (folder / "synsetoffset2category.txt").is_file()):
            self._clouds = _Texts(location, splits)
        elif location := find(root, FOLDERS, lambda folder: any(folder.glob("ply_data_train*.h5"))):
            self._clouds = _h5(location, splits, self.classes)
        else:
            raise missing(root, "ShapeNetPart", LAYOUTS, FOLDERS)

    def __len__(self) -> int:
        return len(self._clouds)

    def __getitem__(self, index: int) -> Cloud:
        cloud = self._clouds[index]
        own = self.parts[cloud.category or 0]
        assert cloud.labels is not None
        low, high = int(cloud.labels.min()), int(cloud.labels.max())
        if low < own[0] or high > own[-1]:
            name = self.categories[cloud.category or 0]
            raise FileError(f"{cloud.source}: expected parts {own[0]} to {own[-1]} of {name}, got {low} to {high}")
        return cloud


class _Texts(Dataset[Cloud]):
    def __init__(self, root: Path, splits: tuple[str, ...]) -> None:
        self.root, self.cache = root, Cache(root / CACHE)
        listing = root / "synsetoffset2category.txt"
        number = {}
        for line in lines(listing):
            name, _, synset = line.replace("\t", " ").partition(" ")
            if name not in PARTS:
                raise FileError(f"{listing}: expected a category of {', '.join(PARTS)}, got {name!r}")
            number[synset.strip()] = list(PARTS).index(name)
        self.files: list[tuple[Path, int]] = []
        for split in splits:
            path = root / "train_test_split" / f"shuffled_{split}_file_list.json"
            for entry in read_entries(path):
                synset, name = entry.split("/")[-2:]
                if synset not in number:
                    raise FileError(f"{path}: expected a synset of {listing.name}, got {entry!r}")
                self.files.append((root / synset / f"{name}.txt", number[synset]))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Cloud:
        path, category = self.files[index]
        name = str(path.relative_to(self.root))
        kept = self.cache.get(name, [path], lambda: {"rows": read_rows(path, 7).astype(np.float32)})
        rows = torch.from_numpy(kept["rows"])
        normals = {axis: rows[:, 3 + column] for column, axis in enumerate(("nx", "ny", "nz"))}
        return Cloud(rows[:, :3], normals, labels=rows[:, 6].long(), category=category, source=str(path))


def read_entries(path: Path) -> list[str]:
    """Read the entries of a split."""
    with naming(path, "a JSON list of shape_data/SYNSET/NAME"):
        check_regular(path)
        entries = json.loads(path.read_text())
    if not isinstance(entries, list) or not all(isinstance(e, str) and e.count("/") >= 1 for e in entries):
        raise FileError(f"{path}: expected a JSON list of shape_data/SYNSET/NAME, got different content")
    return entries


def _h5(root: Path, splits: tuple[str, ...], classes: tuple[str, ...]) -> Arrays:
    files = [path for split in splits for path in sorted(root.glob(f"ply_data_{split}*.h5"))]
    if not files:
        raise FileError(f"{root}: expected ply_data_{splits[0]}*.h5, found none")
    found = [need_arrays(path, read_h5(path), "data", "label", "pid") for path in files]
    points, category, parts = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    arrays = {
        "points": points,
        "label": parts,
        "category": category.reshape(-1),
        "classes": np.array(classes),
        "categories": np.array(list(PARTS)),
    }
    return Arrays(arrays, task="segmentation", name=str(root))

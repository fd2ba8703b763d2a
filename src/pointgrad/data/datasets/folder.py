"""A dataset stored as a folder of point cloud files, or as one file."""

import csv
from collections import Counter
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from pointgrad.data.classes import (
    MAX_CODE,
    ClassMap,
    asprs,
    choose_classes,
    count_codes,
    describe_codes,
    ignored_note,
)
from pointgrad.data.cloud import Cloud
from pointgrad.data.datasets.blocks import in_validation
from pointgrad.data.datasets.layout import lines, missing
from pointgrad.data.datasets.split import SPLITS, Task, check_split, part_of_training
from pointgrad.data.files import FileError, read
from pointgrad.data.files.errors import naming
from pointgrad.data.files.formats import FORMATS, LAS, choose
from pointgrad.data.files.las_check import open_checked
from pointgrad.data.files.npy import load_array
from pointgrad.data.files.table import LABELS as LABEL_COLUMNS
from pointgrad.data.mixing import mix

LABELS, NAMES, CODES = "labels.csv", "classes.txt", "classes.yaml"
LABEL_SUFFIXES = (".label", ".labels.npy")
NO_CLASS = 0xFFFF  # "no label" in the 16 class bits of a .label file

LAYOUTS = (
    "CLASS/*.ply, one folder per class",
    f"*.ply and {LABELS} with lines file,class",
    "*.ply with a label for each point, in the file or next to it (a.label or a.labels.npy)",
)


class Folder(Dataset[Cloud]):
    """Clouds from files of any formats that `pointgrad.data.read` supports.

    Labels are stored in one of three ways:

    - One folder per class, `root/chair/a.ply`. The classes are the sorted names of the folders.
    - A table, `root/labels.csv`, with lines `file,class`. Files are relative to the table. Classes are sorted, by value
      if all are numbers.
    - One label per point (segmentation), in the files (see `read`) or next to them: `a.labels.npy`, integers, or
      `a.label`, 32-bit numbers whose lower 16 bits are the class, as in SemanticKITTI. -1 means no label. Line i of
      `root/classes.txt` names class i, or `root/classes.yaml` names classes with their codes (see `ClassMap.parse`).
      Without these files, all labels are read once, and the classes are the codes that occur. If a LAS file is among
      the files, they have the names of its standard, and the codes 0 and 1 (unclassified) mean no label.

    Args:
        root: The folder. If it contains a folder `train` and optionally `val` and `test`, each with one of the layouts
            above, these are the splits. Without `val`, a random tenth of each class of the training data is "val".
            Without such folders, "test" and None are all clouds. A single file with a label for each point, or a
            folder with one, is divided by area: three of 16 blocks with equally many points are "val".
        split: "train", "val", "test" or None.
        task: "classification" or "segmentation". Default: segmentation if there are neither class folders nor a table.
        sample: Number of points drawn from each file, from the surface of a mesh or from the points of a cloud; the
            same ones each time. 0: all vertices or points.
        seed: Seed of the random split and of the samples.
        classes: For segmentation, the classes with their codes in the files, instead of those of the folder.

    Raises:
        FileError: If the folder has none of these layouts, or a file cannot be read.

    Attributes:
        files: Files of this split.
        whole: Whether this split is all data, because there are no folders for splits.
        by_area: Whether this split is a part of a single file.
        class_map: Classes with their codes in the files; None if labels are class numbers.
    """

    def __init__(
        self,
        root: str | Path,
        split: str | None = None,
        task: Task | None = None,
        *,
        sample: int = 0,
        seed: int = 0,
        classes: ClassMap | None = None,
    ) -> None:
        check_split(split, (*SPLITS, None))
        self.root, self.sample, self.seed = Path(root), sample, seed
        if not self.root.is_dir() and not is_cloud(self.root):
            raise missing(self.root, "a folder of clouds", LAYOUTS)
        self._folder = self.root if self.root.is_dir() else self.root.parent  # may contain classes.yaml or classes.txt
        parts = {name: self.root / name for name in SPLITS if (self.root / name).is_dir()}
        if parts and "train" not in parts:
            raise FileError(f"{self.root}: expected a folder train in addition to {' and '.join(parts)}, found none")
        folders = list(parts.values()) or [self.root]
        self.whole = not parts and split not in ("train", "val")  # all clouds, including those used for training
        self.task: Task = task or ("classification" if any(map(_has_classes, folders)) else "segmentation")
        if self.root.is_file() and self.task == "classification":
            raise FileError(f"{self.root}: expected a folder for classification, got one file")
        found = {folder: _labelled(folder, self.task) for folder in folders}
        if not any(found.values()):
            raise missing(self.root, "clouds", LAYOUTS)
        if self.task == "classification":
            if classes is not None:
                raise FileError(f"{self.root}: expected labels of points to map to classes, found labels of clouds")
            self.class_map = None
            self.classes = _sorted({name for files in found.values() for _, name in files})
        else:
            self._all = [path for files in found.values() for path, _ in files]
            self.class_map = classes
            self.classes = classes.names if classes is not None else self._point_classes()
        folder = self.root
        if parts:
            if split == "test" and "test" not in parts:
                raise FileError(f"{self.root}: expected a folder test in addition to train, found none")
            folder = parts.get(split or "", parts["train"])
        files = [path for path, _ in found[folder]]
        names = [name for _, name in found[folder]]
        number = {name: label for label, name in enumerate(self.classes)}
        labels = [number.get(name, 0) for name in names]
        keep = list(range(len(files)))
        single = self.task == "segmentation" and len(files) == 1 and "val" not in parts
        self.by_area = single and split in ("train", "val")
        self._is_val = split == "val"
        if split in ("train", "val") and "val" not in parts and not single:
            keep = part_of_training(labels, split, seed)
        if not keep:
            raise FileError(f"{folder}: expected clouds for {split}, found {len(files)} in total")
        self._others: dict[int, dict[int, int]] = {}  # ignored codes by index of the cloud
        self.files = [files[i] for i in keep]
        self._labels = [labels[i] for i in keep]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Cloud:
        path = self.files[index]
        generator = torch.Generator().manual_seed(mix(self.seed, *path.name.encode()))
        cloud = read(path, sample=self.sample, generator=generator)
        if self.task == "classification":
            cloud.label, cloud.labels = self._labels[index], None
            return cloud
        labels = point_labels(path, cloud)
        cloud.label, cloud.labels = None, labels
        if self.by_area:  # by the codes of the file, so that the division does not depend on the classes
            cloud = cloud.select(in_validation(cloud.points, labels) == self._is_val)
            assert cloud.labels is not None
            labels = cloud.labels
            if not len(cloud):
                raise FileError(f"{path}: expected enough points to divide into blocks, got too few")
        if self.class_map is not None:
            counts = count_codes(labels)
            self.class_map.check(counts, str(path))
            self._others[index] = self.class_map.others(counts)
            return replace(cloud, labels=self.class_map.apply(labels))
        low, high = int(labels.min()), int(labels.max())
        if low < -1 or high >= len(self.classes):
            raise FileError(f"{path}: expected labels from -1 to {len(self.classes) - 1}, got {low} to {high}")
        return cloud

    @property
    def ignored(self) -> dict[int, int]:
        """Number of points of each code that belongs to no class, in the clouds read so far."""
        total: Counter[int] = Counter()
        for counts in self._others.values():
            total.update(counts)
        return dict(sorted(total.items()))

    def _point_classes(self) -> tuple[str, ...]:
        if (self._folder / CODES).is_file():
            self.class_map = ClassMap.read(self._folder / CODES)
            return self.class_map.names
        if (self._folder / NAMES).is_file():
            return tuple(lines(self._folder / NAMES))
        self.class_map = choose_classes(self.codes, las=self._is_las)
        return tuple(map(str, range(max(self.codes) + 1))) if self.class_map is None else self.class_map.names

    @cached_property
    def codes(self) -> dict[int, int]:
        """Number of points of each label in the files of all splits; reads all of them."""
        counts: Counter[int] = Counter()
        errors = []
        for path in self._all:
            try:
                found = count_codes(point_labels(path, None))
            except (ValueError, OSError) as error:  # raised again when this cloud is read
                errors.append(error)
                continue
            if max(found, default=-1) > MAX_CODE:
                raise FileError(f"{path}: expected labels up to {MAX_CODE}, got {max(found)}")
            counts.update(found)
        if max(counts, default=-1) < 0:
            raise errors[0] if errors else FileError(f"{self.root}: expected labels other than -1, found none")
        return dict(sorted(counts.items()))

    @cached_property
    def _is_las(self) -> bool:
        """Whether the codes are those of the LAS standard: equal codes mean the same class in files of all formats."""
        return any(map(is_las_classification, self._all))

    def describe_classes(self) -> str:
        """Describe the labels of the files and the classes chosen for them, one sentence per line.

        Raises:
            FileError: If no point belongs to a class, or codes that belong to none are refused.
        """
        names = {code: asprs(code) for code in self.codes} if self._is_las else {}
        found = f"labels found: {describe_codes({c: n for c, n in self.codes.items() if c >= 0}, names)}"
        if self.class_map is None:
            return found
        self.class_map.check(self.codes, str(self.root))
        sums = self.class_map.sums(self.codes)
        if not any(sums):
            wanted = " ".join(self.class_map.texts())
            raise FileError(f"{self.root}: expected points of the classes {wanted}, found none; {found}")
        text = [found, f"classes: {' '.join(self.class_map.texts())}"]
        if others := self.class_map.others(self.codes):
            text.append(ignored_note(others))
        return "\n".join(text)


def has_sidecar(path: Path) -> bool:
    """Whether labels are stored next to a file."""
    return any(path.with_name(path.name.partition(".")[0] + end).is_file() for end in LABEL_SUFFIXES)


def is_las_classification(path: Path) -> bool:
    """Whether the labels of a file are the classification of the LAS standard."""
    if choose(path, None) not in LAS or has_sidecar(path):
        return False
    try:
        with open_checked(path) as reader:
            columns = [name.lower() for name in reader.header.point_format.dimension_names]
    except Exception:  # a damaged file, reported when its points are read
        return False
    return next((name for name in LABEL_COLUMNS if name in columns), "") == "classification"


def _has_classes(folder: Path) -> bool:
    return (folder / LABELS).is_file() or any(is_cloud(path) for inner in _folders(folder) for path in inner.rglob("*"))


def _labelled(folder: Path, task: Task) -> list[tuple[Path, str]]:
    """List the files of a folder, each with its class name (empty for segmentation)."""
    if folder.is_file():
        return [(folder, "")]
    if task == "segmentation":
        return [(path, "") for path in sorted(folder.rglob("*")) if is_cloud(path)]
    if (folder / LABELS).is_file():
        return _table(folder / LABELS)
    return [(path, f.name) for f in _folders(folder) for path in sorted(f.rglob("*")) if is_cloud(path)]


def _table(path: Path) -> list[tuple[Path, str]]:
    files = []
    with naming(path, "lines file,class"), open(path, newline="", encoding="utf-8") as stream:
        for number, row in enumerate(csv.reader(stream)):
            cells = [cell.strip() for cell in row]
            if not any(cells) or (number == 0 and cells[:1] == ["file"]):
                continue
            if len(cells) != 2 or not all(cells):
                raise FileError(f"expected file,class, got {','.join(row)!r} in line {number + 1}")
            file = path.parent / cells[0]
            if not file.is_file():
                raise FileError(f"expected files that exist, got {cells[0]!r} in line {number + 1}")
            files.append((file, cells[1]))
    return files


def _folders(folder: Path) -> list[Path]:
    return (
        []
        if folder.is_file()
        else sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    )


def is_cloud(path: Path) -> bool:
    name = path.name.lower()
    if name in (LABELS, NAMES) or name.startswith((".", "readme")) or name.endswith(LABEL_SUFFIXES):
        return False
    return name.endswith(tuple(f".{suffix}" for suffix in FORMATS)) and path.is_file()


def _sorted(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=int if all(name.isdecimal() for name in names) else None))


def point_labels(path: Path, cloud: Cloud | None) -> Tensor:
    """Read the labels (N,) of a file's points, from a file next to it if there is one, else from the file."""
    binary, array = (path.with_name(path.name.partition(".")[0] + end) for end in LABEL_SUFFIXES)
    if array.is_file():
        values = _numpy(array)
    elif binary.is_file():
        values = (np.fromfile(binary, np.uint32) & NO_CLASS).astype(np.int64)
        values[values == NO_CLASS] = -1
    else:
        cloud = cloud or read(path)
        if cloud.labels is None:
            hint = "; `pointgrad convert --columns` names columns" if "column4" in cloud.features else ""
            raise FileError(
                f"{path}: expected a label for each point, in a column called label or class, in {binary.name} or in "
                f"{array.name}, found the columns {', '.join(['x', 'y', 'z', *cloud.features])}{hint}"
            )
        return cloud.labels
    if cloud is not None and values.shape != (len(cloud),):
        name = array.name if array.is_file() else binary.name
        raise FileError(f"{path}: expected {len(cloud)} labels in {name}, one for each point, got {values.shape}")
    return torch.from_numpy(values.astype(np.int64))


def _numpy(path: Path) -> np.ndarray:
    with naming(path, "integers"):
        values = load_array(path)
    if values.dtype.kind not in "iu":
        raise FileError(f"{path}: expected integers, got {values.dtype}")
    return values

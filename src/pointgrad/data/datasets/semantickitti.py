"""SemanticKITTI: LiDAR sweeps recorded from a car, 19 classes."""

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from pointgrad.data.cloud import Cloud
from pointgrad.data.datasets.layout import find, missing
from pointgrad.data.datasets.split import SPLITS, WHOLE, Task, check_split
from pointgrad.data.files import FileError
from pointgrad.data.files.errors import naming
from pointgrad.data.files.memory import check_regular

CLASSES = (
    "car", "bicycle", "motorcycle", "truck", "other-vehicle", "person", "bicyclist", "motorcyclist", "road", "parking",
    "sidewalk", "other-ground", "building", "fence", "vegetation", "trunk", "terrain", "pole", "traffic-sign",
)  # fmt: skip
# Class of each published label. Moving objects and rare labels are merged, as in the published evaluation.
LABELS = {
    10: 0, 252: 0, 11: 1, 15: 2, 18: 3, 258: 3, 20: 4, 13: 4, 16: 4, 256: 4, 257: 4, 259: 4, 30: 5, 254: 5, 31: 6,
    253: 6, 32: 7, 255: 7, 40: 8, 60: 8, 44: 9, 48: 10, 49: 11, 50: 12, 51: 13, 70: 14, 71: 15, 72: 16, 80: 17, 81: 18,
}  # fmt: skip
NONE = (0, 1, 52, 99)  # unlabeled, outlier, other structure, other object
SEQUENCES = {"train": (0, 1, 2, 3, 4, 5, 6, 7, 9, 10), "val": (8,), "test": tuple(range(11, 22))}
FOLDERS = ("dataset", "SemanticKITTI", "SemanticKITTI/dataset")
LAYOUT = "sequences/00 ... 21/velodyne/*.bin and, for 00 to 10, sequences/NN/labels/*.label"


class SemanticKITTI(Dataset[Cloud]):
    """The sweeps of SemanticKITTI, each a cloud with the feature `intensity`.

    Missing sequences are skipped.

    Args:
        root: The folder that contains `sequences`, or its parent.
        split: "train" (sequences 00 to 07, 09, 10), "val" (08), "train+val", or "test" (11 to 21, whose labels are not
            published and therefore -1).

    Raises:
        FileError: If there are no sweeps of the split, or a file cannot be read.
    """

    task: Task = "segmentation"
    classes = CLASSES

    def __init__(self, root: str | Path, split: str) -> None:
        check_split(split, (*SPLITS, WHOLE))
        root = Path(root)
        location = find(root, FOLDERS, lambda folder: any(folder.glob("sequences/[0-9][0-9]/velodyne/*.bin")))
        if location is None:
            raise missing(root, "SemanticKITTI", [LAYOUT], FOLDERS)
        self.split = split
        splits = ("train", "val") if split == WHOLE else (split,)
        numbers = [number for part in splits for number in SEQUENCES[part]]
        self.files = [
            path for number in numbers for path in sorted((location / f"sequences/{number:02}/velodyne").glob("*.bin"))
        ]
        if not self.files:
            wanted = ", ".join(f"{number:02}" for number in numbers)
            raise FileError(f"{location}: expected sequences/NN/velodyne/*.bin of {wanted} for {split}, found none")
        self._classes = torch.full((2**16,), -2, dtype=torch.int64)
        self._classes[list(NONE)] = -1
        self._classes[list(LABELS)] = torch.tensor(list(LABELS.values()))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Cloud:
        path = self.files[index]
        values = torch.from_numpy(_read(path, np.float32, 4))
        label = path.parents[1] / "labels" / f"{path.stem}.label"
        if self.split == "test" and not label.exists():
            labels = torch.full((len(values),), -1)
        else:
            labels = self._read_labels(label, len(values))
        return Cloud(values[:, :3], {"intensity": values[:, 3]}, labels=labels, source=str(path))

    def _read_labels(self, path: Path, count: int) -> torch.Tensor:
        raw = _read(path, np.uint32, 1)[:, 0]
        if len(raw) != count:
            raise FileError(f"{path}: expected {count} labels, one for each point of the sweep, got {len(raw)}")
        published = torch.from_numpy((raw & 0xFFFF).astype(np.int64))  # the upper bits number the instances
        labels = self._classes[published]
        if (labels == -2).any():
            raise FileError(f"{path}: expected published labels, got {int(published[labels == -2][0])}")
        return labels


def _read(path: Path, dtype: type, columns: int) -> np.ndarray:
    with naming(path, "a file that can be read"):
        check_regular(path)
        data = path.read_bytes()
    size = 4 * columns
    if not data or len(data) % size:
        raise FileError(f"{path}: expected records of {size} bytes, got {len(data)} bytes")
    return np.frombuffer(data, dtype).reshape(-1, columns).copy()

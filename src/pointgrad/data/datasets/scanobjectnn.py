"""ScanObjectNN: objects cropped from indoor scans, with background and missing parts."""

from pathlib import Path

import numpy as np
from torch.utils.data import Dataset

from pointgrad.data.cloud import Cloud
from pointgrad.data.datasets.arrays import Arrays
from pointgrad.data.datasets.layout import find, missing
from pointgrad.data.datasets.split import SPLITS, WHOLE, Task, check_split, part_of_training
from pointgrad.data.datasets.tables import need_arrays, read_h5

CLASSES = (
    "bag", "bin", "box", "cabinet", "chair", "desk", "display", "door", "shelf", "table", "bed", "pillow", "sink",
    "sofa", "toilet",
)  # fmt: skip
# Names in the paper, and suffixes of the file names.
VARIANTS = {
    "OBJ": "",
    "PB_T25": "_augmented25_norot",
    "PB_T25_R": "_augmented25rot",
    "PB_T50_R": "_augmentedrot",
    "PB_T50_RS": "_augmentedrot_scale75",
}
FOLDERS = ("h5_files", "ScanObjectNN", "ScanObjectNN/h5_files")


class ScanObjectNN(Dataset[Cloud]):
    """ScanObjectNN, 15 classes, 2048 points per object.

    If the file contains it, the feature `mask` is -1 for background points.

    Args:
        root: The folder that contains `main_split`, or its parent.
        split: "test" is the published test set. A random tenth of each class of the published training set is "val",
            the rest "train"; "train+val" is all of it.
        variant: "OBJ", "PB_T25", "PB_T25_R", "PB_T50_R", or the hardest, "PB_T50_RS".
        background: Whether to include background points. False uses `main_split_nobg`.
        seed: Seed of the random split.

    Raises:
        FileError: If a file is missing or cannot be read.
    """

    task: Task = "classification"
    classes = CLASSES

    def __init__(
        self, root: str | Path, split: str, *, variant: str = "PB_T50_RS", background: bool = True, seed: int = 0
    ) -> None:
        check_split(split, (*SPLITS, WHOLE))
        if variant not in VARIANTS:
            raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
        root = Path(root)
        folder = "main_split" if background else "main_split_nobg"
        part = "test" if split == "test" else "training"
        name = f"{folder}/{part}_objectdataset{VARIANTS[variant]}.h5"
        location = find(root, FOLDERS, lambda at: (at / name).is_file())
        if location is None:
            raise missing(root, "ScanObjectNN", [name], FOLDERS)
        arrays = read_h5(location / name)
        points, label = need_arrays(location / name, arrays, "data", "label")
        found = {"points": points, "label": label.reshape(-1), "classes": np.array(CLASSES)}
        if "mask" in arrays:
            found["mask"] = arrays["mask"]
        self._clouds = Arrays(found, task="classification", name=str(location / name))
        strata = self._clouds.labels
        self._number = list(range(len(strata))) if split == "test" else part_of_training(strata, split, seed)

    def __len__(self) -> int:
        return len(self._number)

    def __getitem__(self, index: int) -> Cloud:
        return self._clouds[self._number[index]]

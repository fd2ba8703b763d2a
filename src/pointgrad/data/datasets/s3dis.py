"""S3DIS: rooms of six building areas, 13 classes."""

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from pointgrad.data.cloud import Cloud
from pointgrad.data.datasets.layout import Cache, find, missing
from pointgrad.data.datasets.split import SPLITS, WHOLE, Task, check_split, part_of_training
from pointgrad.data.datasets.tables import read_rows
from pointgrad.data.files import FileError

CLASSES = (
    "ceiling", "floor", "wall", "beam", "column", "window", "door", "table", "chair", "sofa", "bookcase", "board",
    "clutter",
)  # fmt: skip
FOLDERS = ("Stanford3dDataset_v1.2_Aligned_Version", "Stanford3dDataset_v1.2")
CACHE = "pointgrad_cache"


class S3DIS(Dataset[Cloud]):
    """The rooms of S3DIS, each a cloud with features red, green, blue.

    Objects of other classes (stairs) are labeled clutter, as in the published evaluation. A room has up to several
    million points; `VoxelSample` and `Crop` reduce them. Parsed text files are cached in `pointgrad_cache` in the
    folder.

    Args:
        root: The folder that contains `Area_1` to `Area_6`, or its parent.
        split: "test" is the area `test_area`. A random tenth of the other rooms is "val", the rest "train";
            "train+val" is both.
        test_area: Number of the test area.
        seed: Seed of the random split.

    Raises:
        FileError: If the folder has a different layout, or a file cannot be read.
    """

    task: Task = "segmentation"
    classes = CLASSES

    def __init__(self, root: str | Path, split: str, *, test_area: int = 5, seed: int = 0) -> None:
        check_split(split, (*SPLITS, WHOLE))
        root = Path(root)
        location = find(root, FOLDERS, lambda folder: any(folder.glob("Area_*/*/Annotations/*.txt")))
        if location is None:
            raise missing(root, "S3DIS", ["Area_1 ... Area_6/ROOM/Annotations/CLASS_NUMBER.txt"], FOLDERS)
        self.root, self.cache = location, Cache(location / CACHE)
        rooms = sorted(folder.parent for folder in location.glob("Area_*/*/Annotations") if folder.is_dir())
        area = f"Area_{test_area}"
        if split == "test":
            self.rooms = [room for room in rooms if room.parent.name == area]
        else:
            others = [room for room in rooms if room.parent.name != area]
            self.rooms = [others[number] for number in part_of_training([0] * len(others), split, seed)]
        if not self.rooms:
            areas = ", ".join(sorted({room.parent.name for room in rooms}))
            raise FileError(
                f"{location}: expected rooms of {'' if split == 'test' else 'areas other than '}{area}, got {areas}"
            )

    def __len__(self) -> int:
        return len(self.rooms)

    def __getitem__(self, index: int) -> Cloud:
        room = self.rooms[index]
        name = str(room.relative_to(self.root))
        files = sorted((room / "Annotations").glob("*.txt"))
        if not files:
            raise FileError(f"{room}: expected Annotations/CLASS_NUMBER.txt, found none")
        arrays = self.cache.get(name, files, lambda: _read(files))
        colors = torch.from_numpy(arrays["colors"])
        return Cloud(
            torch.from_numpy(arrays["points"]),
            {color: colors[:, column] for column, color in enumerate(("red", "green", "blue"))},
            labels=torch.from_numpy(arrays["labels"]).long(),
            source=str(room),
        )


def _read(files: list[Path]) -> dict[str, np.ndarray]:
    rows, labels = [], []
    for path in files:
        rows.append(read_rows(path, 6))
        name = path.name.partition("_")[0]
        labels.append(np.full(len(rows[-1]), CLASSES.index(name if name in CLASSES else "clutter"), np.int8))
    table = np.concatenate(rows)
    return {
        "points": table[:, :3].astype(np.float32),
        "colors": table[:, 3:].astype(np.uint8),
        "labels": np.concatenate(labels),
    }

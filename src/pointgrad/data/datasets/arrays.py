"""A dataset stored as named arrays in one file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from pointgrad.data.cloud import Cloud
from pointgrad.data.datasets.split import SPLITS, Task, check_split, part_of_training
from pointgrad.data.datasets.tables import read_h5, read_npz
from pointgrad.data.files import FileError
from pointgrad.data.files.table import WIDER

MAX_CLASSES = 100_000  # without a list of their names
RESERVED = ("points", "offsets", "label", "val", "classes", "category", "categories")


class Arrays(Dataset[Cloud]):
    """Clouds from an `.npz` or `.h5` file, or from a dictionary of arrays, all held in memory.

    The n clouds are described by these arrays:

    - `points`: floating-point (n, p, 3), or packed (P, 3) with `offsets` (n + 1,), where cloud i is
      `points[offsets[i]:offsets[i + 1]]`.
    - `label`: integers, one per cloud (n,) for classification; or one per point, (n, p) or (P,), for segmentation, with
      -1 for no label.
    - `classes` (optional): names of the classes.
    - `val` (optional): bool (n,), the clouds for validation.
    - `category` and `categories` (optional): category of each cloud, integers (n,), and their names, for part
      segmentation.

    Any other array with a row per point, (n, p), (n, p, c), (P,) or (P, c), is a feature. All others are ignored.

    Args:
        source: The file, or a dictionary of arrays.
        split: "train" and "val" are chosen by `val`; without it, a random tenth of each class is "val". "test" and
            None are all clouds.
        task: Required task. Default: the task that the labels imply.
        seed: Seed of the random split.
        name: Name for messages and for `Cloud.source`. Default: the file.

    Raises:
        FileError: If an array is missing or invalid.

    Example:
        >>> points, val = np.zeros((3, 5, 3), "f4"), np.array([0, 0, 1], bool)
        >>> data = Arrays({"points": points, "label": np.array([0, 1, 1]), "val": val}, "train")
        >>> len(data), data.classes, data[1].points.shape, data[1].label
        (2, ('0', '1'), torch.Size([5, 3]), 1)
    """

    def __init__(
        self,
        source: str | Path | Mapping[str, Any],
        split: str | None = None,
        task: Task | None = None,
        *,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        check_split(split, (*SPLITS, None))
        if isinstance(source, Mapping):
            arrays = {key: np.asarray(value) for key, value in source.items()}
        else:
            arrays = _load(Path(source))
        self.name = name or ("arrays" if isinstance(source, Mapping) else str(source))
        read = _Reader(self.name, arrays)
        self._points, offsets = read.points()
        count = len(offsets) - 1
        self._offsets: list[int] = offsets.tolist()
        self._features = read.features(len(self._points))
        self._label, self.task = read.label(count, len(self._points))
        if task not in (None, self.task):
            one = "cloud" if task == "classification" else "point"
            raise FileError(f"{self.name}: label must have one entry per {one} for {task}, got {arrays['label'].shape}")
        self.classes = read.names("classes", self._label, least=-1 if self.task == "segmentation" else 0)
        self._category = read.category(count) if self.task == "segmentation" else None
        if self._category is not None:
            self.categories = read.names("categories", self._category, least=0)
            self.parts = self._parts(self._category)
        self.whole = split not in ("train", "val")  # all clouds, including those used for training
        self._number = list(range(count))
        if split in ("train", "val") and "val" in arrays:
            self._number = torch.nonzero(read.val(count) == (split == "val")).squeeze(1).tolist()
            if not self._number:
                raise FileError(f"{self.name}: val must select at least one cloud for {split}, got none")
        elif split in ("train", "val"):
            strata = self._label if self.task == "classification" else torch.zeros(count)
            self._number = part_of_training(strata, split, seed)

    def __len__(self) -> int:
        return len(self._number)

    def __getitem__(self, index: int) -> Cloud:
        number = self._number[index]
        begin, end = self._offsets[number], self._offsets[number + 1]
        whole = self.task == "classification"
        return Cloud(
            self._points[begin:end],
            {name: column[begin:end] for name, column in self._features.items()},
            labels=None if whole else self._label[begin:end],
            label=int(self._label[number]) if whole else None,
            category=None if self._category is None else int(self._category[number]),
            source=f"{self.name}[{number}]",
        )

    @property
    def labels(self) -> Tensor:
        """Labels of the clouds of this split, or the concatenated labels of their points."""
        if self.task == "classification":
            return self._label[self._number]
        return torch.cat([self._label[self._offsets[n] : self._offsets[n + 1]] for n in self._number])

    def _parts(self, category: Tensor) -> tuple[tuple[int, ...], ...]:
        """Return the classes that occur in each category, over the whole file."""
        count = len(self.classes)
        pairs = (category * count).repeat_interleave(torch.tensor(self._offsets).diff()).add_(self._label)
        found = pairs[self._label >= 0].unique()
        return tuple(
            tuple((found[found // count == number] % count).tolist()) for number in range(len(self.categories))
        )


class _Reader:
    """Reads and checks the arrays of a file."""

    def __init__(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        self.name, self.arrays = name, arrays
        missing = [key for key in ("points", "label") if key not in arrays]
        if missing:
            self.fail(f"arrays must contain {' and '.join(missing)}", ", ".join(arrays) or "none")

    def fail(self, contract: str, received: Any) -> None:
        raise FileError(f"{self.name}: {contract}, got {received}")

    def integers(self, key: str) -> np.ndarray:
        array = self.arrays[key]
        if array.dtype.kind not in "iu":
            self.fail(f"{key} must be integers", array.dtype)
        return array.astype(np.int64)

    def points(self) -> tuple[Tensor, np.ndarray]:
        """Return packed points (P, 3), float32 or float64, and offsets (n + 1,)."""
        points = self.arrays["points"]
        packed = "offsets" in self.arrays
        if points.dtype.kind != "f":
            self.fail("points must be floating-point", points.dtype)
        if points.ndim != (2 if packed else 3) or points.shape[-1] != 3:
            self.fail("points must be (P, 3) with offsets, or (n, p, 3) without", points.shape)
        offsets = self.offsets(len(points)) if packed else np.arange(len(points) + 1) * points.shape[1]
        if len(offsets) < 2:
            self.fail("points must contain at least one cloud", "none")
        empty = np.flatnonzero(np.diff(offsets) == 0)
        if len(empty):
            self.fail("each cloud must have at least one point", f"none in {_listed('cloud', empty)}")
        points = points.reshape(-1, 3)
        dtype = np.float64 if points.dtype.itemsize > 4 else np.float32
        out = torch.from_numpy(np.ascontiguousarray(points, dtype))
        if not out.sum().isfinite() and not out.isfinite().all():
            rows = np.flatnonzero(~out.isfinite().all(1).numpy())
            clouds = np.unique(np.searchsorted(offsets, rows, side="right") - 1)
            self.fail("coordinates must be finite", f"NaN or infinity in {_listed('cloud', clouds)}")
        return out, offsets

    def offsets(self, total: int) -> np.ndarray:
        offsets = self.integers("offsets")
        if offsets.ndim != 1 or not len(offsets):
            self.fail("offsets must be (n + 1,)", offsets.shape)
        if offsets[0] != 0 or offsets[-1] != total:
            self.fail(f"offsets must run from 0 to {total}, the number of points", f"{offsets[0]} to {offsets[-1]}")
        falls = np.flatnonzero(np.diff(offsets) < 0)
        if len(falls):
            at = falls[0]
            self.fail("offsets must not decrease", f"{offsets[at]} then {offsets[at + 1]} at entry {at + 1}")
        return offsets

    def label(self, clouds: int, points: int) -> tuple[Tensor, Task]:
        label = self.integers("label")
        if label.shape == (clouds,):
            return torch.from_numpy(label), "classification"
        if label.size != points or label.ndim > 2 or (label.ndim == 2 and len(label) != clouds):
            self.fail(f"label must have one entry per cloud ({clouds},) or per point ({points},)", label.shape)
        return torch.from_numpy(label.reshape(-1)), "segmentation"

    def names(self, key: str, label: Tensor, least: int) -> tuple[str, ...]:
        """Return class names, after checking that the labels are in their range."""
        low, high = int(label.min()), int(label.max())
        if key in self.arrays:
            items = self.arrays[key].reshape(-1).tolist()
            names = tuple(item.decode(errors="replace") if isinstance(item, bytes) else str(item) for item in items)
        else:
            names = tuple(str(number) for number in range(min(high + 1, MAX_CLASSES)))
        if low < least or high >= len(names):
            what = "label" if key == "classes" else "category"
            self.fail(f"{what} must be from {least} to {len(names) - 1} for {len(names)} {key}", f"{low} to {high}")
        return names

    def category(self, clouds: int) -> Tensor | None:
        if "category" not in self.arrays:
            return None
        category = self.integers("category")
        if category.shape != (clouds,):
            self.fail(f"category must be ({clouds},), one per cloud", category.shape)
        return torch.from_numpy(category)

    def val(self, clouds: int) -> Tensor:
        val = self.arrays["val"]
        if val.dtype != bool or val.shape != (clouds,):
            self.fail(f"val must be bool ({clouds},), one per cloud", f"{val.dtype} {val.shape}")
        return torch.from_numpy(val)

    def features(self, total: int) -> dict[str, Tensor]:
        rows = self.arrays["points"].shape[:-1]
        found = {}
        for key, array in self.arrays.items():
            if key in RESERVED or array.shape[: len(rows)] != rows or array.dtype.kind not in "fiub":
                continue
            if array.ndim <= len(rows) + 1:
                array = array.reshape(total, *array.shape[len(rows) :])
                found[key] = torch.from_numpy(
                    array.astype(WIDER.get(array.dtype.name, array.dtype), order="C", copy=False)
                )
        return found


def _load(path: Path) -> dict[str, np.ndarray]:
    return read_h5(path) if path.suffix in (".h5", ".hdf5") else read_npz(path)


def _listed(noun: str, numbers: np.ndarray, most: int = 5) -> str:
    shown = ", ".join(map(str, numbers[:most].tolist()))
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return f"{noun}{'s' if len(numbers) > 1 else ''} {shown}{more}"

"""What the numbers of classes mean in a file, and labels that lie beside it."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from pointgrad.data import Cloud, FileError
from pointgrad.data.datasets.folder import BESIDE, NAMES, point_labels
from pointgrad.data.datasets.layout import lines
from pointgrad.data.datasets.split import SPLITS
from pointgrad.data.files.errors import naming
from pointgrad.data.files.formats import choose
from pointgrad.data.files.las_check import open_checked
from pointgrad.data.files.npy import load_array
from pointgrad.data.files.table import LABELS

LAS = ("las", "laz")
RECORD = ("pointgrad", 1)  # of a LAS file: user and number of the class names that prediction writes
BINARY, CONFIDENCE = BESIDE[0], ".confidence.npy"
NO_CLASS = 0xFFFF  # of the 16 bits that a .label file has for a class

# The American Society for Photogrammetry and Remote Sensing: LAS Specification 1.4, table 17.
ASPRS = (
    "never classified", "unclassified", "ground", "low vegetation", "medium vegetation", "high vegetation", "building",
    "low point (noise)", "model key-point", "water", "rail", "road surface", "overlap", "wire guard", "wire conductor",
    "transmission tower", "wire connector", "bridge deck", "high noise",
)  # fmt: skip


def class_names(path: str | Path, by: str = "label") -> dict[int, str]:
    """The names of the classes in a column of a file, by number; none where nobody wrote them down.

    They come from the file, where it is a LAS that `pointgrad predict` wrote; from `classes.txt` beside the file, where
    line i names class i; and for the classification of a LAS they are those of the standard.

    by: "label" for what `pointgrad.data.read` takes as labels, or the name of a column.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "classes.txt").write_text("road\\ntree\\n")
    ...     class_names(f"{folder}/a.ply"), class_names(f"{folder}/a.ply", "intensity")
    ({0: 'road', 1: 'tree'}, {})
    """
    path = Path(path)
    if by.lower() not in LABELS and not by.lower().endswith("label"):
        return {}
    columns, written = _las(path) if choose(path, None) in LAS else ([], None)
    column = next((name for name in LABELS if name in columns), by) if by == "label" else by
    if column == "classification" and (written is not None or by != "label"):  # the names are those of the other column
        return dict(enumerate(ASPRS))
    names = written if written is not None else _beside(path)
    standard = ASPRS if column == "classification" and columns else ()
    return dict(enumerate(standard if names is None else names))


def with_labels(cloud: Cloud, path: str | Path) -> Cloud:
    """The cloud of a file with the labels that lie beside it (`a.labels.npy`, or `a.label` as SemanticKITTI has and
    `pointgrad predict` writes) and their confidence (`a.confidence.npy`); as it is where there are none."""
    labels, confidence = labels_beside(Path(path), len(cloud))
    return cloud if labels is None else attach(cloud, labels, confidence)


def attach(cloud: Cloud, labels: Tensor, confidence: Tensor | None) -> Cloud:
    """The cloud with other labels, (N,), and their confidence as a column."""
    features = cloud.features if confidence is None else {**cloud.features, "confidence": confidence}
    return replace(cloud, labels=labels, features=features)


def labels_beside(path: Path, count: int) -> tuple[Tensor | None, Tensor | None]:
    """(N,) labels and (N,) confidence of a file of `count` points, where there are any beside it."""
    stem = path.name.partition(".")[0]
    found = next((end for end in reversed(BESIDE) if path.with_name(stem + end).is_file()), None)
    if found is None:
        return None, None
    labels = point_labels(path, None)
    if len(labels) != count:
        raise FileError(f"{path}: expected {count} labels in {stem}{found}, one for each point, got {len(labels)}")
    if found == BINARY:
        labels = labels.masked_fill(labels == NO_CLASS, -1)
    return labels, _confidence(path.with_name(stem + CONFIDENCE), count)


def _beside(path: Path) -> list[str] | None:
    """A data set has the names in its root, of which `train`, `val` and `test` are parts."""
    places = [path.parent, *([path.parent.parent] if path.parent.name in SPLITS else [])]
    found = next((place / NAMES for place in places if (place / NAMES).is_file()), None)
    return None if found is None else lines(found)


def _las(path: Path) -> tuple[list[str], list[str] | None]:
    """The names of the columns in lower case, and those of the classes that prediction wrote."""
    with naming(path, "a LAS file that can be read"), open_checked(path) as reader:
        columns = [name.lower() for name in reader.header.point_format.dimension_names]
        for record in reader.header.vlrs:
            if (record.user_id.rstrip("\0"), record.record_id) == RECORD:
                return columns, record.record_data.decode(errors="replace").rstrip("\0").split("\n")
        return columns, None


def _confidence(path: Path, count: int) -> Tensor | None:
    if not path.is_file():
        return None
    with naming(path, "a confidence for each point"):
        values = load_array(path)
        if values.shape != (count,) or values.dtype.kind != "f":
            raise FileError(f"expected {count} numbers, one for each point, got {values.dtype} {values.shape}")
        return torch.from_numpy(values)

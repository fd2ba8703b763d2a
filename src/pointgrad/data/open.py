"""Opening a dataset from a short description."""

import difflib
from pathlib import Path
from typing import Any

from pointgrad.data.classes import ClassMap
from pointgrad.data.datasets import S3DIS, Arrays, Folder, ModelNet, ScanObjectNN, SemanticKITTI, ShapeNetPart, Shapes
from pointgrad.data.datasets.folder import is_cloud
from pointgrad.data.datasets.split import Task

PUBLISHED: dict[str, Any] = {
    "modelnet": ModelNet,
    "scanobjectnn": ScanObjectNN,
    "shapenetpart": ShapeNetPart,
    "s3dis": S3DIS,
    "semantickitti": SemanticKITTI,
}
BUILT_IN = "shapes"
ARRAYS = (".npz", ".h5", ".hdf5")
FORMS = ("shapes", "a .npz or .h5 file", *(f"{name}:FOLDER" for name in PUBLISHED), "a folder", "a file of points")


def open_dataset(
    spec: str | Path, split: str, task: Task | None = None, *, classes: ClassMap | None = None, **options: Any
) -> Shapes | Arrays | Folder | ModelNet | ScanObjectNN | ShapeNetPart | S3DIS | SemanticKITTI:
    """Open a dataset from a short description.

    Args:
        spec: `shapes`; an `.npz` or `.h5` file (`Arrays`); `modelnet:FOLDER`, `scanobjectnn:FOLDER`,
            `shapenetpart:FOLDER`, `s3dis:FOLDER`, `semantickitti:FOLDER`; or a folder or one file of points (`Folder`).
        split: "train", "val" or "test".
        task: Required task, "classification" or "segmentation". Default: the task of the dataset.
        classes: Classes of the points' labels, for a folder or one file of points; see `Folder`.
        options: Further arguments of the dataset, such as `variant` of `ScanObjectNN`.

    Returns:
        The dataset.

    Raises:
        ValueError: If the description or the task does not fit, or (`FileError`) if files are missing.

    Example:
        >>> len(open_dataset("shapes", "train", size=12))
        12
    """
    text, path = str(spec), Path(spec).expanduser()
    name, colon, root = text.partition(":")
    if classes is not None and not has_codes(text):
        raise ValueError(f"classes can only be mapped for a folder or a file of points, got {text!r}")
    if text == BUILT_IN:
        return Shapes(split, task or "classification", **options)
    if colon and name in PUBLISHED:
        if not root:
            raise ValueError(f"data must be {name}:FOLDER, got {text!r}")
        dataset = PUBLISHED[name](Path(root).expanduser(), split, **options)
        if task not in (None, dataset.task):
            raise ValueError(f"task must be {dataset.task} for {name}, got {task}")
        return dataset
    if path.suffix in ARRAYS:
        return Arrays(path, split, task, **options)
    if has_codes(text):
        return Folder(path, split, task, classes=classes, **options)
    near = difflib.get_close_matches(name.lower(), ["shapes", *PUBLISHED], n=1)
    hint = f"; did you mean {near[0]}{':FOLDER' if near[0] in PUBLISHED else ''}?" if near else ""
    found = "a file of a different format" if path.is_file() else f"{text!r}, which does not exist"
    raise ValueError(f"data must be {', '.join(FORMS[:-1])} or {FORMS[-1]}, got {found}{hint}")


def has_codes(spec: str | Path) -> bool:
    """Whether `open_dataset` returns a `Folder`, whose labels may be codes: for a folder, or one file of points."""
    path = Path(spec).expanduser()
    return str(spec) != BUILT_IN and (path.is_dir() or (path.suffix not in ARRAYS and is_cloud(path)))


def default_split(spec: str | Path, *, trained_on: bool) -> str:
    """Choose the split to evaluate a network on.

    Args:
        spec: The dataset; see `open_dataset`.
        trained_on: Whether the network was trained on this dataset.

    Returns:
        "test" if there is test data, or data that are not divided and were not used for training; else "val".

    Example:
        >>> default_split("shapes", trained_on=True)
        'test'
    """
    name, path = str(spec).partition(":")[0], Path(spec).expanduser()
    if name == BUILT_IN:
        return "test"
    if name == "semantickitti":  # the labels of its test data are not published
        return "val"
    if (path / "train").is_dir():
        return "test" if (path / "test").is_dir() else "val"
    return "val" if trained_on and path.exists() else "test"

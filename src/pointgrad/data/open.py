"""A data set from a short description."""

from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from pointgrad.data.cloud import Cloud
from pointgrad.data.datasets import Arrays, Shapes
from pointgrad.data.datasets.split import Task


def open_dataset(spec: str, split: str, task: Task | None = None, **options: Any) -> Dataset[Cloud]:
    """The data set that a text describes.

    >>> len(open_dataset("shapes", "train", size=12))
    12
    """
    if spec == "shapes":
        return Shapes(split, task or "classification", **options)
    if Path(spec).suffix in (".npz", ".h5"):
        return Arrays(spec, split, task, **options)
    raise ValueError(f"unknown {spec}")

"""LAS and LAZ files of any size: read in chunks, labelled tile by tile, written in chunks, in constant memory."""

import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pointgrad.data import Cloud
from pointgrad.data.files import las
from pointgrad.data.files.errors import FileError, naming
from pointgrad.data.files.table import to_cloud
from pointgrad.predict.labels import Progress, collect, parts
from pointgrad.predict.workspace import publish, workspace

if TYPE_CHECKING:
    from pointgrad.train import Trained

LABEL, CONFIDENCE = "label", "confidence"
RESULT = np.dtype([(LABEL, np.uint16), (CONFIDENCE, np.float32)])
SLAB = 1 << 24  # rows of the result that are mapped into memory at once
CLASSES_VLR = ("pointgrad", 1)  # user and record number of the class names
MOST_VLR = 65_535  # bytes


def chunks(path: Path) -> Iterator[Cloud]:
    for table in las.chunks(path):
        yield to_cloud(table, None, str(path))


def label_las(
    trained: "Trained",
    source: Path,
    target: Path,
    *,
    tile: float | None,
    votes: int,
    max_points: int,
    classification: tuple[int, ...],
    overwrite: bool,
    temp: Path | None,
    progress: Progress,
) -> None:
    with naming(source, "a LAS file that can be read"):
        header = _header(source, trained, classification)
    with workspace(target, temp or target.parent) as work, workspace(target, target.parent) as draft:
        result = work / "labels"
        with open(work / "points", "w+b") as spill, naming(source, "a LAS file that can be read"):
            scene = collect(lambda: chunks(source), spill, trained.prepare.features, progress)
        reserve(result, scene.total * RESULT.itemsize)
        for part in parts(trained, scene, tile, votes, max_points, progress):
            store(result, part.number, part.labels, part.confidence)

"""LAS and LAZ files of any size: read in chunks, labelled tile by tile, written in chunks, in constant memory."""

import copy
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pointgrad.data import Cloud
from pointgrad.data.files import las
from pointgrad.data.files.errors import FileError, naming
from pointgrad.data.files.table import to_cloud
from pointgrad.predict.labels import Part, parts
from pointgrad.predict.scene import Progress, collect
from pointgrad.predict.workspace import publish, workspace, writing

if TYPE_CHECKING:
    from pointgrad.train import Trained

LABEL, CONFIDENCE = "label", "confidence"
ROW = np.dtype([(LABEL, np.uint16), (CONFIDENCE, np.float32)])  # of the results, in the order of the file
NONE = np.iinfo(np.uint16).max
SLAB = 1 << 24  # rows that are mapped into memory at once
READABLE = "a LAS file that can be read"


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
    with naming(source, READABLE):
        header = _header(source, trained, classification)
    with workspace(target, temp or target.parent) as work, workspace(target, target.parent) as drafts:
        results = work / "results"
        with writing(work / "points"), open(work / "points", "w+b") as file:
            scene = collect(lambda: _clouds(source), file, trained.prepare.features, progress)
            with writing(results):
                _reserve(results, scene.total)
            for part in parts(trained, scene, tile, votes, max_points, progress):
                _store(results, part)
        with naming(target, "a LAS file that can be written"):
            _write(source, drafts / target.name, header, results, classification, progress)
            publish(drafts / target.name, target, overwrite)


def _clouds(path: Path) -> Iterator[Cloud]:
    with naming(path, READABLE):
        for table in las.chunks(path):
            yield to_cloud(table, None, str(path))


def _header(source: Path, trained: "Trained", classification: tuple[int, ...]) -> Any:
    """That of the file, with two dimensions more, and the names of the classes."""
    import laspy

    with laspy.open(source) as reader:
        header = copy.deepcopy(reader.header)
    _check_codes(classification, trained.classes, 31 if header.point_format.id < 6 else 255)
    label = np.dtype(np.uint8 if len(trained.classes) < np.iinfo(np.uint8).max else np.uint16)
    wanted = {LABEL: (label, f"class number, {np.iinfo(label).max}: none"), CONFIDENCE: (ROW[CONFIDENCE], "0 to 1")}
    present = {dimension.name: dimension for dimension in header.point_format.dimensions}
    for name, (dtype, _) in wanted.items():
        if name in present and present[name].dtype != dtype:
            raise FileError(f"expected no dimension {name}, or one of type {dtype}, found {present[name].dtype}")
    new = [laspy.ExtraBytesParams(name, dtype, about) for name, (dtype, about) in wanted.items() if name not in present]
    if new:
        header.add_extra_dims(new)
    names = laspy.VLR("pointgrad", 1, "class names", "\n".join(trained.classes).encode()[:65535])
    others = [vlr for vlr in header.vlrs if (vlr.user_id, vlr.record_id) != (names.user_id, names.record_id)]
    header.vlrs.clear()
    header.vlrs.extend([*others, names])
    return header


def _check_codes(classification: tuple[int, ...], classes: tuple[str, ...], most: int) -> None:
    if classification and len(classification) != len(classes):
        raise FileError(
            f"expected one classification code for each of {len(classes)} classes ({', '.join(classes)}), "
            f"got {len(classification)}"
        )
    if wrong := [code for code in classification if not 0 <= code <= most]:
        raise FileError(
            f"expected classification codes from 0 to {most}, which this point format holds, got {wrong[0]}"
        )


def _reserve(path: Path, count: int) -> None:
    """Results without a label. What is on the disk already cannot fail later for want of room."""
    rows = np.zeros(min(count, SLAB), ROW)
    rows[LABEL] = NONE
    with open(path, "wb") as file:
        for first in range(0, count, SLAB):
            file.write(rows[: count - first].tobytes())


def _store(path: Path, part: Part) -> None:
    bounds = np.arange(0, part.number[-1] + SLAB + 1, SLAB)
    total = path.stat().st_size // ROW.itemsize
    for first, (begin, end) in zip(bounds, pairwise(np.searchsorted(part.number, bounds)), strict=False):
        if begin < end:
            shape = (min(SLAB, total - int(first)),)
            rows = np.memmap(path, ROW, "r+", int(first) * ROW.itemsize, shape)
            place = part.number[begin:end] - first
            rows[LABEL][place] = part.labels[begin:end]
            rows[CONFIDENCE][place] = part.confidence[begin:end]


def _write(
    source: Path, target: Path, header: Any, results: Path, classification: tuple[int, ...], progress: Progress
) -> None:
    import laspy

    codes = np.array([*classification, 0], np.uint8)
    done = 0
    with laspy.open(source) as reader:
        evlrs = reader.evlrs
        with laspy.open(target, "w", header=header, do_compress=header.are_points_compressed) as writer:
            for points in reader.chunk_iterator(las.CHUNK):
                rows = np.fromfile(results, ROW, len(points), offset=done * ROW.itemsize)
                out = laspy.ScaleAwarePointRecord.zeros(len(points), header=header)
                for name in points.array.dtype.names:
                    out.array[name] = points.array[name]  # as it is stored, flags and unscaled numbers too
                out[LABEL] = np.minimum(rows[LABEL], np.iinfo(out[LABEL].dtype).max)
                out[CONFIDENCE] = rows[CONFIDENCE]
                if classification:
                    out["classification"] = codes[np.minimum(rows[LABEL], len(classification))]
                writer.write_points(out)
                done += len(points)
                progress("writing", done)
            if evlrs:
                writer.write_evlrs(evlrs)

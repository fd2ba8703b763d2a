"""Prediction for LAS and LAZ files of any size, read and written in chunks, in constant memory."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pointgrad.data import Cloud
from pointgrad.data.classes import count_codes
from pointgrad.data.files import las
from pointgrad.data.files.errors import FileError, naming
from pointgrad.data.files.las_check import open_checked
from pointgrad.data.files.table import to_cloud
from pointgrad.data.files.workspace import disk_errors, publish, workspace
from pointgrad.data.names import VLR_CODES, VLR_NAMES, VLR_USER
from pointgrad.data.tiles import Progress, collect
from pointgrad.ops.scatter import histogram
from pointgrad.predict.labels import Part, Settings, parts
from pointgrad.predict.report import Comparison, Report, attributes, map_of
from pointgrad.train import Trained

ROW = np.dtype([("label", np.uint16), ("confidence", np.float32)])  # a row of results, in the order of the file
NONE = np.iinfo(np.uint16).max
SLAB = 1 << 22  # rows mapped into memory at once
RESERVED = 1 << 20  # empty rows written at once
MAX_VLR = 65_535  # bytes of a variable-length record
READABLE = "a LAS file that can be read"


def label_las(
    trained: Trained,
    source: Path,
    target: Path,
    settings: Settings,
    *,
    category: int | None,
    codes: Sequence[int],
    evaluate: bool,
    overwrite: bool,
    temp: Path | None,
    progress: Progress,
) -> Report:
    """`label_file` for LAS and LAZ."""

    def clouds() -> Iterator[Cloud]:
        with naming(source, READABLE):
            for table in las.chunks(source):
                cloud = replace(to_cloud(table, None, str(source)), category=category)
                if evaluate and cloud.labels is not None:
                    classes.check(count_codes(cloud.labels))
                yield cloud

    with naming(source, READABLE):
        header, names = _header(source, trained, codes)
    classes = map_of(trained, codes)
    with workspace(target, temp or target.parent) as work, workspace(target, target.parent) as drafts:
        results = work / "results"
        with disk_errors(work / "points"), open(work / "points", "w+b") as file:
            scene = collect(clouds, file, trained.prepare.features, evaluate, progress)
            report = Report(target, torch.zeros(len(trained.classes), dtype=torch.long))
            if evaluate:
                compared = Comparison(classes)
                report.metrics, report.ignored = compared.metrics, compared.ignored
            with disk_errors(results):
                _reserve(results, scene.total)
            for part in parts(trained, scene, settings, progress):
                _store(results, part)
                labels = torch.from_numpy(part.labels)
                report.counts += histogram(labels, len(trained.classes))
                if part.truth is not None:
                    compared.add(part.truth, labels)
        with naming(target, "a LAS file that can be written"):
            _write(source, drafts / target.name, header, names, results, _first_codes(trained), codes, progress)
        publish(drafts / target.name, target, overwrite)
    return report


def _header(source: Path, trained: Trained, codes: Sequence[int]) -> tuple[Any, tuple[str, str]]:
    """Return the header of the result, and the names of its two new dimensions."""
    import laspy

    with open_checked(source, evlrs=True) as reader:
        header = copy.deepcopy(reader.header)
    _check_codes(codes, trained.classes, 31 if header.point_format.id < 6 else 255)
    label = np.dtype(np.uint8 if max(_first_codes(trained)) + 1 < np.iinfo(np.uint8).max else np.uint16)
    types = (label, ROW["confidence"])
    about = (f"class, {np.iinfo(label).max}: none", "mean probability of the label")
    present = {dimension.name: dimension.dtype for dimension in header.point_format.dimensions}
    names = attributes(present)
    for name, dtype in zip(names, types, strict=True):
        if name in present and present[name] != dtype:
            raise FileError(f"expected no dimension {name}, or one of type {dtype}, found {present[name]}")
    new = [laspy.ExtraBytesParams(*one) for one in zip(names, types, about, strict=True) if one[0] not in present]
    if new:
        header.add_extra_dims(new)
    if trained.class_map is None:
        record, lines = VLR_NAMES, list(trained.classes)
    else:
        record, lines = VLR_CODES, [f"{code} {name}" for code, name in trained.class_map.known().items()]
    written = laspy.VLR(VLR_USER, record, "class names", "\n".join(lines).encode()[:MAX_VLR])
    kept = [
        vlr for vlr in header.vlrs if (vlr.user_id, vlr.record_id) not in ((VLR_USER, VLR_NAMES), (VLR_USER, VLR_CODES))
    ]
    header.vlrs.clear()
    header.vlrs.extend([*_without_copc(kept), written])
    return header, names


def _first_codes(trained: Trained) -> list[int]:
    """Return the label that is written for each class."""
    return list(range(len(trained.classes))) if trained.class_map is None else [c[0] for c in trained.class_map.codes]


def _without_copc(records: Sequence[Any]) -> list[Any]:
    """Remove the records of a cloud-optimized file, whose index would be wrong because points keep their order."""
    return [record for record in records if record.user_id.rstrip("\0") != "copc"]


def _check_codes(codes: Sequence[int], classes: Sequence[str], most: int) -> None:
    if codes and len(codes) != len(classes):
        raise FileError(
            f"expected one classification code for each of {len(classes)} classes ({', '.join(classes)}), "
            f"got {len(codes)}"
        )
    if wrong := [code for code in codes if not 0 <= code <= most]:
        raise FileError(f"expected classification codes from 0 to {most} for this point format, got {wrong[0]}")


def _reserve(path: Path, count: int) -> None:
    """Write empty results, so that a full disk is detected before prediction starts."""
    rows = np.zeros(min(count, RESERVED), ROW)
    rows["label"] = NONE
    with open(path, "wb") as file:
        for first in range(0, count, RESERVED):
            file.write(rows[: count - first].tobytes())


def _store(path: Path, part: Part) -> None:
    bounds = np.arange(0, part.number[-1] + SLAB + 1, SLAB)
    total = path.stat().st_size // ROW.itemsize
    for first, (begin, end) in zip(bounds, pairwise(np.searchsorted(part.number, bounds)), strict=False):
        if begin < end:
            shape = (min(SLAB, total - int(first)),)
            rows = np.memmap(path, ROW, "r+", int(first) * ROW.itemsize, shape)
            row = part.number[begin:end] - first
            rows["label"][row] = part.labels[begin:end]
            rows["confidence"][row] = part.confidence[begin:end]


def _write(
    source: Path,
    target: Path,
    header: Any,
    names: tuple[str, str],
    results: Path,
    labels: Sequence[int],
    codes: Sequence[int],
    progress: Progress,
) -> None:
    import laspy
    from laspy.vlrs.vlrlist import VLRList

    table = np.array([*codes, 0], np.uint8)
    numbers = np.array([*labels, NONE], np.uint16)
    done = 0
    with (
        open_checked(source, evlrs=True) as reader,
        laspy.open(target, "w", header=header, do_compress=header.are_points_compressed) as writer,
    ):
        for points in reader.chunk_iterator(las.chunk_points(reader.header)):
            rows = np.fromfile(results, ROW, len(points), offset=done * ROW.itemsize)
            out = laspy.ScaleAwarePointRecord.zeros(len(points), header=header)
            for name in points.array.dtype.names:
                out.array[name] = points.array[name]  # stored values, including flags and unscaled coordinates
            label, confidence = names
            out[label] = np.minimum(numbers[np.minimum(rows["label"], len(labels))], np.iinfo(out[label].dtype).max)
            out[confidence] = rows["confidence"]
            if codes:
                out["classification"] = table[np.minimum(rows["label"], len(codes))]
            writer.write_points(out)
            done += len(points)
            progress("writing", done)
        if evlrs := _without_copc(reader.evlrs or ()):
            writer.write_evlrs(VLRList(evlrs))

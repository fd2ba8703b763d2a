"""Prediction for files of any format."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from pointgrad.data import ClassMap, FileError
from pointgrad.data.classes import count_codes
from pointgrad.data.datasets.folder import CODES, NO_CLASS, point_labels
from pointgrad.data.datasets.folder import NAMES as CLASSES
from pointgrad.data.datasets.layout import lines
from pointgrad.data.files.errors import naming
from pointgrad.data.files.formats import FORMATS, LAS, choose
from pointgrad.data.files.mesh import sample
from pointgrad.data.files.read_write import read_table
from pointgrad.data.files.table import Table, to_cloud
from pointgrad.data.files.workspace import exists, publish, publish_bytes, workspace
from pointgrad.data.sidecar import CONFIDENCE
from pointgrad.data.tiles import Progress
from pointgrad.ops.scatter import histogram
from pointgrad.predict.labels import MAX_POINTS, VOTES, Labels, Settings, check_task, label, quiet
from pointgrad.predict.las import label_las
from pointgrad.predict.report import Comparison, Report, attributes, map_of
from pointgrad.train import Trained

SWEEPS = ("bin", "pcd.bin")  # formats that cannot store labels
PATH = str | os.PathLike[str]
REPLACE = "; write to a different folder, or set overwrite"


def output(source: PATH, folder: PATH) -> Path:
    """Return the path of the file that `label_file` writes for a source.

    It has the name of the source, unless the format cannot store labels: for a KITTI or nuScenes sweep, it is a
    `.label` file in the format of SemanticKITTI, next to which a `.confidence.npy` is written; for a mesh (OFF, OBJ,
    STL), it is a PLY file.

    Args:
        source: The file to label.
        folder: The output folder.

    Returns:
        The path of the output file.

    Raises:
        FileError: If the format of the source is unknown.

    Example:
        >>> output("scans/a.laz", "out"), output("scans/b.bin", "out").name, output("c.off", "out").name
        (PosixPath('out/a.laz'), 'b.label', 'c.ply')
    """
    source = Path(source)
    with naming(source, "the name of a point cloud file"):
        name = choose(source, None)
    stem = source.name[: -len(name) - 1]
    if name in SWEEPS:
        return Path(folder, f"{stem}.label")
    if name == "laz":
        return Path(folder, stem.removesuffix(".copc") + source.name[-4:])  # not cloud-optimized
    holds_labels = FORMATS[name].write is not None and FORMATS[name].holds is None
    return Path(folder, source.name if holds_labels else f"{stem}.ply")


def label_file(
    trained: Trained,
    source: PATH,
    target: PATH,
    *,
    tile: float | None = None,
    votes: int = VOTES,
    max_points: int = MAX_POINTS,
    columns: str | Sequence[str] | None = None,
    category: int | None = None,
    classification: Sequence[int] | bool = False,
    evaluate: bool = False,
    overwrite: bool = False,
    temp: PATH | None = None,
    progress: Progress = quiet,
) -> Report:
    """Predict the labels of a file's points, and write a copy of the file with two additional columns.

    The columns are `label`, the code of the class in the training data (the first if several were merged), or the
    class number of a network without codes (-1 for no label; in LAS, the highest number of its type), and
    `confidence`. If the file already has columns with these names, they do not change, and the new ones are
    `predicted_label` and `predicted_confidence`. The class names are written to `classes.txt` next to the result, and
    into a LAS file.

    LAS and LAZ files may have any size: they are read and written in chunks, their points are stored on disk in
    between (about 40 bytes each), and only a few tiles must fit into memory. All dimensions, scales, offsets and header
    records are preserved. Other formats are read into memory. Their coordinates are preserved exactly, but the faces of
    meshes are dropped.

    Args:
        trained: The network.
        source: The file to label.
        target: The result, with the suffix of `output(source, ...)`. It appears when it is complete. A killed process
            leaves a hidden folder next to it, which the next call for the same target removes.
        tile: See `label`.
        votes: See `label`.
        max_points: See `label`.
        columns: Column names of a text, NPY or BIN file; see `pointgrad.data.read`.
        category: Category of the object, for networks that need one.
        classification: For LAS and LAZ, whether to write the labels to the dimension `classification` as well; or one
            code per class to write there.
        evaluate: Whether to compare the result with the labels of the source.
        overwrite: Whether to replace an existing target.
        temp: Folder for temporary files. Default: the folder of the target.
        progress: See `label`.

    Returns:
        Counts of the predicted classes, and metrics if `evaluate`.

    Raises:
        FileError: If a file cannot be read or written, or the target exists and `overwrite` is false.
        ValueError: If the network has a different task, or features or the category are missing.
    """
    source, target = Path(source), Path(target)
    settings = Settings(tile, votes, max_points)
    check_task(trained, "segmentation")
    _check_target(source, target, overwrite)
    name = choose(source, None)
    codes = [each[0] for each in map_of(trained).codes] if classification is True else list(classification or ())
    if name not in LAS and codes:
        raise FileError(f"{source}: expected a LAS or LAZ file to write classification codes to, got {name}")
    if temp is not None and not Path(temp).is_dir():
        raise FileError(f"{temp}: expected a folder for temporary files, found none")
    if evaluate and trained.class_map is None:
        _check_classes(source.parent / CLASSES, trained.classes)
    _write_names(trained, target.parent, overwrite)
    if name in LAS:
        return label_las(
            trained, source, target, settings,
            category=category, codes=codes, evaluate=evaluate, overwrite=overwrite,
            temp=None if temp is None else Path(temp), progress=progress,
        )  # fmt: skip
    with naming(source, "a file that can be read"):
        table = read_table(source, name, columns)
        if FORMATS[name].sampled:
            table = sample(table, FORMATS[name].sampled, torch.Generator().manual_seed(0))
        cloud = to_cloud(table, None, str(source))
    if category is not None:
        cloud.category = category
    compared = None
    if evaluate:
        truth = point_labels(source, cloud)
        map_of(trained).check(count_codes(truth), str(source))
        compared = Comparison(map_of(trained))
    result = label(trained, cloud, tile=tile, votes=votes, max_points=max_points, progress=progress)
    if compared is not None:
        compared.add(truth, result.labels)
    with workspace(target, target.parent) as drafts:
        with naming(target, "a file that can be written"):
            written = _write(drafts, target, name, table, _with_codes(trained, result))
        for made in written:
            publish(made, target.parent / made.name, overwrite)
    return Report(
        target=target,
        counts=histogram(result.labels, len(trained.classes)),
        unlabelled=int((result.labels < 0).sum()),
        ignored=compared.ignored if compared is not None else {},
        metrics=compared.metrics if compared is not None else None,
    )


def _check_target(source: Path, target: Path, overwrite: bool) -> None:
    wanted = output(source, target.parent)
    if wanted.suffix.lower() != target.suffix.lower():
        raise FileError(f"{target}: expected a name that ends in {wanted.suffix} for the labels of {source}")
    if target.name.lower().endswith(".copc.laz"):
        raise FileError(f"{target}: expected another name: cloud-optimized files cannot be written; use .laz")
    if target.exists():
        if source.exists() and os.path.samefile(source, target):
            raise FileError(f"{target}: expected a target other than the source, got the source itself")
        if not overwrite:
            raise exists(target)
    with naming(target.parent, "a folder to write to"):
        target.parent.mkdir(parents=True, exist_ok=True)


def _with_codes(trained: Trained, result: Labels) -> Labels:
    return result if trained.class_map is None else result._replace(labels=trained.class_map.restore(result.labels))


def _write_names(trained: Trained, folder: Path, overwrite: bool) -> None:
    """Write the class names next to the results: with codes to classes.yaml, else to classes.txt."""
    classes = trained.class_map
    if classes is None or classes.plain:
        _write_classes(folder / CLASSES, trained.classes, overwrite)
        return
    path = folder / CODES
    if overwrite or not path.exists():
        publish_bytes(path, classes.yaml().encode(), True)
    if ClassMap.read(path).known() != classes.known():
        found = " ".join(ClassMap.read(path).texts())
        raise FileError(
            f"{path}: expected the classes of the network, {' '.join(classes.texts())}, found {found}{REPLACE}"
        )


def _write_classes(path: Path, classes: Sequence[str], overwrite: bool) -> None:
    if overwrite or not path.exists():
        publish_bytes(path, "".join(f"{name}\n" for name in classes).encode(), True)
    _check_classes(path, classes, REPLACE)


def _check_classes(path: Path, classes: Sequence[str], hint: str = "") -> None:
    """Check that existing class names are those of the network, because labels are numbers of these classes."""
    if path.exists() and lines(path) != list(classes):
        raise FileError(
            f"{path}: expected the classes of the network, {', '.join(classes)}, found {', '.join(lines(path))}{hint}"
        )


def _write(folder: Path, target: Path, name: str, table: Table, result: Labels) -> list[Path]:
    """Write the result into a folder. Returns the files; the last one must be published last."""
    labels, confidence = result.labels.numpy().astype(np.int32), result.confidence.numpy()
    made = folder / target.name
    if name in SWEEPS:
        np.where(labels < 0, NO_CLASS, labels).astype("<u4").tofile(made)
        sidecar = made.with_suffix(CONFIDENCE)
        np.save(sidecar, confidence)
        return [sidecar, made]
    columns = dict(zip(attributes(table.columns), (labels, confidence), strict=True))
    format = FORMATS[choose(target, None)]
    assert format.write is not None
    encoding = [kind for kind in format.encodings if table.kind.endswith(kind)] or format.encodings[:1]
    with open(made, "wb") as stream:
        format.write(stream, replace(table, columns={**table.columns, **columns}), *encoding)
    return [made]

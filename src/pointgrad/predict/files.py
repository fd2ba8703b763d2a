"""Files of any format, labelled."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from pointgrad.data import FileError
from pointgrad.data.datasets.folder import NAMES as CLASSES
from pointgrad.data.datasets.folder import point_labels
from pointgrad.data.datasets.layout import lines
from pointgrad.data.files.door import read_table
from pointgrad.data.files.errors import naming
from pointgrad.data.files.formats import FORMATS, choose
from pointgrad.data.files.mesh import sample
from pointgrad.data.files.table import Table, to_cloud
from pointgrad.data.files.workspace import exists, publish, publish_bytes, workspace
from pointgrad.ops.scatter import histogram
from pointgrad.predict.labels import MAX_POINTS, VOTES, Labels, Settings, check_task, label, quiet
from pointgrad.predict.las import label_las
from pointgrad.predict.report import Comparison, Report, attributes, ids_of
from pointgrad.predict.scene import Progress
from pointgrad.train import Trained

SWEEPS = ("bin", "pcd.bin")  # have no room for a label
SWEEP_NONE = 0xFFFF  # the label of a point without one, in the 16 bits that SemanticKITTI has for it
PATH = str | os.PathLike[str]


def output(source: PATH, folder: PATH) -> Path:
    """The file that `label_file` writes for a source into a folder: of the same name, except where the format has no
    room for labels: a KITTI or nuScenes sweep gets a `.label` file as SemanticKITTI has, and a `.confidence.npy`
    beside it; a mesh (OFF, OBJ, STL) becomes a PLY file.

    >>> output("scans/a.laz", "out"), output("scans/b.bin", "out").name, output("c.off", "out").name
    (PosixPath('out/a.laz'), 'b.label', 'c.ply')
    """
    source = Path(source)
    with naming(source, "the name of a file of points"):
        name = choose(source, None)
    stem = source.name[: -len(name) - 1]
    if name in SWEEPS:
        return Path(folder, f"{stem}.label")
    if name == "laz":
        return Path(folder, stem.removesuffix(".copc") + source.name[-4:])  # points keep their order: a plain LAZ
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
    classification: Sequence[int] = (),
    evaluate: bool = False,
    overwrite: bool = False,
    temp: PATH | None = None,
    progress: Progress = quiet,
) -> Report:
    """Labels the points of a file, and writes a file like it with two columns more.

    They are `label`, the number of the class (-1 for none, in LAS the highest number of its type), and `confidence`. If
    the file has columns of these names, those stay as they are, and the new ones are `predicted_label` and
    `predicted_confidence`. The names of the classes are written into `classes.txt` beside it, and into a LAS file.

    LAS and LAZ may be of any size: they are read and written in chunks, and their points kept on disk in between, about
    40 bytes each; only what lies within a few tiles of each other must fit into memory. All dimensions, scales, offsets
    and records of the header stay as they are. Other formats are read into memory; their coordinates stay the same bit
    for bit, faces of meshes are left out.

    target: named as `output` says, in any folder. It appears when it is complete. A killed run leaves a hidden folder
        beside it, which the next run for the same target removes.
    tile, votes, max_points, progress: see `label`.
    columns: names of the columns of a text, NPY or BIN file; see `pointgrad.data.read`.
    category: what the object is, for networks with categories.
    classification: for LAS and LAZ, a code per class, which is also written to the dimension `classification`; the
        labels that the file comes with are then expected to be such codes.
    evaluate: compares with the labels that the file comes with.
    overwrite: replaces a target that is already there.
    temp: folder for what is kept on disk in between; without it, that of the target.
    """
    source, target = Path(source), Path(target)
    settings = Settings(tile, votes, max_points)
    check_task(trained, "segmentation")
    _check_target(source, target, overwrite)
    name = choose(source, None)
    if name not in ("las", "laz") and classification:
        raise FileError(f"{source}: expected a LAS or LAZ file to write classification codes to, got {name}")
    if temp is not None and not Path(temp).is_dir():
        raise FileError(f"{temp}: expected a folder for temporary files, found none")
    if evaluate:
        _check_classes(source.parent / CLASSES, trained.classes)
    _write_classes(target.parent / CLASSES, trained.classes, overwrite)
    if name in ("las", "laz"):
        return label_las(
            trained, source, target, settings,
            category=category, codes=classification, evaluate=evaluate, overwrite=overwrite,
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
        ids = ids_of(trained.classes, ())
        compared = Comparison(source, trained.classes, ids, truth.unique().tolist())
    result = label(trained, cloud, tile=tile, votes=votes, max_points=max_points, progress=progress)
    if compared is not None:
        compared.add(truth, result.labels)
    with workspace(target, target.parent) as drafts:
        with naming(target, "a file that can be written"):
            written = _write(drafts, target, name, table, result)
        for made in written:
            publish(made, target.parent / made.name, overwrite)
    return Report(
        target=target,
        counts=histogram(result.labels, len(trained.classes)),
        unlabelled=int((result.labels < 0).sum()),
        metrics=compared.metrics if compared is not None else None,
    )


def _check_target(source: Path, target: Path, overwrite: bool) -> None:
    wanted = output(source, target.parent)
    if wanted.suffix.lower() != target.suffix.lower():
        raise FileError(f"{target}: expected a name that ends in {wanted.suffix} for the labels of {source}")
    if target.exists():
        if source.exists() and os.path.samefile(source, target):
            raise FileError(f"{target}: expected another file for the result, got the source itself")
        if not overwrite:
            raise exists(target)
    with naming(target.parent, "a folder to write to"):
        target.parent.mkdir(parents=True, exist_ok=True)


def _write_classes(path: Path, classes: Sequence[str], overwrite: bool) -> None:
    if overwrite or not path.exists():
        publish_bytes(path, "".join(f"{name}\n" for name in classes).encode(), True)
    _check_classes(path, classes)


def _check_classes(path: Path, classes: Sequence[str]) -> None:
    """The names beside labels, if there are, must be those of the network, or numbers would mean different things."""
    if path.exists() and lines(path) != list(classes):
        raise FileError(
            f"{path}: expected the classes of the network, {', '.join(classes)}, found {', '.join(lines(path))}"
        )


def _write(folder: Path, target: Path, name: str, table: Table, result: Labels) -> list[Path]:
    """Writes the result into a folder; the files, the one that says that all are there last."""
    labels, confidence = result.labels.numpy().astype(np.int32), result.confidence.numpy()
    made = folder / target.name
    if name in SWEEPS:
        np.where(labels < 0, SWEEP_NONE, labels).astype("<u4").tofile(made)
        beside = made.with_suffix(".confidence.npy")
        np.save(beside, confidence)
        return [beside, made]
    columns = dict(zip(attributes(table.columns), (labels, confidence), strict=True))
    format = FORMATS[choose(target, None)]
    assert format.write is not None
    encoding = [kind for kind in format.encodings if table.kind.endswith(kind)] or format.encodings[:1]
    with open(made, "wb") as stream:
        format.write(stream, replace(table, columns={**table.columns, **columns}), *encoding)
    return [made]

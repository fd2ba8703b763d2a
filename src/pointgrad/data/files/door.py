"""`read` and `write`: any format into a `Cloud` and back."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pointgrad.data.cloud import Cloud
from pointgrad.writing import replacing

from .errors import FileError, naming
from .formats import FORMATS, Format, choose
from .memory import check_file
from .mesh import sample as sample_points
from .table import Table, survives, to_cloud, to_table


def read(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    columns: str | Sequence[str] | None = None,
    labels: str | None = None,
    sample: int = 0,
    generator: torch.Generator | None = None,
) -> Cloud:
    """Reads a point cloud, or a mesh as one.

    path: a file; its suffix says the format, unless `format` does: one of `FORMATS`.
    columns: names of the columns of a file that has none of its own (text, NPY, BIN), as a list or with blanks between:
        "x y z class intensity". Without: the header of the text, or x y z column4 column5 ...
    labels: the column that holds the class of each point. Without: the first of label, labels, class, classification,
        scalar_label and the like whose numbers are whole. NaN means none: -1.
    sample: that many points at random: of a mesh uniform over the area of its faces (each with the columns of the
        nearest corner), else of the points, none twice. 0: the vertices as they are; an STL, which has only triangles,
        gives 10,000 samples.
    generator: where the random numbers come from; torch's default without.
    returns: `Cloud`. Points are float32 if the file stores float32, else float64; where coordinates are large they are
        relative to a whole `origin`, and nothing rounds. Every other column is a feature of its own dtype, only that
        unsigned 16 and 32 bits become int32 and int64, and float16 float32: torch computes with those.

    Raises `FileError`, one line that begins with the path, for anything that is wrong with the file.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write(f"{folder}/a.npz", Cloud(torch.eye(3).double() + 5e6, {"height": torch.arange(3)}))
    ...     cloud = read(f"{folder}/a.npz")
    >>> cloud.origin.tolist(), cloud.points[0].tolist(), cloud.features["height"].tolist()
    ([5000000.0, 5000000.0, 5000000.0], [1.0, 0.0, 0.0], [0, 1, 2])
    """
    path = Path(path)
    with naming(path, "a file that can be read"), np.errstate(all="ignore"):  # of numbers that are none
        chosen = choose(path, format)
        table = read_table(path, chosen, columns)
        if sample < 0:
            raise FileError(f"expected a number of points to sample, got {sample}")
        if sample := sample or FORMATS[chosen].sampled:
            table = sample_points(table, sample, generator)
        return to_cloud(table, labels, str(path))


def read_table(path: Path, format: str, columns: str | Sequence[str] | None) -> Table:
    """What a file holds, as it stands there."""
    check_file(path)
    chosen = FORMATS[format]
    if columns is not None and not chosen.unnamed:
        raise FileError(f"expected no names of columns for {format}, which has its own, got {columns!r}")
    names = columns.replace(",", " ").split() if isinstance(columns, str) else columns
    table = chosen.read(path, names) if chosen.unnamed else chosen.read(path)
    if not len(table):
        raise FileError("expected at least one point, found none")
    return table


def write(
    path: str | os.PathLike[str],
    cloud: Cloud,
    *,
    format: str | None = None,
    encoding: str | None = None,
    like: str | os.PathLike[str] | None = None,
    lossy: bool = False,
) -> None:
    """Writes a cloud in world coordinates, with its features, and its labels as `label` (LAS: classification).

    format: as for `read`.
    encoding: of PLY: binary_little_endian (default), binary_big_endian or ascii; of PCD: binary_compressed (default),
        binary or ascii.
    like: a LAS or LAZ whose version, point format, scale, offset and coordinate system a new LAS or LAZ takes over.
    lossy: leave out what the format cannot hold instead of refusing: OFF and OBJ hold only coordinates, BIN only
        float32 and intensity.

    Numbers come back as they were. Text has the fewest digits that read back as the same number. LAS gets the scale and
    offset that give back every coordinate of a LAS or of decimal text; coordinates on no decimal grid are rounded to
    the finest that fits. Where a format has only single numbers, a feature (N, c) becomes name_0 ... name_{c-1}. The
    label of the whole cloud is kept by NPZ and HDF5 only. STL cannot be written.

    The file appears whole or not at all: if anything fails, what was there before is still there. A link of that name
    is replaced, what it points to stays.

    >>> write("a.obj", Cloud(torch.zeros(1, 3), {"height": torch.zeros(1)}))
    Traceback (most recent call last):
        ...
    pointgrad.data.files.errors.FileError: a.obj: expected only x, y, z for obj, got height; lossy=True leaves it out
    """
    path = Path(path)
    with naming(path, "a file that can be written"):
        name = choose(path, format)
        chosen = FORMATS[name]
        if chosen.write is None:
            raise FileError(f"expected a format that can hold points, got {name}")
        if encoding is not None and encoding not in chosen.encodings:
            raise FileError(f"expected the encoding {' or '.join(chosen.encodings) or None}, got {encoding!r}")
        if like is not None and name not in ("las", "laz"):
            raise FileError(f"expected no file to be like, except for las and laz, got {like}")
        if not len(cloud):
            raise FileError("expected at least one point to write, got none")
        table = to_table(cloud)
        _limit(table, name, chosen, lossy)
        options: list[Any] = [encoding or chosen.encodings[0]] if chosen.encodings else []
        with replacing(path) as stream:
            chosen.write(stream, table, *options, **({} if like is None else {"like": like}))


def _limit(table: Table, name: str, chosen: Format, lossy: bool) -> None:
    """Takes from the table what the format cannot hold, if that is allowed."""
    if chosen.holds is not None:
        lost = [column for column in table.columns if column not in chosen.holds]
        if lost and not lossy:
            known, found = ", ".join(["x", "y", "z", *chosen.holds]), ", ".join(lost)
            raise FileError(f"expected only {known} for {name}, got {found}; lossy=True leaves it out")
        for column in lost:
            del table.columns[column]
    if chosen.single and not lossy:
        for column, values in {"coordinates": table.xyz, **table.columns}.items():
            if not survives(values, np.float32):
                raise FileError(
                    f"expected {column} that float32 can hold for {name}, got more digits; lossy=True rounds"
                )

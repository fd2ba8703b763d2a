"""`read` and `write` for all formats."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pointgrad.data.cloud import Cloud
from pointgrad.writing import replacing

from .errors import FileError, naming
from .formats import FORMATS, LAS, Format, choose
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
    """Read a point cloud or a mesh.

    Args:
        path: The file.
        format: One of `FORMATS`. Default: the suffix of the file.
        columns: Column names for formats that do not store them (text, NPY, BIN), as a list or separated by spaces:
            "x y z class intensity". Default: the header of a text file, or x y z column4 column5 ...
        labels: The column with the class of each point. Default: the first of label, labels, class, classification,
            scalar_label and similar names whose values are integers. NaN becomes -1, which means no label.
        sample: Number of points to draw at random. On a mesh they are uniform over its surface, and each has the
            columns of the nearest corner of its face; without faces they are a random subset. 0: all vertices, or
            10,000 samples of an STL file, which has only triangles.
        generator: Source of random numbers. Default: torch's global generator.

    Returns:
        The cloud. Points (N, 3) are float32 if the file stores float32, else float64. Large coordinates are relative to
        an integer `origin`, without rounding. Every other column is a feature in its own dtype, except that uint16,
        uint32 and float16 become int32, int64 and float32, which torch fully supports.

    Raises:
        FileError: If the file cannot be read. The message is one line that begins with the path.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     write(f"{folder}/a.npz", Cloud(torch.eye(3).double() + 5e6, {"height": torch.arange(3)}))
        ...     cloud = read(f"{folder}/a.npz")
        >>> cloud.origin.tolist(), cloud.points[0].tolist(), cloud.features["height"].tolist()
        ([5000000.0, 5000000.0, 5000000.0], [1.0, 0.0, 0.0], [0, 1, 2])
    """
    path = Path(path)
    with naming(path, "a file that can be read"), np.errstate(all="ignore"):  # coordinates may be NaN or infinite
        chosen = choose(path, format)
        table = read_table(path, chosen, columns)
        if sample < 0:
            raise FileError(f"expected sample to be at least 0, got {sample}")
        if sample := sample or FORMATS[chosen].sampled:
            table = sample_points(table, sample, generator)
        return to_cloud(table, labels, str(path))


def read_table(path: Path, format: str, columns: str | Sequence[str] | None) -> Table:
    """Read the columns of a file in their stored form."""
    check_file(path)
    chosen = FORMATS[format]
    if columns is not None and not chosen.unnamed:
        raise FileError(f"expected no column names for {format}, which stores them, got {columns!r}")
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
    """Write a cloud in world coordinates, with its features, and its labels as `label` (LAS: classification).

    Reading the file restores every number. Text has the fewest digits for which this holds. The scale and offset of a
    LAS file are chosen so that coordinates from a LAS file or from decimal text are restored; other coordinates are
    rounded to the finest grid that fits. In formats without vector columns, a feature (N, c) becomes name_0 ...
    name_{c-1}. Only NPZ and HDF5 store the label of the whole cloud. STL cannot be written.

    The write is atomic: if it fails, an existing file stays unchanged. A symbolic link is replaced, not followed.

    Args:
        path: The file.
        cloud: The points with their features and labels; at least one point.
        format: One of `FORMATS`. Default: the suffix of the file.
        encoding: For PLY: binary_little_endian (default), binary_big_endian or ascii. For PCD: binary_compressed
            (default), binary or ascii.
        like: For LAS and LAZ: a file whose version, point format, scale, offset and coordinate system are used.
        lossy: Drop what the format cannot store instead of raising an error: OFF and OBJ store only coordinates, BIN
            only coordinates and intensity in float32.

    Raises:
        FileError: If the file cannot be written, or the format cannot store the cloud.

    Example:
        >>> write("a.obj", Cloud(torch.zeros(1, 3), {"height": torch.zeros(1)}))
        Traceback (most recent call last):
            ...
        pointgrad.data.files.errors.FileError: a.obj: expected only x, y, z for obj, got height (dropped if lossy)
    """
    path = Path(path)
    with naming(path, "a file that can be written"):
        name = choose(path, format)
        chosen = FORMATS[name]
        if chosen.write is None:
            raise FileError(f"expected a format that can be written, got {name}")
        if path.name.lower().endswith(".copc.laz"):
            raise FileError("expected another name: cloud-optimized files cannot be written; use .laz")
        if encoding is not None and encoding not in chosen.encodings:
            allowed = f"the encoding {' or '.join(chosen.encodings)}" if chosen.encodings else f"no encoding for {name}"
            raise FileError(f"expected {allowed}, got {encoding!r}")
        if like is not None and name not in LAS:
            raise FileError(f"expected like only for las and laz, got {like}")
        if not len(cloud):
            raise FileError("expected at least one point to write, got none")
        table = to_table(cloud)
        _limit(table, name, chosen, lossy)
        options: list[Any] = [encoding or chosen.encodings[0]] if chosen.encodings else []
        with replacing(path) as stream:
            chosen.write(stream, table, *options, **({} if like is None else {"like": like}))


def _limit(table: Table, name: str, chosen: Format, lossy: bool) -> None:
    """Remove columns that the format cannot store, or raise an error unless `lossy`."""
    if chosen.holds is not None:
        lost = [column for column in table.columns if column not in chosen.holds]
        if lost and not lossy:
            known, found = ", ".join(["x", "y", "z", *chosen.holds]), ", ".join(lost)
            raise FileError(f"expected only {known} for {name}, got {found} (dropped if lossy)")
        for column in lost:
            del table.columns[column]
    if chosen.single and not lossy:
        for column, values in {"coordinates": table.xyz, **table.columns}.items():
            if not survives(values, np.float32):
                raise FileError(
                    f"expected {column} that float32 can represent for {name}, got more digits (rounded if lossy)"
                )

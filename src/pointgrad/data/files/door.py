"""`read` and `write`: any format into a `Cloud` and back."""

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import torch

from pointgrad.data.cloud import Cloud

from .errors import FileError, naming
from .formats import choose
from .mesh import sample as sample_points
from .table import Table, to_cloud, to_table


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

    path: a file; its suffix says the format, unless `format` does.
    columns: names of the columns of a file that has none of its own (text, NPY, BIN), as a list or with blanks between:
        "x y z class intensity". Without: the file's header, or x y z column4 column5 ...
    labels: the column that holds the class of each point. Without: the first of label, labels, class, classification and
        scalar_label that is there and whole. NaN means none: -1.
    sample: that many points at random: of a mesh uniform over the area of its faces (each with the columns of the nearest
        corner), else of the points, none twice. 0: the vertices as they are; of an STL, which has triangles only, 10,000.
    generator: where the random numbers come from; torch's default without.
    returns: `Cloud`. Points are float32 if the file stores float32, else float64; where coordinates are large they are
        relative to a whole `origin`, and nothing rounds. Every other column is a feature of its own dtype (unsigned 16-bit
        as int32, unsigned 32-bit as int64, with which torch computes; float16 as float32).

    Raises `FileError`, one line that begins with the path, for anything that is wrong with the file.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write(f"{folder}/a.ply", Cloud(torch.eye(3, dtype=torch.float64) + 5e6, {"height": torch.arange(3)}))
    ...     cloud = read(f"{folder}/a.ply")
    >>> cloud.origin.tolist(), cloud.points[0].tolist(), cloud.features["height"].tolist()
    ([5000000.0, 5000000.0, 5000000.0], [1.0, 0.0, 0.0], [0, 1, 2])
    """
    path = Path(path)
    with naming(path, "a file that can be read"):
        table = read_table(path, format, columns)
        if sample:
            table = sample_points(table, sample, generator)
        return to_cloud(table, labels, str(path))


def read_table(path: Path, format: str | None, columns: str | Sequence[str] | None) -> Table:
    """What a file holds, as it stands there."""
    chosen = choose(path, format)
    _check_file(path)
    if columns is not None and not chosen.unnamed:
        raise FileError(f"expected no columns for a format that names its own, got {columns!r}")
    names = tuple(columns.replace(",", " ").split()) if isinstance(columns, str) else columns
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
    lossy: bool = False,
) -> None:
    """Writes a cloud in world coordinates, with its features and, as `label` (LAS: classification), its labels.

    format: as for `read`.
    encoding: of PLY: binary_little_endian (default), binary_big_endian, ascii.
    lossy: leave out what the format cannot hold (OFF, OBJ: everything but coordinates), instead of refusing.

    Numbers come back as they were: text has the fewest digits that read back as the same number; LAS chooses scale and
    offset so that the integers of a file read before are the same, and coordinates that lie on no decimal grid are rounded
    to the finest that fits. Where a format has only single numbers, a feature (N, c) becomes name_0 ... name_{c-1}. The
    label of the whole cloud is kept by NPZ and HDF5 only.

    The file appears whole or not at all: what was there before stays if anything fails.

    >>> write("a.obj", Cloud(torch.zeros(1, 3), {"height": torch.zeros(1)}))
    Traceback (most recent call last):
    ...
    pointgrad.data.files.errors.FileError: a.obj: expected only points, ...
    """
    path = Path(path)
    with naming(path, "a file that can be written"):
        chosen = choose(path, format)
        if chosen.write is None:
            raise FileError("expected a format for points, got one for triangles only")
        if encoding is not None and encoding not in chosen.encodings:
            raise FileError(f"expected the encoding {' or '.join(chosen.encodings) or 'None'}, got {encoding!r}")
        if not len(cloud):
            raise FileError("expected at least one point to write, got none")
        table = to_table(cloud)
        if table.columns and not chosen.wide and not lossy:
            raise FileError(f"expected only points, which are all that this format holds, got {', '.join(table.columns)} "
                            f"too; lossy=True leaves them out")  # fmt: skip
        options = [encoding or chosen.encodings[0]] if chosen.encodings else []
        with _atomic(path) as stream:
            chosen.write(stream, table, *options)


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise FileError("expected a file, found a folder")
    if not os.stat(path).st_size:
        raise FileError("expected a file with points, found an empty one")


@contextmanager
def _atomic(path: Path) -> Iterator[IO[bytes]]:
    """A stream whose content takes the file's place only when all of it is on the disk."""
    target = Path(os.path.realpath(path))  # a link stays one
    if target.exists() and not target.is_file():
        raise FileError("expected the name of a file, found a folder or a device")
    draft = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        with open(draft, "x+b") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():
            draft.chmod(target.stat().st_mode)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)

"""LAS and LAZ, through laspy: every dimension of the point format and extra bytes; coordinates on their grid."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from .errors import FileError
from .table import Array, Table, scalars

CHUNK = 1_000_000  # points read at once
INT32 = np.iinfo(np.int32)
# Powers of ten tried as scale: first those of real files, so that their integers come back.
DIGITS = (2, 3, 4, 5, 6, 7, 8, 9, 1, 0, -1, -2, -3)


def read(path: Path) -> Table:
    parts = list(chunks(path))
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    return Table(np.concatenate([part.xyz for part in parts]), columns, kind=parts[0].kind)


def chunks(path: Path) -> Iterator[Table]:
    """The points of the file, at most `CHUNK` at a time, each with all columns."""
    import laspy

    with laspy.open(path) as reader:
        header = reader.header
        packed = ", compressed" if header.are_points_compressed else ""
        kind = f"LAS {header.version}, point format {header.point_format.id}{packed}"
        _check_length(path, header)
        done = 0
        for points in reader.chunk_iterator(CHUNK):
            done += len(points)
            xyz = np.stack([np.asarray(points[axis], dtype=np.float64) for axis in "xyz"], axis=1)
            names = [name for name in points.point_format.dimension_names if name not in ("X", "Y", "Z")]
            yield Table(xyz, {name: np.array(points[name]) for name in names}, kind=kind)
    if done != header.point_count:
        raise FileError(f"expected {header.point_count} points, the file ends after {done}")
    if not done:
        yield Table(np.zeros((0, 3)), {}, kind=kind)


def write(stream: IO[bytes], table: Table, *, packed: bool) -> None:
    import laspy

    if not np.isfinite(table.xyz).all():  # type: ignore[arg-type]
        raise FileError("expected finite coordinates, which are all that LAS can store, got NaN or infinity")
    columns = scalars(table)
    labels = columns.pop("label", None)
    if labels is not None:
        usual = "classification" not in columns and labels.min() >= 0 and labels.max() <= 255
        columns["classification" if usual else "label"] = labels
    header = laspy.LasHeader(point_format=_point_format(columns), version="1.4")
    grids = [_grid(table.xyz[:, axis].astype(np.float64)) for axis in range(3)]
    header.scales, header.offsets = np.array([g[0] for g in grids]), np.array([g[1] for g in grids])
    standard = set(header.point_format.dimension_names)
    for name, column in columns.items():
        if name not in standard:
            header.add_extra_dim(laspy.ExtraBytesParams(name=name, type=_extra_type(column)))
    las = laspy.LasData(header)
    las.points = laspy.ScaleAwarePointRecord.zeros(len(table), header=header)
    for axis, (name, grid) in enumerate(zip("XYZ", grids, strict=True)):
        las[name] = _steps(table.xyz[:, axis].astype(np.float64), *grid)
    for name, column in columns.items():
        las[name] = column
    las.write(stream, do_compress=packed)


def _check_length(path: Path, header: Any) -> None:
    if header.are_points_compressed:
        return  # the decoder finds the end
    room = path.stat().st_size - header.offset_to_point_data
    need = header.point_count * header.point_format.size
    if room < need:
        raise FileError(f"expected {header.point_count} points, the file ends after {room // header.point_format.size}")


def _point_format(columns: dict[str, Array]) -> int:
    colours = {"red", "green", "blue"} <= columns.keys()
    if colours:
        return 8 if "nir" in columns else 7
    return 6


def _extra_type(column: Array) -> str:
    return "uint8" if column.dtype == bool else column.dtype.name


def _grid(axis: NDArray[np.float64]) -> tuple[float, float]:
    """Scale and offset of one axis: those that give every coordinate back bit by bit; else within rounding; else the finest
    that 32-bit integers can span."""
    origin = float(np.floor(axis.min()))
    fitting = [
        (10.0**-digits, offset)
        for digits in DIGITS
        for offset in (0.0, origin)
        if max(abs(axis.min() - offset), abs(axis.max() - offset)) * 10.0**digits < INT32.max
    ]
    if not fitting:
        raise FileError(f"expected coordinates within 1e12 of each other, got {axis.min():g} to {axis.max():g}")
    back = [_steps(axis, *grid) * grid[0] + grid[1] for grid in fitting]
    for tolerance in (0.0, 2 * np.spacing(np.abs(axis).max())):
        for grid, again in zip(fitting, back, strict=True):
            if np.abs(again - axis).max() <= tolerance:
                return grid
    return min(fitting)


def _steps(axis: NDArray[np.float64], scale: float, offset: float) -> NDArray[np.float64]:
    return np.rint((axis - offset) / scale)

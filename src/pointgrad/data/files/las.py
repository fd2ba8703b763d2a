"""LAS and LAZ, through laspy: all dimensions of the point format and extra bytes."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from .errors import FileError, naming
from .las_check import open_checked
from .memory import check_fits
from .table import Array, Table, peak_bytes, scalars, survives

CHUNK = 1_000_000  # points read at once
COPIES = 4  # that the decoder and laspy make of the points read at once
CHUNK_BYTES = 64 << 20  # and their bytes in the file
INT32 = np.iinfo(np.int32)
# Decimal digits tried for the scale. Common ones come first, so that the integers of real files are restored.
DIGITS = (2, 3, 4, 5, 6, 7, 8, 9, 1, 0, -1, -2, -3)
POINT_FORMATS = (0, 1, 2, 3, 6, 7, 8)  # from simple to rich, without those that store waveforms
UINT16 = np.iinfo(np.uint16)
KEPT = "original_"  # prefix of columns that do not fit into the standard dimension of the same name


def read(path: Path) -> Table:
    with open_checked(path) as reader:
        dimensions = [each for each in reader.header.point_format if each.name not in ("X", "Y", "Z")]
        count, point = reader.header.point_count, 24 + sum(map(_width, dimensions))
    decoder = COPIES * min(count * point, CHUNK_BYTES)
    check_fits(decoder + peak_bytes(count, count * point, count * point), "points")
    parts = list(chunks(path))
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    return Table(np.concatenate([part.xyz for part in parts]), columns, kind=parts[0].kind)


def chunks(path: Path) -> Iterator[Table]:
    """Read the points with all columns, at most `CHUNK` at a time."""
    with open_checked(path) as reader:
        header = reader.header
        packed = ", compressed" if header.are_points_compressed else ""
        kind = f"LAS {header.version}, point format {header.point_format.id}{packed}"
        names = [name for name in header.point_format.dimension_names if name not in ("X", "Y", "Z")]
        done = 0
        while True:
            points = reader.read_points(chunk_points(header))
            if done and not len(points):
                break
            done += len(points)
            xyz = np.stack([np.asarray(points[axis], dtype=np.float64) for axis in "xyz"], axis=1)
            columns = {name: np.array(points[name]) for name in names}
            kept = [name for name in names if name.startswith(KEPT) and name.removeprefix(KEPT) in names]
            columns |= {name.removeprefix(KEPT): columns.pop(name) for name in kept}
            yield Table(xyz, columns, kind=kind)
            if not len(points):
                break
    if done != header.point_count:
        raise FileError(f"expected {header.point_count} points, but the file ends after {done}")


def _width(dimension: Any) -> int:
    """Return the bytes of a dimension in a table: scaled ones become float64."""
    return int(8 * dimension.num_elements if dimension.is_scaled else -(-dimension.num_bits // 8))


def chunk_points(header: Any) -> int:
    """Return the number of points to read at once."""
    return int(min(CHUNK, max(1, CHUNK_BYTES // header.point_format.size)))


def write(stream: IO[bytes], table: Table, *, packed: bool, like: str | os.PathLike[str] | None = None) -> None:
    import laspy

    if not np.isfinite(table.xyz).all():
        raise FileError("expected finite coordinates, because LAS cannot store others, got NaN or infinity")
    xyz = table.xyz.astype(np.float64)
    columns = scalars(table)
    labels = columns.pop("label", None)
    if labels is not None:
        usual = "classification" not in columns and labels.min() >= 0 and labels.max() <= 255
        columns["classification" if usual else "label"] = labels
    header = _new_header(xyz, columns) if like is None else _header_of(like)
    dimensions = {dimension.name: dimension for dimension in header.point_format}
    for name, column in list(columns.items()):
        if name not in dimensions or not _holds(dimensions[name], column):
            columns.pop(name)
            if name == "intensity":
                columns[name] = _as_uint16(column)
            name = name if name not in dimensions else KEPT + name
            kind = "uint8" if column.dtype == bool else column.dtype.name
            header.add_extra_dim(laspy.ExtraBytesParams(name=name, type=kind))
            columns[name] = column
    las = laspy.LasData(header, laspy.ScaleAwarePointRecord.zeros(len(table), header=header))
    for axis, name in enumerate("XYZ"):
        steps = _steps(xyz[:, axis], header.scales[axis], header.offsets[axis])
        if steps.min() < INT32.min or steps.max() > INT32.max:
            raise FileError(
                f"expected {name} within 32-bit steps of {header.scales[axis]:g}, got {xyz[:, axis].max():g}"
            )
        las[name] = steps
    for name, column in columns.items():
        las[name] = column
    las.write(stream, do_compress=packed)


def _new_header(xyz: NDArray[np.float64], columns: Mapping[str, Array]) -> Any:
    """Make a header with the simplest point format that holds the most columns, and with fitting scales and offsets."""
    import laspy

    def held(number: int) -> int:
        dimensions = {dimension.name: dimension for dimension in laspy.PointFormat(number)}
        return sum(name in dimensions and _holds(dimensions[name], column) for name, column in columns.items())

    number = max(POINT_FORMATS, key=held)  # the first of several
    header = laspy.LasHeader(point_format=number, version="1.2" if number < 6 else "1.4")
    grids = [_grid(xyz[:, axis]) for axis in range(3)]
    header.scales, header.offsets = np.array([g[0] for g in grids]), np.array([g[1] for g in grids])
    return header


def _header_of(path: str | os.PathLike[str]) -> Any:
    with naming(path, "a LAS file as template"), open_checked(Path(path)) as reader:
        return reader.header


def _holds(dimension: Any, column: Array) -> bool:
    """Whether the dimension can store every number of the column exactly."""
    if dimension.kind.name == "FloatingPoint":
        return survives(column, f"f{dimension.num_bits // 8}")
    if column.dtype.kind == "f" and not (column == np.floor(column)).all():
        return False
    signed = dimension.kind.name == "SignedInteger"
    low, high = (-(2 ** (dimension.num_bits - 1)), 2 ** (dimension.num_bits - 1) - 1) if signed else (0, dimension.max)
    return bool(column.min() >= low and column.max() <= high)


def _as_uint16(column: Array) -> Array:
    """Round intensities to 16 bits: fractions from 0 to 1 become 0 to 65535, other values are clipped."""
    values = np.nan_to_num(column.astype(np.float64), nan=0.0)
    fraction = values.min() >= 0 and values.max() <= 1
    return np.rint((values * UINT16.max if fraction else values).clip(0, UINT16.max)).astype(np.uint16)


def _grid(axis: NDArray[np.float64]) -> tuple[float, float]:
    """Choose scale and offset of one axis.

    The first choice restores every coordinate exactly, the second within rounding errors. Otherwise the scale is the
    finest for which the steps fit into 32 bits.
    """
    low, high = axis.min(), axis.max()
    fitting = [
        (10.0**-digits, offset)
        for digits in DIGITS
        for offset in (0.0, float(np.floor(low)))
        if max(abs(low - offset), abs(high - offset)) * 10.0**digits < INT32.max
    ]
    for tolerance in (0.0, 2 * np.spacing(max(abs(low), abs(high)))):
        for scale, offset in fitting:
            if np.abs(_steps(axis, scale, offset) * scale + offset - axis).max() <= tolerance:
                return scale, offset
    if not fitting:
        raise FileError(f"expected coordinates within {INT32.max * 10.0 ** -min(DIGITS):g}, got {low:g} to {high:g}")
    return min(fitting)


def _steps(axis: NDArray[np.float64], scale: float, offset: float) -> NDArray[np.float64]:
    return np.rint((axis - offset) / scale)

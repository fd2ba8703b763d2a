"""Checks of the sizes declared in LAS and LAZ files, made before any points are read.

laspy does not check them, and the LAZ decoder aborts the process if a damaged file requests too much memory.
"""

import os
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .errors import FileError
from .memory import check_unpacked

RECORD = 54  # minimum bytes of a variable-length record (VLR)
EXTENDED = 60  # minimum bytes of an extended variable-length record (EVLR), stored after the points
LAYERED = b"\3\0"  # compressor of point formats 6 to 10
LAYERS = {10: 9, 11: 1, 12: 2, 13: 1}  # by item type: points, colors, colors with infrared, waveforms
EXTRA_BYTES = 14  # item type with one layer per byte
TABLE = "table of compressed chunks"
MAX_CHUNK = 1 << 30  # bytes of a chunk, which the decoder allocates at once
USUAL_CHUNK = 64 << 20  # bytes accepted for any file: 50000 points of a thousand bytes
LAZ = 20_000  # maximum compression ratio; identical points reach 7100
VARIABLE = 2**32 - 1  # chunk size of files whose chunk table lists the size of each chunk


def open_checked(path: Path, *, evlrs: bool = False) -> Any:
    """`laspy.open(path)`, after checking the declared sizes; a context manager.

    Args:
        path: The file.
        evlrs: Whether to read the records stored after the points, which may have any length.
    """
    import laspy

    with ExitStack() as undo:
        stream = undo.enter_context(open(path, "rb"))
        size = os.fstat(stream.fileno()).st_size
        _check_records(stream, size)
        header = laspy.LasHeader.read_from(stream)
        if header.are_points_compressed:
            _check_chunks(stream, header, size)
        else:
            _check_length(header, size)
        if evlrs:
            _check_evlrs(stream, header, size)
        stream.seek(0)
        reader = laspy.open(stream, read_evlrs=evlrs)
        undo.pop_all()  # the reader closes the stream
        return reader


def _check_records(stream: Any, size: int) -> None:
    """Check the number of records between header and points, all of which laspy reads."""
    if (found := stream.read(4)) != b"LASF":
        raise FileError(f"expected a LAS file, which begins with LASF, found {found!r}")
    head, start, records = _unpack("<HII", stream, 94, size, "header")
    if head + RECORD * records > start or start > size:
        raise FileError(f"expected {records} records between the header and the points, found {start - head} bytes")
    stream.seek(0)


def _check_evlrs(stream: Any, header: Any, size: int) -> None:
    position = header.start_of_first_evlr
    for _ in range(header.number_of_evlrs or 0):
        (length,) = _unpack("<Q", stream, position + EXTENDED - 40, size, "record after the points")
        position += EXTENDED + length
        if position > size:
            raise FileError(f"expected records after the points that fit in {size} bytes, found one of {length}")


def _check_length(header: Any, size: int) -> None:
    """Check that the number of uncompressed points equals what the file has space for."""
    end = header.start_of_first_evlr if header.number_of_evlrs else size
    fitting = (end - header.offset_to_point_data) // header.point_format.size
    waves = header.point_format.has_waveform_packet  # waveforms may follow the points
    if fitting < header.point_count or (fitting > header.point_count and not waves):
        raise FileError(f"expected {header.point_count} points, as declared in the header, found bytes for {fitting}")


def _check_chunks(stream: Any, header: Any, size: int) -> None:
    """Check that the chunks of compressed points fit into the file and hold the declared number of points."""
    import lazrs

    records = header.vlrs.get("LasZipVlr")
    if not records:
        raise FileError("expected a laszip record, which describes the compression, found none")
    vlr = lazrs.LazVlr(records[0].record_data)
    if vlr.item_size() != header.point_format.size:
        raise FileError(f"expected points of {header.point_format.size} bytes, found {vlr.item_size()}")
    start = header.offset_to_point_data
    (table,) = _unpack("<q", stream, start, size, TABLE)
    if table == -1:  # written to a stream that cannot seek: the position is at the end of the file
        (table,) = _unpack("<q", stream, size - 8, size, TABLE)
    _, chunks = _unpack("<II", stream, table, size, TABLE)
    if chunks * header.point_format.size > size:  # each begins with an uncompressed point
        raise FileError(f"expected chunks of points that fit in {size} bytes, found {chunks}")
    stream.seek(start)
    listed = lazrs.read_chunk_table(stream, vlr)
    if start + sum(length for _, length in listed) > size:
        raise FileError(f"expected chunks of points that fit in {size} bytes, found longer ones")
    if records[0].record_data[:2] == LAYERED:
        _check_layers(
            stream, records[0].record_data, start + 8, vlr.item_size(), [length for _, length in listed], size
        )
    each = vlr.chunk_size()
    if each != VARIABLE and each * vlr.item_size() > min(MAX_CHUNK, max(USUAL_CHUNK, size * LAZ)):
        raise FileError(f"expected chunks of about 50000 points, found {each}")
    if each == VARIABLE:
        for points, length in listed:
            check_unpacked(points * vlr.item_size(), length, LAZ, "a chunk of points")
        most = least = sum(points for points, _ in listed)
    else:
        most, least = chunks * each, max(chunks - 1, 0) * each + 1
        if records[0].record_data[:2] == LAYERED and listed:  # layered chunks store their number of points
            position = start + 8 + sum(length for _, length in listed[:-1]) + vlr.item_size()
            most = least = least - 1 + _unpack("<I", stream, position, size, "last chunk")[0]
    check_unpacked(header.point_count * vlr.item_size(), size, LAZ, "points")
    if not least <= header.point_count <= most:
        raise FileError(
            f"expected {header.point_count} points, as declared in the header, found {least} to {most} in the chunks"
        )


def _check_layers(stream: Any, record: bytes, position: int, point: int, chunks: list[int], size: int) -> None:
    """Check layered chunks: each is a point, the number of points, the length of each layer, and the layers."""
    items = struct.unpack_from("<H", record, 32)[0]
    layers = 0
    for number in range(items):
        kind, width = struct.unpack_from("<HH", record, 34 + 6 * number)
        layers += width if kind == EXTRA_BYTES else LAYERS.get(kind, 0)
    for length in chunks:
        sizes = _unpack(f"<{layers}I", stream, position + point + 4, size, "lengths of layers")
        if point + 4 + 4 * layers + sum(sizes) > length:
            raise FileError(f"expected layers that fit in a chunk of {length} bytes, found {sum(sizes)}")
        position += length


def _unpack(layout: str, stream: Any, position: int, size: int, what: str) -> tuple[Any, ...]:
    if not 0 <= position <= size - struct.calcsize(layout):
        raise FileError(f"expected the {what} at {position}, found a file of {size} bytes")
    stream.seek(position)
    return struct.unpack(layout, stream.read(struct.calcsize(layout)))

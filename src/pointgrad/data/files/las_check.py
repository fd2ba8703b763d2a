"""What a LAS or LAZ says about its length, compared with the file before anything is read.

laspy does not compare, and the decoder of LAZ ends the whole process where a damaged file asks for more memory than
there is."""

import os
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .errors import FileError
from .memory import check_unpacked

RECORD = 54  # bytes at least
EXTENDED = 60  # the same of a record after the points
LAYERED = b"\3\0"  # the way of compressing point formats 6 to 10
LAYERS = {10: 9, 11: 1, 12: 2, 13: 1}  # of each kind of item: points, colours, with infrared, waveforms
EXTRA_BYTES = 14  # have as many as there are bytes
TABLE = "table of compressed chunks"
LARGEST = 1 << 30  # bytes of one chunk, which the decoder allocates at once
USUAL = 64 << 20  # the same, of any file: 50000 points of a thousand bytes
LAZ = 20_000  # bytes that one compressed byte becomes at most: 7100 were seen, of points that are all the same
ALL = 2**32 - 1  # chunk size of files whose chunks have different sizes, in the table


def open_checked(path: Path, *, evlrs: bool = False) -> Any:
    """`laspy.open(path)`, if the counts in the file are possible; a context manager. evlrs: with the records that
    follow the points, which may be of any length."""
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
        undo.pop_all()  # the reader closes it
        return reader


def _check_records(stream: Any, size: int) -> None:
    """laspy goes through as many records between header and points as the file says."""
    if (found := stream.read(4)) != b"LASF":
        raise FileError(f"expected a LAS file, which begins with LASF, found {found!r}")
    head, start, records = _unpack("<HII", stream, 94, size, "header")
    if head + RECORD * records > start or start > size:
        raise FileError(f"expected {records} records between the header and the points, found {start - head} bytes")
    stream.seek(0)


def _check_evlrs(stream: Any, header: Any, size: int) -> None:
    place = header.start_of_first_evlr
    for _ in range(header.number_of_evlrs or 0):
        (length,) = _unpack("<Q", stream, place + EXTENDED - 40, size, "record after the points")
        place += EXTENDED + length
        if place > size:
            raise FileError(f"expected records after the points that fit in {size} bytes, found one of {length}")


def _check_length(header: Any, size: int) -> None:
    """Plain points are as many as there is room for: more are missing, fewer would be left out silently."""
    end = header.start_of_first_evlr if header.number_of_evlrs else size
    room = (end - header.offset_to_point_data) // header.point_format.size
    waves = header.point_format.has_waveform_packet  # which may follow the points
    if room < header.point_count or (room > header.point_count and not waves):
        raise FileError(f"expected {header.point_count} points, as the header says, found room for {room}")


def _check_chunks(stream: Any, header: Any, size: int) -> None:
    """Compressed points come in chunks, listed in a table: as many as the points need, and no longer than the file."""
    import lazrs

    records = header.vlrs.get("LasZipVlr")
    if not records:
        raise FileError("expected the record that says how points are compressed, found none")
    vlr = lazrs.LazVlr(records[0].record_data)
    if vlr.item_size() != header.point_format.size:
        raise FileError(f"expected points of {header.point_format.size} bytes, found {vlr.item_size()}")
    start = header.offset_to_point_data
    (table,) = _unpack("<q", stream, start, size, TABLE)
    if table == -1:  # the writer could not go back: it stands at the end
        (table,) = _unpack("<q", stream, size - 8, size, TABLE)
    _, chunks = _unpack("<II", stream, table, size, TABLE)
    if chunks * header.point_format.size > size:  # each begins with a whole point
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
    if each != ALL and each * vlr.item_size() > min(LARGEST, max(USUAL, size * LAZ)):
        raise FileError(f"expected chunks of about 50000 points, found {each}")
    if each == ALL:
        for points, length in listed:
            check_unpacked(points * vlr.item_size(), length, LAZ, "a chunk of points")
        most = least = sum(points for points, _ in listed)
    else:
        most, least = chunks * each, max(chunks - 1, 0) * each + 1
        if records[0].record_data[:2] == LAYERED and listed:  # such chunks say how many points they have
            place = start + 8 + sum(length for _, length in listed[:-1]) + vlr.item_size()
            most = least = least - 1 + _unpack("<I", stream, place, size, "last chunk")[0]
    check_unpacked(header.point_count * vlr.item_size(), size, LAZ, "points")
    if not least <= header.point_count <= most:
        raise FileError(
            f"expected {header.point_count} points, as the header says, found {least} to {most} in the chunks"
        )


def _check_layers(stream: Any, record: bytes, place: int, point: int, chunks: list[int], size: int) -> None:
    """A chunk of this kind is a point, the number of points, the length of each layer, and the layers."""
    items = struct.unpack_from("<H", record, 32)[0]
    layers = 0
    for number in range(items):
        kind, width = struct.unpack_from("<HH", record, 34 + 6 * number)
        layers += width if kind == EXTRA_BYTES else LAYERS.get(kind, 0)
    for length in chunks:
        sizes = _unpack(f"<{layers}I", stream, place + point + 4, size, "lengths of layers")
        if point + 4 + 4 * layers + sum(sizes) > length:
            raise FileError(f"expected layers that fit in a chunk of {length} bytes, found {sum(sizes)}")
        place += length


def _unpack(layout: str, stream: Any, place: int, size: int, what: str) -> tuple[Any, ...]:
    if not 0 <= place <= size - struct.calcsize(layout):
        raise FileError(f"expected the {what} at {place}, found a file of {size} bytes")
    stream.seek(place)
    return struct.unpack(layout, stream.read(struct.calcsize(layout)))

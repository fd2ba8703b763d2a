"""Damaged copies of a file, reproducible from a seed on every machine."""

import gzip
import io
import random
import re
import struct
import zipfile
from collections.abc import Callable

TEXTS = ("0", "-1", "1", "3", "255", "65536", "2147483648", "4294967295", "1000000000000", str(10**30), "nan", "inf",
         "1e400", "-1e-400", "0x7f", "4_0", "9" * 5000, "", ".", "x")  # fmt: skip
NUMBERS = (0, 1, 2, 3, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
LAYOUTS = ("<B", "<H", "<I", "<Q", ">H", ">I", ">Q")
STRUCTURE = 600  # bytes that contain the header in most formats, where damage has the largest effect


def damaged(good: bytes, other: bytes, seed: str) -> bytes:
    """Damage a file.

    Args:
        good: The file.
        other: A different file, of which parts may be inserted.
        seed: Determines the damage.
    """
    draw = random.Random(seed)
    inside = _inside(good, other, draw)
    if inside is not None and draw.random() < 0.6:
        return inside
    raw = good
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        raw = draw.choice(_WAYS)(raw, other, draw)
    return raw


def _position(raw: bytes, draw: random.Random) -> int:
    return draw.randrange(max(1, min(len(raw), draw.choice((STRUCTURE, len(raw))))))


def _flip(raw: bytes, _other: bytes, draw: random.Random) -> bytes:
    out = bytearray(raw or b"\0")
    for _ in range(draw.choice((1, 1, 2, 8))):
        out[_position(out, draw)] ^= 1 << draw.randrange(8)
    return bytes(out)


def _cut(raw: bytes, _other: bytes, draw: random.Random) -> bytes:
    return raw[: _position(raw, draw)]


def _delete(raw: bytes, _other: bytes, draw: random.Random) -> bytes:
    position = _position(raw, draw)
    return raw[:position] + raw[position + draw.choice((1, 2, 4, 60)) :]


def _insert(raw: bytes, _other: bytes, draw: random.Random) -> bytes:
    position = _position(raw, draw)
    return raw[:position] + draw.randbytes(draw.choice((1, 4, 40))) + raw[position:]


def _overwrite(raw: bytes, _other: bytes, draw: random.Random) -> bytes:
    position, size = _position(raw, draw), draw.choice((1, 2, 8, 100))
    filling = draw.choice((bytes(size), b"\xff" * size, draw.randbytes(size)))
    return raw[:position] + filling + raw[position + size :]


def _repeat(raw: bytes, _other: bytes, draw: random.Random) -> bytes:
    position = _position(raw, draw)
    part = raw[position : position + draw.choice((1, 10, 100, 1000))]
    return raw[:position] + part * draw.choice((2, 3, 100)) + raw[position:]


def _swap(raw: bytes, _other: bytes, draw: random.Random) -> bytes:
    a, b, c = sorted(draw.randrange(len(raw) + 1) for _ in range(3))
    return raw[:a] + raw[b:c] + raw[a:b] + raw[c:]


def _splice(raw: bytes, other: bytes, draw: random.Random) -> bytes:
    start = _position(other, draw)
    return raw[: _position(raw, draw)] + other[start : start + draw.choice((10, 100, len(other)))]


def _number(raw: bytes, _other: bytes, draw: random.Random) -> bytes:
    """Replace a binary number, such as a count, length, offset or type."""
    layout = draw.choice(LAYOUTS)
    size = struct.calcsize(layout)
    position = _position(raw, draw)
    if draw.random() < 0.7:
        position -= position % size
    return raw[:position] + struct.pack(layout, draw.choice(NUMBERS) & ((1 << 8 * size) - 1)) + raw[position + size :]


def _digits(raw: bytes, _other: bytes, draw: random.Random) -> bytes:
    """Replace a number in text."""
    found = [match.span() for match in re.finditer(rb"[-+.\w]*\d[-+.\w]*", raw[: draw.choice((STRUCTURE, len(raw)))])]
    if not found:
        return _number(raw, _other, draw)
    start, end = draw.choice(found)
    return raw[:start] + draw.choice(TEXTS).encode() + raw[end:]


def _line(raw: bytes, _other: bytes, draw: random.Random) -> bytes:
    """Delete, repeat, move or join a line."""
    lines = raw.split(b"\n")
    position = draw.randrange(min(len(lines), draw.choice((12, len(lines)))))
    line = lines.pop(position)
    way = draw.randrange(4)
    if way == 1:
        lines[position:position] = [line] * draw.choice((2, 50))
    elif way == 2:
        lines.insert(draw.randrange(len(lines) + 1), line)
    elif way == 3:
        lines[position : position + 1] = [line + b" " + b"".join(lines[position : position + 1])]
    return b"\n".join(lines)


_WAYS: tuple[Callable[[bytes, bytes, random.Random], bytes], ...] = (
    _flip, _cut, _delete, _insert, _overwrite, _repeat, _swap, _splice, _number, _number, _digits, _digits, _line,
)  # fmt: skip


def _inside(good: bytes, other: bytes, draw: random.Random) -> bytes | None:
    """Damage the decompressed content of archives and gzip files, where checksums would otherwise detect it."""
    if good.startswith(b"\x1f\x8b"):
        return gzip.compress(draw.choice(_WAYS)(gzip.decompress(good), other, draw), mtime=0)
    if not good.startswith(b"PK"):
        return None
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        members = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    name = draw.choice(list(members))
    if draw.random() < 0.1:
        members[draw.choice(("../out.npy", "/out.npy", "x" * 300, name.upper()))] = members.pop(name)
    else:
        members[name] = draw.choice(_WAYS)(members[name], other, draw)
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for key, content in members.items():
            archive.writestr(zipfile.ZipInfo(key), content)  # with a fixed date
    return memory.getvalue()

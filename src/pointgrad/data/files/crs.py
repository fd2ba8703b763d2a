"""Coordinate system of a LAS file, from its WKT or GeoTIFF records."""

import re
import struct
from pathlib import Path
from typing import Any

from .las_check import open_checked

PROJECTION = "LASF_Projection"
WKT, KEYS, TEXTS = 2112, 34735, 34737  # records of the LAS specification
TEXT_PLACE = 34737  # place of a GeoTIFF key whose value is in the record of texts
PROJECTED, GEOGRAPHIC, VERTICAL = 3072, 2048, 4096  # GeoTIFF keys with EPSG codes
CITATIONS = (3073, 1026, 2049)  # GeoTIFF keys with names
USER_DEFINED = 32767
NAME = re.compile(r'^\s*[A-Za-z_]+\s*\[\s*"([^"]{1,200})"')
AUTHORITY = re.compile(r'(?:AUTHORITY|ID)\s*\[\s*"EPSG"\s*,\s*"?(\d+)"?[^\[\]]*\]\s*\]\s*$')  # the whole system


def coordinate_system(path: Path) -> str | None:
    """Return name and EPSG code of the coordinate system of a LAS file, None if it declares none.

    The name is that of the WKT record, or the citation of GeoTIFF keys.
    """
    with open_checked(path, evlrs=True) as reader:
        found = {
            record.record_id: _bytes(record)
            for record in (*(reader.evlrs or ()), *reader.header.vlrs)
            if record.user_id.rstrip("\0") == PROJECTION
        }
    if WKT in found:
        return _from_wkt(found[WKT].decode(errors="replace").rstrip("\0"))
    return _from_keys(found.get(KEYS, b""), found.get(TEXTS, b""))


def _bytes(record: Any) -> bytes:
    return record.record_data_bytes() if hasattr(record, "record_data_bytes") else record.record_data


def _from_wkt(text: str) -> str | None:
    name, code = NAME.search(text), AUTHORITY.search(text)
    if name is None:
        return None
    return name[1] + (f" (EPSG:{code[1]})" if code is not None else "")


def _from_keys(keys: bytes, texts: bytes) -> str | None:
    """Read a GeoTIFF directory: a header of four 16-bit numbers, then (key, place, count, value) for each key."""
    numbers = struct.unpack(f"<{len(keys) // 8 * 4}H", keys[: len(keys) // 8 * 8])
    values: dict[int, int] = {}
    names: dict[int, str] = {}
    for start in range(4, len(numbers), 4):
        key, place, count, value = numbers[start : start + 4]
        if place == 0:
            values[key] = value
        elif place == TEXT_PLACE:
            names[key] = texts[value : value + count].decode(errors="replace").rstrip("|\0 ")
    name = next((names[key] for key in CITATIONS if names.get(key)), "")
    code = next((values[key] for key in (PROJECTED, GEOGRAPHIC) if values.get(key, USER_DEFINED) != USER_DEFINED), 0)
    vertical = values.get(VERTICAL, USER_DEFINED)
    epsg = f"EPSG:{code}" + (f"+{vertical}" if 0 < vertical < USER_DEFINED else "") if code else ""
    return f"{name} ({epsg})" if name and epsg else name or epsg or None

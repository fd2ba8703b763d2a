"""STL, ascii and binary. Equal corners of triangles are merged into one vertex."""

from pathlib import Path

import numpy as np

from .errors import FileError
from .rows import decode, load_rows
from .table import Array, Table

TRIANGLE = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
HEAD = 84  # bytes before the triangles: a comment of 80 bytes and the number of triangles


def read(path: Path) -> Table:
    raw = path.read_bytes()
    count = int.from_bytes(raw[HEAD - 4 : HEAD], "little")
    if len(raw) >= HEAD and len(raw) == HEAD + count * TRIANGLE.itemsize:
        corners, encoding = np.frombuffer(raw, TRIANGLE, count, HEAD)["corners"].reshape(-1, 3), "binary"
    elif raw.lstrip()[:5].lower() == b"solid" and b"\0" not in raw:
        corners, encoding = _ascii(decode(raw)), "ascii"
    else:
        found = f"{len(raw)} bytes" if len(raw) >= HEAD else "a file shorter than its header"
        raise FileError(f"expected {HEAD + count * TRIANGLE.itemsize} bytes for {count} triangles, found {found}")
    xyz, index = np.unique(corners, axis=0, return_inverse=True)
    return Table(xyz, faces=index.reshape(-1, 3), kind=f"STL, {encoding}")


def _ascii(text: str) -> Array:
    words = [line.split(None, 1) for line in text.lower().splitlines() if line.strip()]
    vertices = [rest[0] if rest else "" for word, *rest in words if word == "vertex"]
    facets = sum(word == "facet" for word, *_ in words)
    closed = [word for word, *_ in words if word in ("endfacet", "endsolid")]
    if len(vertices) != 3 * facets or closed.count("endfacet") != facets:
        raise FileError(f"expected 3 vertices in each facet, found {len(vertices)} in {facets}")
    if not closed or closed[-1] != "endsolid":
        raise FileError(f"expected endsolid at the end, but the file ends after {facets} facets")
    corners = load_rows(vertices, np.float64, 3 * facets, "vertices")
    if facets and corners.shape[1] != 3:
        raise FileError(f"expected 3 numbers for a vertex, found {corners.shape[1]}")
    return corners.reshape(-1, 3)

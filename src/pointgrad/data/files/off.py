"""OFF: vertices with colors (COFF) and normals (NOFF), and faces.

The counts may follow the keyword without a line break, as in ModelNet.
"""

import re
from pathlib import Path
from typing import IO

import numpy as np

from .errors import FileError
from .mesh import fan
from .rows import doubles, load_rows, read_text, write_rows
from .table import Array, Table, axes, from_columns

HEADER = re.compile(r"(?P<kind>(ST)?C?N?(4?n?)OFF)(?P<rest>.*)")
NORMALS, COLORS = ("nx", "ny", "nz"), ("red", "green", "blue", "alpha")


def read(path: Path) -> Table:
    lines = [line for raw in read_text(path).splitlines() if (line := raw.partition("#")[0].strip())]
    kind, counts, start = _header(lines)
    vertices, faces = counts
    rows = lines[start : start + vertices]
    if len(rows) < vertices:
        raise FileError(f"expected {vertices} vertices, but the file ends after {len(rows)}")
    polygons = lines[start + vertices :]
    if len(polygons) != faces:
        raise FileError(f"expected {faces} faces, as declared in the header, found {len(polygons)}")
    values = load_rows(rows, np.float64, vertices, "vertices")
    if not vertices:
        raise FileError("expected at least one vertex, found none")
    names = _names(kind, values.shape[1])
    columns: dict[str, Array] = {name: values[:, position] for position, name in enumerate(names)}
    for name in COLORS:
        if name in columns and (columns[name] == columns[name].astype(np.uint8)).all():
            columns[name] = columns[name].astype(np.uint8)
    triangles = fan([_polygon(line) for line in polygons], vertices) if faces else None
    return from_columns(columns, faces=triangles, kind=kind)


def write(stream: IO[bytes], table: Table) -> None:
    stream.write(f"OFF\n{len(table)} 0 0\n".encode())
    write_rows(stream, doubles(axes(table)), " ")


def _header(lines: list[str]) -> tuple[str, tuple[int, int], int]:
    """Return the keyword, the numbers of vertices and faces, and the index of the first vertex line."""
    found = HEADER.fullmatch(lines[0]) if lines else None
    if found is None:
        raise FileError(
            f"expected OFF in the first line, found {lines[0][:40]!r}" if lines else "expected OFF, found nothing"
        )
    kind, rest = found["kind"], found["rest"].strip()
    if found[3] or kind.startswith("ST") or rest.upper().startswith("BINARY"):
        raise FileError(f"expected OFF, COFF, NOFF or CNOFF in text, found {lines[0][:40]}")
    line = rest or (lines[1] if len(lines) > 1 else "")
    counts = line.split()
    if len(counts) not in (2, 3) or not all(count.isdigit() and len(count) < 19 for count in counts):
        raise FileError(f"expected the counts of vertices, faces and edges, found {line[:40]!r}")
    return kind, (int(counts[0]), int(counts[1])), 1 if rest else 2


def _names(kind: str, width: int) -> list[str]:
    names = [*"xyz", *(NORMALS if "N" in kind else ())]
    extra = width - len(names)
    if "C" in kind and extra in (3, 4):
        names += COLORS[:extra]
    elif extra < 0 or "C" in kind:
        raise FileError(f"expected {len(names)} numbers per vertex of {kind}, found {width}")
    return [*names, *(f"column{position}" for position in range(len(names) + 1, width + 1))]


def _polygon(line: str) -> list[int]:
    tokens = line.split()
    try:
        size = int(tokens[0])
        corners = [int(token) for token in tokens[1 : size + 1]]
    except ValueError:
        size, corners = 0, []
    if size < 1 or len(corners) != size:
        raise FileError(f"expected a face as its number of vertices and their indices, found {line[:60]!r}")
    return corners

"""Wavefront OBJ: vertices and faces, with colors if vertices have six numbers, and normals if there is one each."""

from pathlib import Path
from typing import IO

import numpy as np

from .errors import FileError
from .mesh import fan
from .rows import doubles, load_rows, read_text, write_rows
from .table import Array, Table, axes, from_columns

# All keywords of the format. A line with another keyword is an error.
_STATEMENTS = """
v vt vn vp f fo l p o g s mg usemtl mtllib usemap maplib bevel c_interp d_interp lod shadow_obj trace_obj ctech stech
cstype deg bmat step curv curv2 surf parm trim hole scrv sp end con call csh
"""
STATEMENTS = frozenset(_STATEMENTS.split())


def read(path: Path) -> Table:
    lines: dict[str, list[str]] = {"v": [], "vn": []}
    polygons: list[list[int]] = []
    for number, line in enumerate(read_text(path).replace("\\\n", " ").splitlines(), 1):
        word, _, rest = line.partition("#")[0].replace("\t", " ").strip().partition(" ")
        if word in lines:
            lines[word].append(rest)
        elif word == "f":
            polygons.append(_corners(rest, len(lines["v"])))
        elif word and word not in STATEMENTS:
            raise FileError(f"expected an OBJ statement, found line {number}: {line[:40]!r}")
    vertices = len(lines["v"])
    if not vertices:
        raise FileError("expected lines v with vertices, found none")
    values = load_rows(lines["v"], np.float64, vertices, "vertices")
    names = {3: "x y z", 4: "x y z w", 6: "x y z red green blue", 7: "x y z red green blue alpha"}.get(values.shape[1])
    if names is None:
        raise FileError(f"expected 3, 4, 6 or 7 numbers for a vertex, found {values.shape[1]}")
    columns: dict[str, Array] = {name: values[:, position] for position, name in enumerate(names.split())}
    if len(lines["vn"]) == vertices:  # otherwise they belong to corners of faces
        normals = load_rows(lines["vn"], np.float64, vertices, "normals")
        if normals.shape[1] != 3:
            raise FileError(f"expected 3 numbers for a normal, found {normals.shape[1]}")
        columns |= {name: normals[:, position] for position, name in enumerate(("nx", "ny", "nz"))}
    faces = fan(polygons, vertices) if polygons else None
    return from_columns(columns, faces=faces, kind="OBJ")


def write(stream: IO[bytes], table: Table) -> None:
    write_rows(stream, {"v": np.full(len(table), "v"), **doubles(axes(table))}, " ")


def _corners(line: str, vertices: int) -> list[int]:
    """Parse the vertex indices of a face.

    A corner is written as 3, 3/1, 3//2 or 3/1/2. Indices count from 1, or backwards from the latest vertex if negative;
    the result counts from 0.
    """
    try:
        numbers = [int(corner.partition("/")[0]) for corner in line.split()]
    except ValueError:
        numbers = []
    if not numbers or 0 in numbers:
        raise FileError(f"expected a face as indices of vertices, found {line[:60]!r}")
    return [number - 1 if number > 0 else vertices + number for number in numbers]

"""E57, through pye57: all scans of a file in one coordinate system."""

from pathlib import Path
from typing import Any

import numpy as np

from .errors import FileError
from .memory import check_fits
from .table import Array, Table, peak_bytes

AXES = ("cartesianX", "cartesianY", "cartesianZ")
COLUMNS = {"intensity": "intensity", "colorRed": "red", "colorGreen": "green", "colorBlue": "blue"}
STORED = 24 + 4 + 3  # bytes of a decoded point: coordinates, intensity, colors


def read(path: Path) -> Table:
    """Read all scans, each moved by its pose. Points that a scan marks as invalid are left out.

    The columns are intensity and colors, as far as all scans have them, and the number of the scan if there are
    several.
    """
    from pye57 import E57

    with E57(str(path)) as file:
        headers = [file.get_header(number) for number in range(file.scan_count)]
        count = sum(header.point_count for header in headers)
        check_fits(peak_bytes(count, 2 * STORED * count, STORED * count), "points")
        scans = [_scan(file, number) for number, header in enumerate(headers) if header.point_count]
    if not scans:
        raise FileError("expected at least one point, found none")
    names = [name for name in COLUMNS.values() if all(name in columns for _, columns in scans)]
    columns = {name: np.concatenate([each[name] for _, each in scans]) for name in names}
    if len(scans) > 1:
        sizes = [len(xyz) for xyz, _ in scans]
        columns["scan"] = np.repeat(np.arange(len(scans), dtype=np.int32), sizes)
    kind = f"E57, {len(scans)} {'scan' if len(scans) == 1 else 'scans'}"
    return Table(np.concatenate([xyz for xyz, _ in scans]), columns, kind=kind)


def _scan(file: Any, number: int) -> tuple[Array, dict[str, Array]]:
    found = file.read_scan(number, intensity=True, colors=True, ignore_missing_fields=True)
    xyz = np.stack([found[axis] for axis in AXES], axis=1)
    return xyz, {name: found[key] for key, name in COLUMNS.items() if key in found}

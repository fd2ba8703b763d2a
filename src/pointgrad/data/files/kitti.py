"""LiDAR sweeps of KITTI (.bin) and nuScenes (.pcd.bin): float32 columns without a header."""

from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from .errors import FileError
from .table import Table, axes, name_columns

KITTI = ("x", "y", "z", "intensity")
NUSCENES = ("x", "y", "z", "intensity", "ring")


def read(path: Path, columns: Sequence[str] | None, names: Sequence[str]) -> Table:
    names = columns or names
    size = path.stat().st_size
    if size % (4 * len(names)):
        raise FileError(f"expected rows of {len(names)} float32 ({' '.join(names)}), found {size} bytes, "
                        f"{size % (4 * len(names))} too many")  # fmt: skip
    table = name_columns(np.fromfile(path, "<f4").reshape(-1, len(names)), names)
    table.kind = f"float32 {' '.join(names)}"
    return table


def write(stream: IO[bytes], table: Table, names: Sequence[str]) -> None:
    """Write the columns `names`; missing ones are 0."""
    found = {**axes(table), **table.columns}
    zeros = np.zeros(len(table))
    with np.errstate(over="ignore"):  # with lossy=True, too large values become infinity
        stream.write(np.stack([found.get(name, zeros) for name in names], axis=1).astype("<f4").tobytes())

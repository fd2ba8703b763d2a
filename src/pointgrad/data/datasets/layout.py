"""Finding published datasets on disk, and a cache for what takes long to read."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pointgrad.data.datasets.tables import read_npz
from pointgrad.data.files import FileError
from pointgrad.data.files.errors import naming
from pointgrad.data.files.memory import check_regular
from pointgrad.writing import make_folder, replacing


def find(root: Path, folders: Sequence[str], holds: Callable[[Path], object]) -> Path | None:
    """Return the first of `root` and its named subfolders for which `holds` is true, or None."""
    return next((location for location in (root, *(root / name for name in folders)) if holds(location)), None)


def missing(root: Path, data: str, layouts: Sequence[str], folders: Sequence[str] = ()) -> FileError:
    """Return an error that describes the expected layouts and what was found instead."""
    looked = " or ".join([str(root), *(f"{name}/ in it" for name in folders)])
    if not root.is_dir():
        found = "it is not a folder" if root.exists() else "it does not exist"
    else:
        names = sorted(f"{path.name}/" if path.is_dir() else path.name for path in root.iterdir())
        found = f"found {', '.join(names[:6])}{' ...' if len(names) > 6 else ''}" if names else "it is empty"
    return FileError(f"{root}: expected {data} as {'; or '.join(layouts)}. Looked in {looked}: {found}")


def lines(path: Path) -> list[str]:
    """Read the lines of a text file, stripped, without empty ones."""
    with naming(path, "a list, one entry per line"):
        check_regular(path)
        text = path.read_text()
    return [line.strip() for line in text.splitlines() if line.strip()]


class Cache:
    """Cache for arrays that are slow to compute, stored as files in a folder.

    A cached file is used only if its sources have not changed. On a read-only disk, arrays are computed every time.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(
        self, name: str, sources: Sequence[Path], make: Callable[[], dict[str, np.ndarray]]
    ) -> dict[str, np.ndarray]:
        stamp = np.array([_stamp(source) for source in sources])
        path = self.folder / f"{name}.npz"
        try:
            kept = read_npz(path)
            if np.array_equal(kept.pop("stamp"), stamp):
                return kept
        except Exception:  # missing, truncated or from an older version: compute again
            pass
        made: dict[str, Any] = make()
        with contextlib.suppress(OSError):
            make_folder(self.folder.parent, path.relative_to(self.folder.parent).parent)
            with replacing(path) as stream:
                np.savez(stream, stamp=stamp, **made)
        return made


def _stamp(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError as error:
        raise FileError(f"{path}: expected a file that can be read, got: {error.strerror}") from None
    return stat.st_size, stat.st_mtime_ns

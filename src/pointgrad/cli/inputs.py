"""Files and folders on the command line."""

from collections.abc import Sequence
from pathlib import Path

from pointgrad.data.datasets.folder import is_cloud
from pointgrad.data.files.formats import FORMATS
from pointgrad.errors import printable


def cloud_files(inputs: Sequence[Path], purpose: str, out: Path | None = None) -> list[tuple[Path, Path]]:
    """Find point cloud files.

    Args:
        inputs: Files, or folders, which are searched recursively.
        purpose: A verb for error messages, such as "draw".
        out: Output folder, which is not searched.

    Returns:
        Pairs of a file and its folder relative to the searched folder.

    Raises:
        ValueError: There are no inputs, or a folder holds no point cloud files.
    """
    found: list[tuple[Path, Path]] = []
    for path in inputs:
        if not path.is_dir():
            found.append((path, Path()))
            continue
        files = [file for file in sorted(path.rglob("*")) if is_cloud(file)]
        inside = [file for file in files if out is None or out.resolve() not in file.resolve().parents]
        if not inside:
            raise ValueError(
                f"{printable(path)}: expected a folder with files that end in {', '.join(FORMATS)}, found none"
            )
        found += [(file, file.parent.relative_to(path)) for file in inside]
    if not found:
        raise ValueError(f"expected files or folders to {purpose}, got none")
    return found

"""Files and folders on the command line."""

from collections.abc import Sequence
from pathlib import Path

from pointgrad.data.datasets.folder import is_cloud
from pointgrad.data.files.formats import FORMATS


def cloud_files(inputs: Sequence[Path], purpose: str, out: Path | None = None) -> list[tuple[Path, Path]]:
    """Each file, also those of folders, and where it lies in its folder. purpose: what is done with files, a verb. out:
    the folder of results, in which nothing is looked for."""
    found: list[tuple[Path, Path]] = []
    for path in inputs:
        if not path.is_dir():
            found.append((path, Path()))
            continue
        files = [file for file in sorted(path.rglob("*")) if is_cloud(file)]
        inside = [file for file in files if out is None or out.resolve() not in file.resolve().parents]
        if not inside:
            raise ValueError(f"{path}: expected a folder with files that end in {', '.join(FORMATS)}, found none")
        found += [(file, file.parent.relative_to(path)) for file in inside]
    if not found:
        raise ValueError(f"expected files or folders to {purpose}, got none")
    return found

"""Files and folders on the command line."""

from collections.abc import Sequence
from pathlib import Path

from pointgrad.data.datasets.folder import is_cloud
from pointgrad.data.files.formats import FORMATS


def cloud_files(inputs: Sequence[Path], out: Path, purpose: str) -> list[tuple[Path, Path]]:
    """Each file, also those of folders, and the folder for its result: what is found in an input folder keeps its place
    in it. out: the folder of all results, in which nothing is looked for. purpose: what is done with files, a verb."""
    found: list[tuple[Path, Path]] = []
    for path in inputs:
        if not path.is_dir():
            found.append((path, out))
            continue
        inside = [
            file for file in sorted(path.rglob("*")) if is_cloud(file) and out.resolve() not in file.resolve().parents
        ]
        if not inside:
            raise ValueError(f"{path}: expected a folder with files that end in {', '.join(FORMATS)}, found none")
        found += [(file, out / file.parent.relative_to(path)) for file in inside]
    if not found:
        raise ValueError(f"expected files or folders to {purpose}, got none")
    return found

"""Class names of a file."""

from pathlib import Path

from pointgrad.data.classes import ASPRS, ClassMap
from pointgrad.data.datasets.folder import CODES, NAMES, has_sidecar
from pointgrad.data.datasets.layout import lines
from pointgrad.data.datasets.split import SPLITS
from pointgrad.data.files.errors import FileError, naming
from pointgrad.data.files.formats import LAS, choose
from pointgrad.data.files.las_check import open_checked
from pointgrad.data.files.table import LABELS

VLR_USER, VLR_NAMES, VLR_CODES = "pointgrad", 1, 2  # records that prediction writes into a LAS file


def class_names(path: str | Path, by: str = "label") -> dict[int, str]:
    """Find the class names of a column of a file.

    The names come from a LAS file that `pointgrad predict` wrote, from `classes.yaml` (names with codes) or
    `classes.txt` (line i names class i) next to the file, or from the LAS standard for its classification.

    Args:
        path: The file.
        by: "label" for the column that `pointgrad.data.read` uses as labels, or the name of a column.

    Returns:
        Names by label; empty if there are none.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     _ = Path(folder, "classes.txt").write_text("road\\ntree\\n")
        ...     class_names(f"{folder}/a.ply"), class_names(f"{folder}/a.ply", "intensity")
        ({0: 'road', 1: 'tree'}, {})
    """
    path = Path(path)
    if by.lower() not in LABELS and not by.lower().endswith("label"):
        return {}
    columns, written = _las(path) if choose(path, None) in LAS else ([], None)
    column = next((name for name in LABELS if name in columns), by) if by == "label" else by
    standard = dict(enumerate(ASPRS)) if column == "classification" and columns else {}
    if column == "classification" and (written is not None or by != "label"):
        return dict(enumerate(ASPRS))
    if has_sidecar(path):
        standard = {}
    return written if written is not None else _names_next_to(path, standard)


def declared_classes(folder: Path) -> ClassMap | None:
    """Return the classes that `classes.yaml` or `classes.txt` in a folder names, None without such a file."""
    if (folder / CODES).is_file():
        return ClassMap.read(folder / CODES)
    if not (folder / NAMES).is_file():
        return None
    names = lines(folder / NAMES)
    return ClassMap(tuple(names), tuple((number,) for number in range(len(names))))


def _names_next_to(path: Path, standard: dict[int, str]) -> dict[int, str]:
    """Read the names next to the file, or in the root of a dataset with the folders `train`, `val` and `test`.

    A map of codes may name some codes only: the others keep their standard names.
    """
    for folder in (path.parent, *([path.parent.parent] if path.parent.name in SPLITS else [])):
        if (folder / CODES).is_file():
            try:
                return {**standard, **ClassMap.read(folder / CODES).known()}
            except FileError:
                raise
            except ValueError as error:
                raise FileError(str(error)) from None
        if (folder / NAMES).is_file():
            return dict(enumerate(lines(folder / NAMES)))
    return standard


def _las(path: Path) -> tuple[list[str], dict[int, str] | None]:
    """Return the column names in lower case, and the class names that prediction wrote, if any."""
    with naming(path, "a LAS file that can be read"), open_checked(path) as reader:
        columns = [name.lower() for name in reader.header.point_format.dimension_names]
        for record in reader.header.vlrs:
            if record.user_id.rstrip("\0") == VLR_USER and record.record_id in (VLR_NAMES, VLR_CODES):
                found = record.record_data.decode(errors="replace").rstrip("\0").split("\n")
                if record.record_id == VLR_NAMES:
                    return columns, dict(enumerate(found))
                pairs = (line.partition(" ") for line in found)
                return columns, {int(code): name for code, _, name in pairs if code.isdecimal()}
        return columns, None

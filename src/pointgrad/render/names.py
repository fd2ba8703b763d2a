"""Class names of a file."""

from pathlib import Path

from pointgrad.data.datasets.folder import NAMES
from pointgrad.data.datasets.layout import lines
from pointgrad.data.datasets.split import SPLITS
from pointgrad.data.files.errors import naming
from pointgrad.data.files.formats import LAS, choose
from pointgrad.data.files.las_check import open_checked
from pointgrad.data.files.table import LABELS

RECORD = ("pointgrad", 1)  # user id and record id of the class names that prediction writes into a LAS file

# LAS Specification 1.4 of the American Society for Photogrammetry and Remote Sensing, table 17.
ASPRS = (
    "never classified", "unclassified", "ground", "low vegetation", "medium vegetation", "high vegetation", "building",
    "low point (noise)", "model key-point", "water", "rail", "road surface", "overlap", "wire guard", "wire conductor",
    "transmission tower", "wire connector", "bridge deck", "high noise",
)  # fmt: skip


def class_names(path: str | Path, by: str = "label") -> dict[int, str]:
    """Find the class names of a column of a file.

    The names come from a LAS file that `pointgrad predict` wrote, from `classes.txt` next to the file, where line i
    names class i, or from the LAS standard for its classification.

    Args:
        path: The file.
        by: "label" for the column that `pointgrad.data.read` uses as labels, or the name of a column.

    Returns:
        Names by class number; empty if there are none.

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
    if column == "classification" and (written is not None or by != "label"):
        return dict(enumerate(ASPRS))
    names = written if written is not None else _names_next_to(path)
    standard = ASPRS if column == "classification" and columns else ()
    return dict(enumerate(standard if names is None else names))


def _names_next_to(path: Path) -> list[str] | None:
    """Read `classes.txt` next to the file, or in the root of a dataset with the folders `train`, `val` and `test`."""
    folders = [path.parent, *([path.parent.parent] if path.parent.name in SPLITS else [])]
    found = next((folder / NAMES for folder in folders if (folder / NAMES).is_file()), None)
    return None if found is None else lines(found)


def _las(path: Path) -> tuple[list[str], list[str] | None]:
    """Return the column names in lower case, and the class names that prediction wrote, if any."""
    with naming(path, "a LAS file that can be read"), open_checked(path) as reader:
        columns = [name.lower() for name in reader.header.point_format.dimension_names]
        for record in reader.header.vlrs:
            if (record.user_id.rstrip("\0"), record.record_id) == RECORD:
                return columns, record.record_data.decode(errors="replace").rstrip("\0").split("\n")
        return columns, None

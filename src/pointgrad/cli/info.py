"""`pointgrad info FILE...`: contents of point cloud files."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from pointgrad import data
from pointgrad.errors import printable

from .inputs import cloud_files
from .status import ExitStatus, fail


@dataclass
class Info:
    """Show the contents of point cloud files: format, counts, bounds, coordinate system, spacing, duplicate and
    isolated points, attributes, and labels with the names of their classes.

    Exit status: 0; 2 if a file cannot be read (the others are shown), or for an invalid command line.
    """

    files: Annotated[Positional[tuple[Path, ...]], arg(metavar="FILE")]
    """Point cloud files, or folders, which are searched for them: PLY, PCD, LAS, LAZ, E57, OFF, OBJ, STL, XYZ, TXT,
    CSV (also gzipped), NPY, NPZ, BIN, HDF5."""

    format: str | None = None
    """Format (ply, pcd, las, ...), if the suffix does not determine it."""

    columns: str | None = None
    """Names of the columns, for files that do not name them: --columns "x y z class intensity"."""

    labels: str | None = None
    """Column with the class of each point, if its name is not label, class, classification or similar."""

    json: bool = False
    """Print a JSON list with one object per file instead of tables."""

    def run(self) -> int:
        try:
            files = [path for path, _ in cloud_files(self.files, "describe")]
        except (ValueError, OSError) as error:
            return fail("info", ExitStatus.USAGE, error)
        found = [each for path in files if (each := self._describe(path)) is not None]
        if self.json:
            print(json.dumps([{**asdict(each), "classes": names} for each, names in found], indent=2))
        return ExitStatus.OK if len(found) == len(files) else ExitStatus.USAGE

    def _describe(self, path: Path) -> tuple[data.FileInfo, dict[int, str]] | None:
        """Return the description of a file, and the names of the classes that occur in it."""
        try:
            found = data.info(path, format=self.format, columns=self.columns, labels=self.labels)
            known = {} if found.labels is None or self.format else data.class_names(path, self.labels or "label")
            names = {code: known[code] for code in found.labels or () if code in known}
        except (data.FileError, ModuleNotFoundError) as error:
            fail("info", ExitStatus.USAGE, error, self)
            return None
        if not self.json:
            _show(found, names)
        return found, names


def _show(found: data.FileInfo, names: dict[int, str]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    def row(name: str, cell: str) -> None:
        table.add_row(escape(printable(name)), escape(printable(cell)))

    title = escape(printable(found.path))
    table = Table(title=title, title_justify="left", show_header=False, title_style="bold", min_width=60)
    row("format", found.format)
    row("size", f"{found.size:,} bytes")
    row("points", f"{found.points:,}" + (f", {found.faces:,} faces" if found.faces else ""))
    row("coordinates", found.coordinates)
    if found.crs is not None:
        row("coordinate system", found.crs)
    if found.lower is not None and found.upper is not None:
        for axis, low, high in zip("xyz", found.lower, found.upper, strict=True):
            row(f"  {axis}", f"{low:.12g} to {high:.12g}")
    row("spacing", "none" if found.spacing is None else f"{found.spacing:.4g}")
    row("duplicate points", f"{found.doubled:,}")
    row("non-finite points", f"{found.nonfinite:,}")
    share = found.isolated / found.points
    part = "below 0.01%" if 0 < share < 1e-4 else f"{share:.2%}"
    row("isolated points", f"{found.isolated:,}" + (f" ({part}): noise, or far away" if found.isolated else ""))
    for attribute in found.attributes:
        bounds = "not numeric" if attribute.low is None else f"{attribute.low:.12g} to {attribute.high:.12g}"
        row(f"  {attribute.name}", f"{attribute.dtype}, {bounds}")
    if found.labels is not None:
        row("labels", ", ".join(_label(code, count, names) for code, count in found.labels.items()))
    for warning in found.warnings:
        row("warning", warning)
    Console().print(table)


def _label(code: int, count: int, names: dict[int, str]) -> str:
    name = f" ({printable(names[code])})" if code in names else " (no label)" if code == -1 else ""
    return f"{code}{name}: {count:,}"

"""`pointgrad info FILE...`: what files of points hold."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from pointgrad import data

from .fail import fail

WRONG = 2  # exit status, as the help of the command says


@dataclass
class Info:
    """Shows what files of points hold: format, counts, bounds, attributes, labels, spacing, doubled points.

    Exit status: 0; 2 if a file cannot be read (the others are shown) or the command line is wrong.
    """

    files: Annotated[Positional[tuple[Path, ...]], arg(metavar="FILE")]
    """Files of any format: PLY, PCD, LAS, LAZ, OFF, OBJ, STL, XYZ, TXT, CSV (also gzipped), NPY, NPZ, BIN, HDF5."""

    format: str | None = None
    """The format, if the suffix does not say: ply, pcd, las, ..."""

    columns: str | None = None
    """Names of the columns of files that have none of their own: --columns "x y z class intensity"."""

    labels: str | None = None
    """The column that holds the class of each point, if it is not called label, class, classification or the like."""

    json: bool = False
    """Print a list of objects, one per file, instead of tables."""

    def run(self) -> int:
        if not self.files:
            return fail("info", WRONG, "expected at least one file, got none")
        found = [each for path in self.files if (each := self._describe(path)) is not None]
        if self.json:
            print(json.dumps([asdict(each) for each in found], indent=2))
        return 0 if len(found) == len(self.files) else WRONG

    def _describe(self, path: Path) -> data.FileInfo | None:
        try:
            found = data.info(path, format=self.format, columns=self.columns, labels=self.labels)
        except (data.FileError, ModuleNotFoundError) as error:
            fail("info", WRONG, str(error))
            return None
        if not self.json:
            _show(found)
        return found


def _show(found: data.FileInfo) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    def row(name: str, cell: str) -> None:
        table.add_row(escape(name), escape(cell))

    table = Table(title=escape(found.path), title_justify="left", show_header=False, title_style="bold", min_width=60)
    row("format", found.format)
    row("size", f"{found.size:,} bytes")
    row("points", f"{found.points:,}" + (f", {found.faces:,} faces" if found.faces else ""))
    row("coordinates", found.coordinates)
    if found.lower is not None and found.upper is not None:
        for axis, low, high in zip("xyz", found.lower, found.upper, strict=True):
            row(f"  {axis}", f"{low:.12g} to {high:.12g}")
    row("spacing", "none" if found.spacing is None else f"{found.spacing:.4g}")
    row("doubled points", f"{found.doubled:,}")
    row("not finite", f"{found.nonfinite:,}")
    for attribute in found.attributes:
        bounds = "no numbers" if attribute.low is None else f"{attribute.low:.12g} to {attribute.high:.12g}"
        row(f"  {attribute.name}", f"{attribute.dtype}, {bounds}")
    if found.labels is not None:
        row("labels", ", ".join(f"{label}: {count:,}" for label, count in found.labels.items()))
    for warning in found.warnings:
        row("warning", warning)
    Console().print(table)

"""Point cloud files read in parts, with the labels stored next to them."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch

from pointgrad.data.classes import ClassMap, count_codes
from pointgrad.data.cloud import Cloud
from pointgrad.data.files import las
from pointgrad.data.files.errors import FileError, naming
from pointgrad.data.files.formats import FORMATS, LAS, choose
from pointgrad.data.files.las_check import open_checked
from pointgrad.data.files.memory import check_file
from pointgrad.data.files.mesh import sample
from pointgrad.data.files.read_write import read_table
from pointgrad.data.files.table import label_column, to_cloud
from pointgrad.data.names import class_names
from pointgrad.data.sidecar import attach, read_sidecar, with_labels

READABLE = "a file that can be read"
SURFACE_POINTS = 100_000  # sampled from the faces of a mesh


class Source:
    """A point cloud file that can be read several times, in parts.

    LAS and LAZ files are read from disk on every pass, one million points at a time. Other formats are read once, as a
    whole. A mesh whose vertices have only coordinates is replaced by points sampled from its surface.

    Args:
        path: The file.
        columns: Column names for formats that do not store them; see `pointgrad.data.read`.
        classes: Classes that replace the codes of the labels.
    """

    def __init__(self, path: Path, columns: str | None = None, classes: ClassMap | None = None) -> None:
        self.path, self.columns, self.classes = path, columns, classes
        with naming(path, READABLE):
            self.format = choose(path, None)

    def parts(self) -> Iterator[Cloud]:
        """Iterate over the parts of the file, from its first point."""
        return map(self._with_classes, self._parts())

    def names(self, by: str) -> dict[int, str]:
        """Return the class names of a column, by label; see `pointgrad.data.class_names`."""
        if self.classes is None or not by.lower().endswith("label"):
            return class_names(self.path, by)
        return dict(enumerate(self.classes.names)) if by == "label" else self.classes.known()

    def _with_classes(self, part: Cloud) -> Cloud:
        if self.classes is None or part.labels is None:
            return part
        if self.classes.other == "refuse":
            self.classes.check(count_codes(part.labels), str(self.path))
        return replace(part, labels=self.classes.apply(part.labels))

    def _parts(self) -> Iterator[Cloud]:
        if self.format not in LAS:
            yield self._whole
            return
        with naming(self.path, READABLE):
            check_file(self.path)
            with open_checked(self.path) as reader:
                count = reader.header.point_count
        if not count:
            raise FileError(f"{self.path}: expected at least one point, found none")
        labels, confidence = read_sidecar(self.path, count)
        done, column = 0, None
        with naming(self.path, READABLE):
            for table in las.chunks(self.path):
                column = column if done else label_column(table.columns, None)
                part = to_cloud(table, column, str(self.path))
                rows = slice(done, done + len(part))
                done += len(part)
                if labels is not None:
                    part = attach(part, labels[rows], None if confidence is None else confidence[rows])
                yield part

    @cached_property
    def _whole(self) -> Cloud:
        with naming(self.path, READABLE):
            table = read_table(self.path, self.format, self.columns if FORMATS[self.format].unnamed else None)
            if FORMATS[self.format].sampled or (table.faces is not None and len(table.faces) and not table.columns):
                table = sample(table, SURFACE_POINTS, torch.Generator().manual_seed(0))
            cloud = to_cloud(table, None, str(self.path))
        return with_labels(cloud, self.path)

"""Files of points in parts, with the labels that lie beside them."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import torch

from pointgrad.data import Cloud
from pointgrad.data.files import las
from pointgrad.data.files.door import check_file, read_table
from pointgrad.data.files.errors import FileError, naming
from pointgrad.data.files.formats import FORMATS, choose
from pointgrad.data.files.las_check import open_checked
from pointgrad.data.files.mesh import sample
from pointgrad.data.files.table import label_column, to_cloud
from pointgrad.render.names import LAS, attach, labels_beside, with_labels

READABLE = "a file that can be read"
SURFACE = 100_000  # points of a mesh


class Source:
    """A file of points. LAS and LAZ are read anew at each pass, a million points at a time; others once, as a whole.
    Of a mesh whose corners have nothing but their place, points are drawn from its surface.

    columns: names of the columns of files that have none of their own; see `pointgrad.data.read`.
    """

    def __init__(self, path: Path, columns: str | None = None) -> None:
        self.path, self.columns = path, columns
        with naming(path, READABLE):
            self.format = choose(path, None)

    def parts(self) -> Iterator[Cloud]:
        if self.format not in LAS:
            yield self._whole
            return
        with naming(self.path, READABLE):
            check_file(self.path)
            with open_checked(self.path) as reader:
                count = reader.header.point_count
        if not count:
            raise FileError(f"{self.path}: expected at least one point, found none")
        labels, confidence = labels_beside(self.path, count)
        done, column = 0, None
        with naming(self.path, READABLE):
            for table in las.chunks(self.path):
                column = column if done else label_column(table.columns, None)
                part = to_cloud(table, column, str(self.path))
                here = slice(done, done + len(part))
                done += len(part)
                if labels is not None:
                    part = attach(part, labels[here], None if confidence is None else confidence[here])
                yield part

    @cached_property
    def _whole(self) -> Cloud:
        with naming(self.path, READABLE):
            table = read_table(self.path, self.format, self.columns if FORMATS[self.format].unnamed else None)
            if FORMATS[self.format].sampled or (table.faces is not None and len(table.faces) and not table.columns):
                table = sample(table, SURFACE, torch.Generator().manual_seed(0))
            cloud = to_cloud(table, None, str(self.path))
        return with_labels(cloud, self.path)

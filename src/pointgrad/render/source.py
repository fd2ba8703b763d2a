"""Files of points in parts, with the labels that lie beside them."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import torch

from pointgrad.data import Cloud, read
from pointgrad.data.files import las
from pointgrad.data.files.door import check_file
from pointgrad.data.files.errors import FileError, naming
from pointgrad.data.files.formats import FORMATS, choose
from pointgrad.data.files.las_check import open_checked
from pointgrad.data.files.table import label_column, to_cloud
from pointgrad.render.names import LAS, attach, labels_beside, with_labels

READABLE = "a file that can be read"


class Source:
    """A file of points. LAS and LAZ are read anew at each pass, a million points at a time; others once, as a whole.

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
        columns = self.columns if FORMATS[self.format].unnamed else None
        cloud = read(self.path, columns=columns, generator=torch.Generator().manual_seed(0))
        return with_labels(cloud, self.path)

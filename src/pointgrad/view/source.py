"""A file as a stream of clouds: LAS and LAZ in chunks, everything else at once."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from pointgrad.data import Cloud
from pointgrad.data.files import las
from pointgrad.data.files.door import check_file, read_table
from pointgrad.data.files.errors import naming
from pointgrad.data.files.formats import FORMATS, choose
from pointgrad.data.files.mesh import sample
from pointgrad.data.files.table import to_cloud
from pointgrad.render.names import with_labels

READABLE = "a file that can be read"
SURFACE = 100_000  # points on a mesh that has nothing but corners


def chunks(path: Path, columns: str | None, category: int | None) -> Callable[[], Iterable[Cloud]]:
    """A function that gives the clouds of a file, each time from the beginning. columns: names of those of a file that
    has none. category: of the object, for networks that ask for it. Raises FileError."""
    with naming(path, READABLE):
        format = choose(path, None)
        check_file(path)
    if format in ("las", "laz"):

        def stream() -> Iterator[Cloud]:
            with naming(path, READABLE):
                for table in las.chunks(path):
                    yield replace(to_cloud(table, None, str(path)), category=category)

        return stream
    with naming(path, READABLE):
        table = read_table(path, format, columns if FORMATS[format].unnamed else None)
        if FORMATS[format].sampled or (table.faces is not None and not table.columns):
            table = sample(table, SURFACE, torch.Generator().manual_seed(0))
        cloud = to_cloud(table, None, str(path))
    cloud = with_labels(cloud, path)
    if category is not None:
        cloud.category = category
    return lambda: [cloud]

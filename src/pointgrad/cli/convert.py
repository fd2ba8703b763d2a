"""`pointgrad convert IN OUT`: from one format to another, or to fewer points."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from tyro.conf import Positional, arg

from pointgrad import data
from pointgrad.ops.sampling import voxel_sampling

from .fail import fail

WRONG = 2  # exit status, as the help of the command says
LAS = (".las", ".laz")


@dataclass
class Convert:
    """Converts a file of points to another format, with all its columns, and may thin it or sample a mesh.

    A LAS made of a LAS keeps version, point format, scale, offset and coordinate system. What was in OUT before is
    replaced only when all is written. Exit status: 0; 2 if a file cannot be read or written, or a wrong command line.
    """

    source: Annotated[Positional[Path], arg(metavar="IN")]
    """The file to read."""

    target: Annotated[Positional[Path], arg(metavar="OUT")]
    """The file to write; its suffix says the format."""

    sample: int = 0
    """So many points at random: of the faces of a mesh by area, else of the points. 0: all."""

    voxel: float = 0.0
    """Keep one point in each cube of this edge length. 0: all."""

    seed: int = 0
    """Of --sample."""

    columns: str | None = None
    """Names of the columns of a source that has none of its own: --columns "x y z class intensity"."""

    labels: str | None = None
    """The column that holds the class of each point, if it is not called label, class, classification or the like."""

    encoding: str | None = None
    """Of PLY: binary_little_endian, binary_big_endian, ascii. Of PCD: binary_compressed, binary, ascii."""

    lossy: bool = False
    """Leave out columns that the target's format cannot hold, instead of refusing."""

    def run(self) -> int:
        try:
            generator = torch.Generator().manual_seed(self.seed)
            cloud = data.read(
                self.source, columns=self.columns, labels=self.labels, sample=self.sample, generator=generator
            )
            if self.voxel:
                cloud = cloud.select(voxel_sampling(cloud.world(), self.voxel).index)
            both = all(path.suffix.lower() in LAS for path in (self.source, self.target))
            like = self.source if both else None
            data.write(self.target, cloud, encoding=self.encoding, like=like, lossy=self.lossy)
        except (ValueError, ModuleNotFoundError) as error:
            return fail("convert", WRONG, str(error).splitlines()[0])
        print(f"{self.target}: {len(cloud):,} points")
        return 0

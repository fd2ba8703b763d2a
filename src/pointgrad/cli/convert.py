"""`pointgrad convert IN OUT`: convert a file to another format, or reduce its points."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from tyro.conf import Positional, arg

from pointgrad import data
from pointgrad.errors import one_line, printable
from pointgrad.ops.sampling import voxel_sampling

from .status import ExitStatus, fail

LAS = (".las", ".laz")


@dataclass
class Convert:
    """Convert a point cloud file to another format with all its columns; optionally thin it or sample a mesh.

    A LAS file converted from LAS keeps version, point format, scale, offset and coordinate system. An existing OUT is
    replaced only once the new file is complete. Exit status: 0; 2 if a file cannot be read or written, or for an
    invalid command line.
    """

    source: Annotated[Positional[Path], arg(metavar="IN")]
    """File to read."""

    target: Annotated[Positional[Path], arg(metavar="OUT")]
    """File to write; its suffix determines the format."""

    sample: int = 0
    """Number of random points to keep: sampled on the faces of a mesh by area, else from the points. 0: all."""

    voxel: float = 0.0
    """Keep one point in each cube of this edge length. 0: all."""

    seed: int = 0
    """Random seed of --sample."""

    columns: str | None = None
    """Names of the columns, for a file that does not name them: --columns "x y z class intensity"."""

    labels: str | None = None
    """Column with the class of each point, if its name is not label, class, classification or similar."""

    encoding: str | None = None
    """PLY: binary_little_endian, binary_big_endian or ascii. PCD: binary_compressed, binary or ascii."""

    lossy: bool = False
    """Drop columns that the target format cannot hold, instead of failing."""

    def run(self) -> int:
        try:
            if self.sample < 0:
                raise ValueError(f"sample must be at least 0, got {self.sample}")
            if not 0 <= self.voxel < math.inf:
                raise ValueError(f"voxel must be 0 or a positive edge length, got {self.voxel}")
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
            reason = one_line(error, first=True).replace("if lossy)", "with --lossy)")
            return fail("convert", ExitStatus.USAGE, reason, self)
        print(f"{printable(self.target)}: {len(cloud):,} points")
        return ExitStatus.OK

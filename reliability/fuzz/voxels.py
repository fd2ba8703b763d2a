"""voxelize: all of it to the bit."""

import pointgrad

from .draw import Draw
from .operators import Arguments, Operator
from .sampling import BAD_EDGES, edge


def _voxelize(draw: Draw) -> Arguments:
    layout, batch = draw.layout()
    points = draw.clouds("points", "", draw.dtype(), 3, layout, batch, most=70_001, edges=(1023, 1024, 1025, 70_001))
    return {**points, "size": edge(draw)}


OPERATORS = [Operator("voxelize", pointgrad.voxelize, _voxelize, bad_arguments={"size": BAD_EDGES})]

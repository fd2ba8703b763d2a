"""Sparse convolution: submanifold with a given map, the map itself, and stride 2 with its map.

The scenes are surfaces: the shell of a sphere, and a simulated LiDAR sweep. Voxels at random places would have almost
no neighbors, so that a convolution would be little more than one matrix product.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pointgrad import KernelMap, sparse_conv, strided_map, submanifold_map, voxelize
from pointgrad.catalog.base import Passes
from pointgrad.catalog.sparse import neighbors

from .. import forms
from ..comparison import Comparison, Implementation, Row, Setup

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
PASSES: tuple[Passes, ...] = ("forward", "forward + backward")


def shell(side: int, device: str) -> Tensor:
    """Voxels (N, 3) of a grid of side^3 whose distance from the center is between side / 2 - 1.25 and side / 2."""
    axis = torch.arange(side, device=device)
    square = (axis - (side - 1) / 2).square()
    parts = []
    for x in range(side):  # one layer at a time: a grid of 512^3 would take gigabytes
        radius = (square[x] + square[:, None] + square).sqrt()
        y, z = ((radius <= side / 2) & (radius >= side / 2 - 1.25)).nonzero(as_tuple=True)
        parts.append(torch.stack([torch.full_like(y, x), y, z], 1))
    return torch.cat(parts)


def sweep(steps: int, device: str) -> Tensor:
    """Voxels of 5 cm (N, 3) of a simulated sweep: 64 beams, this many directions, a street between walls."""
    generator = torch.Generator().manual_seed(0)
    down = torch.linspace(-2.0, 24.8, 64).deg2rad()
    turn = torch.arange(steps) * (2 * math.pi / steps)
    ground = torch.where(down > 0, 1.73 / down.sin().clamp(min=1e-3), torch.inf)[:, None]
    walls = (6.0 / turn.sin().abs().clamp(min=0.05)) * (1 + 0.3 * torch.sin(9 * turn).round())
    distance = torch.minimum(ground, walls / down.cos()[:, None]).clamp(max=80.0)
    distance = distance + 0.02 * torch.randn(distance.shape, generator=generator)
    flat = distance * down.cos()[:, None]
    points = torch.stack([flat * turn.cos(), flat * turn.sin(), -distance * down.sin()[:, None]], -1)
    return voxelize(points.reshape(-1, 3).to(device), 0.05).coordinates


Pairs = list[tuple[Tensor, Tensor]]


def pairs_of(found: KernelMap) -> Pairs:
    """For each kernel position, the outputs that read an input, and these inputs."""
    rows = [column.nonzero()[:, 0] for column in (found.sources >= 0).unbind(1)]
    return [(into, found.sources[into, position].long()) for position, into in enumerate(rows)]


def by_position(features: Tensor, weight: Tensor, pairs: Pairs, rows: int) -> Tensor:
    """For each position: gather the rows that exist, multiply, and add to the outputs."""
    out = features.new_zeros(rows, weight.shape[2])
    for matrix, (into, source) in zip(weight, pairs, strict=True):
        out = out.index_add(0, into, features[source] @ matrix)
    return out


def strided_by_position(features: Tensor, weight: Tensor, coordinates: Tensor) -> Tensor:
    """A convolution with kernel 3, stride 2 and padding 1, with the search for its outputs."""
    axis = torch.arange(3, device=coordinates.device)
    moved = coordinates[:, None] + 1 - torch.cartesian_prod(axis, axis, axis)
    source, position = (moved % 2 == 0).all(-1).nonzero(as_tuple=True)
    outputs = torch.div(moved[source, position], 2, rounding_mode="floor")
    lowest = outputs.min(0).values
    sides = outputs.max(0).values - lowest + 1
    shifted = outputs - lowest
    key = (shifted[:, 0] * sides[1] + shifted[:, 1]) * sides[2] + shifted[:, 2]
    found, into = torch.unique(key, return_inverse=True)
    out = features.new_zeros(len(found), weight.shape[2])
    for number, matrix in enumerate(weight):
        chosen = (position == number).nonzero()[:, 0]
        out = out.index_add(0, into[chosen], features[source[chosen]] @ matrix)
    return out


@dataclass(frozen=True)
class Scene:
    """Voxels and the number of channels of their features.

    Attributes:
        size: Side of the shell, or number of directions of the sweep.
    """

    kind: str
    size: int
    channels: int

    @property
    def name(self) -> str:
        return f"shell {self.size}^3" if self.kind == "shell" else "LiDAR sweep"

    def coordinates(self, device: str) -> Tensor:
        return (shell if self.kind == "shell" else sweep)(self.size, device)


def inputs(scene: Scene, dtype: torch.dtype, device: str) -> tuple[Tensor, dict[str, Tensor]]:
    coordinates, channels = scene.coordinates(device), scene.channels
    features = torch.randn(len(coordinates), channels, device=device).to(dtype)
    weight = torch.randn(27, channels, channels, device=device).div((9 * channels) ** 0.5).to(dtype)
    return coordinates, {"features": features, "weight": weight}


def submanifold(passes: Passes, scene: Scene, dtype: torch.dtype, device: str) -> Comparison:
    coordinates, given = inputs(scene, dtype, device)
    found = submanifold_map(coordinates, 3)
    pairs = pairs_of(found)
    made = forms.compare(
        passes,
        lambda features, weight: sparse_conv(features, weight, found),
        {"gather, matmul, index_add": lambda features, weight: by_position(features, weight, pairs, len(coordinates))},
        given,
        ("features", "weight"),
        tolerance=TOLERANCE[dtype],
        work=("submanifold", {**given, "coordinates": coordinates}),
    )
    made.compiled = None  # the number of pairs differs for each position and scene
    return made


def strided(scene: Scene, dtype: torch.dtype, device: str) -> Comparison:
    coordinates, given = inputs(scene, dtype, device)
    made = forms.compare(
        "forward",
        lambda features, weight: sparse_conv(features, weight, strided_map(coordinates, 3, stride=2, padding=1)),
        {
            "unique, gather, matmul, index_add": lambda features, weight: strided_by_position(
                features, weight, coordinates
            )
        },
        given,
        tolerance=TOLERANCE[dtype],
        work=("strided", {**given, "coordinates": coordinates}),
    )
    made.compiled = None  # the number of outputs depends on the data
    return made


def building(scene: Scene, device: str) -> Comparison:
    coordinates = scene.coordinates(device)
    expected = functools.cache(lambda: neighbors(coordinates, 3))

    def check(received: Tensor) -> None:
        assert torch.equal(received.long(), expected()), "neighbors differ"

    return Comparison(
        Implementation(lambda: submanifold_map(coordinates, 3), lambda found: found.sources),
        check,
        {"sort + searchsorted": Implementation(lambda: neighbors(coordinates, 3))},
    )


def rows(setup: Setup) -> Iterator[Row]:
    if setup.quick:
        scenes = [Scene("shell", 12, 16), Scene("sweep", 20, 8)]
    elif setup.gpu:
        scenes = [Scene("shell", 256, 256), Scene("shell", 512, 128), Scene("sweep", 1800, 64)]
    else:
        scenes = [Scene("shell", 161, 64), Scene("sweep", 1800, 64)]  # about 100,000 and 80,000 voxels
    dtypes = (torch.bfloat16, torch.float16, torch.float32) if setup.gpu else (torch.float32,)
    for scene in scenes:
        yield Row(f"submanifold map 3^3, {scene.name}", functools.partial(building, scene, setup.device))
        for dtype in dtypes:
            work = f"3^3, {scene.name}, C {scene.channels}, {str(dtype).removeprefix('torch.')}"
            for passes in PASSES:
                build = functools.partial(submanifold, passes, scene, dtype, setup.device)
                yield Row(f"submanifold {work}, {passes}", build)
            yield Row(f"stride 2 with its map {work}", functools.partial(strided, scene, dtype, setup.device))

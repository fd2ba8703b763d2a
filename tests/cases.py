"""The table behind the contract test: one entry per way to call an operator.

A new operator gets the whole contract by adding its cases here. A case builds its keyword arguments
from a `Make`, which knows dtype and device, so that the same case runs for all of them.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import pointgrad


@dataclass(frozen=True)
class Make:
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    def floats(self, *shape: int) -> Tensor:
        # Drawn in float64 on the CPU: the same numbers for every dtype and device, up to rounding.
        return torch.randn(*shape, dtype=torch.float64).to(self.device, self.dtype)

    def equal(self, *shape: int) -> Tensor:
        return torch.full(shape, 0.7, dtype=self.dtype, device=self.device)

    def grid(self, *shape: int) -> Tensor:
        """Few distinct values: many equal points and equal distances."""
        return torch.randint(0, 3, shape).to(self.device, self.dtype)

    def index(self, rows: int, *shape: int) -> Tensor:
        """Indices into `rows` rows, some of them -1."""
        return torch.randint(-1, rows, shape).to(self.device)

    def ints(self, *values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)


@dataclass(frozen=True)
class Case:
    name: str
    call: Callable[..., Any]
    inputs: Callable[[Make], dict[str, Any]]
    differentiable: tuple[str, ...] = ()
    large: Callable[[Make], dict[str, Any]] | None = None  # enough work for several threads
    seeded: bool = False  # draws from torch's generator
    waits: bool = False  # on a GPU, the host hands something over or must learn the size of the result

    @property
    def operator(self) -> Callable[..., Any]:
        """The public function, which `call` may wrap."""
        return getattr(self.call, "__wrapped__", self.call)

    def __call__(self, arguments: dict[str, Any]) -> tuple[Tensor, ...]:
        if self.seeded:
            torch.manual_seed(1)
        result = self.call(**arguments)
        return tuple(result) if isinstance(result, tuple) else (result,)


def _gather_cases() -> list[Case]:
    grads = ("features",)
    gather, group = pointgrad.gather, pointgrad.group
    return [
        Case(
            "gather/packed", gather, lambda m: {"features": m.floats(7, 5), "index": m.index(7, 11)}, grads,
            large=lambda m: {"features": m.floats(997, 67), "index": m.index(997, 20011)},
        ),
        Case(
            "gather/padded", gather, lambda m: {"features": m.floats(3, 7, 5), "index": m.index(7, 3, 4)}, grads,
            large=lambda m: {"features": m.floats(3, 97, 33), "index": m.index(97, 3, 9001)},
        ),
        Case("gather/one-row", gather, lambda m: {"features": m.floats(1, 1), "index": m.ints(0, 0, -1)}, grads),
        Case("gather/same-row", gather, lambda m: {"features": m.floats(3, 5), "index": m.ints(*[2] * 40)}, grads),
        Case("gather/nothing", gather, lambda m: {"features": m.floats(0, 3), "index": m.ints(-1, -1)}, grads),
        Case("gather/empty-index", gather, lambda m: {"features": m.floats(4, 3), "index": m.index(4, 0)}, grads),
        Case("gather/no-channels", gather, lambda m: {"features": m.floats(4, 0), "index": m.index(4, 6)}, grads),
        Case("gather/no-clouds", gather, lambda m: {"features": m.floats(0, 4, 3), "index": m.index(4, 0, 2)}, grads),
        Case(
            "gather/int32-index", gather,
            lambda m: {"features": m.floats(7, 5), "index": m.index(7, 11).int()}, grads,
        ),
        Case(
            "group/packed", group, lambda m: {"features": m.floats(7, 5), "index": m.index(7, 4, 3)}, grads,
            large=lambda m: {"features": m.floats(1009, 3), "index": m.index(1009, 4001, 16)},
        ),
        Case("group/padded", group, lambda m: {"features": m.floats(2, 7, 5), "index": m.index(7, 2, 4, 3)}, grads),
        Case(
            "group/relative-packed", group,
            lambda m: {
                "features": m.floats(7, 2), "index": m.index(7, 4, 3), "points": m.floats(7, 3),
                "centers": m.floats(4, 3),
            },
            ("features", "points", "centers"),
        ),
        Case(
            "group/relative-padded", group,
            lambda m: {
                "features": m.floats(2, 5, 2), "index": m.index(5, 2, 4, 3), "points": m.floats(2, 5, 3),
                "centers": m.floats(2, 4, 3),
            },
            ("features", "points", "centers"),
        ),
    ]  # fmt: skip


def _interpolate_cases() -> list[Case]:
    grads = ("corners", "points")
    trilinear = pointgrad.trilinear
    return [
        Case(
            "trilinear", trilinear, lambda m: {"corners": m.floats(5, 8, 4), "points": m.floats(5, 3) / 2}, grads,
            large=lambda m: {"corners": m.floats(3001, 8, 37), "points": m.floats(3001, 3)},
        ),
        Case(
            "trilinear/wide", trilinear,
            lambda m: {"corners": m.floats(3, 8, 19), "points": m.floats(3, 3) / 2}, grads,
        ),
        Case("trilinear/one", trilinear, lambda m: {"corners": m.floats(1, 8, 1), "points": m.floats(1, 3)}, grads),
        Case("trilinear/equal", trilinear, lambda m: {"corners": m.equal(4, 8, 2), "points": m.equal(4, 3)}, grads),
        Case("trilinear/empty", trilinear, lambda m: {"corners": m.floats(0, 8, 4), "points": m.floats(0, 3)}, grads),
        Case(
            "trilinear/no-features", trilinear,
            lambda m: {"corners": m.floats(3, 8, 0), "points": m.floats(3, 3)}, grads,
        ),
    ]  # fmt: skip


def _sampling_cases() -> list[Case]:
    @functools.wraps(pointgrad.farthest_point_sampling)
    def radii(**arguments: Any) -> Any:
        return pointgrad.farthest_point_sampling(**arguments, return_radius=True)

    fps, random, voxel = (
        pointgrad.farthest_point_sampling,
        pointgrad.random_sampling,
        pointgrad.voxel_sampling,
    )
    return [
        Case(
            "fps/one-cloud", fps, lambda m: {"points": m.floats(60, 3), "num_samples": 20},
            large=lambda m: {"points": m.floats(20000, 3), "num_samples": 600},
        ),
        Case(
            "fps/packed", radii,
            lambda m: {"points": m.floats(60, 3), "num_samples": 9, "offsets": m.ints(0, 9, 35, 60)},
            large=lambda m: {"points": m.floats(9000, 3), "num_samples": 100, "offsets": m.ints(0, 100, 4000, 9000)},
        ),
        Case(
            "fps/packed-counts", radii,
            lambda m: {
                "points": m.floats(40, 3), "num_samples": [3, 0, 11, 0], "offsets": m.ints(0, 7, 7, 30, 40),
            },
            waits=True,
        ),
        Case(
            "fps/padded", fps, lambda m: {"points": m.floats(3, 30, 3), "num_samples": 12},
            large=lambda m: {"points": m.floats(5, 3000, 3), "num_samples": 300},
        ),
        Case(
            "fps/padded-lengths", radii,
            lambda m: {"points": m.floats(4, 30, 3), "num_samples": 8, "lengths": m.ints(30, 5, 0, 8)},
        ),
        Case(
            "fps/padded-counts", radii,
            lambda m: {"points": m.floats(3, 20, 3), "num_samples": [4, 20, 0], "lengths": m.ints(20, 11, 3)},
            waits=True,
        ),
        Case(
            "fps/start", radii,
            lambda m: {"points": m.floats(2, 20, 3), "num_samples": 6, "start": m.ints(3, 19)},
        ),
        Case(
            "fps/start-set", radii,
            lambda m: {
                "points": m.floats(50, 3), "num_samples": 6, "offsets": m.ints(0, 20, 50),
                "start": torch.stack([m.ints(4, 9, 2), m.ints(29, -1, -1)]),
            },
        ),
        Case(
            "fps/random-start", fps,
            lambda m: {"points": m.floats(4, 30, 3), "num_samples": 5, "start": "random"},
            seeded=True, waits=True,
        ),
        Case("fps/ties", radii, lambda m: {"points": m.grid(2, 40, 3), "num_samples": 40}),
        Case("fps/all-equal", radii, lambda m: {"points": m.equal(2, 12, 3), "num_samples": 12}),
        Case("fps/single", radii, lambda m: {"points": m.floats(1, 3), "num_samples": 1}),
        Case("fps/all-points", radii, lambda m: {"points": m.floats(33, 3), "num_samples": 33}),
        Case("fps/empty", radii, lambda m: {"points": m.floats(2, 0, 3), "num_samples": 3}),
        Case("fps/no-clouds", radii, lambda m: {"points": m.floats(0, 5, 3), "num_samples": 3}),
        Case(
            "random/packed", random,
            lambda m: {"points": m.floats(40, 3), "num_samples": 5, "offsets": m.ints(0, 5, 20, 40)},
            seeded=True, waits=True,
        ),
        Case(
            "random/packed-counts", random,
            lambda m: {"points": m.floats(40, 3), "num_samples": [5, 0, 20], "offsets": m.ints(0, 5, 20, 40)},
            seeded=True, waits=True,
        ),
        Case(
            "random/padded", random,
            lambda m: {"points": m.floats(3, 9, 3), "num_samples": 12, "lengths": m.ints(9, 0, 4)},
            seeded=True, waits=True,
        ),
        Case(
            "random/empty", random, lambda m: {"points": m.floats(2, 0, 3), "num_samples": 3},
            seeded=True, waits=True,
        ),
        Case(
            "voxel/packed", voxel,
            lambda m: {"points": m.floats(60, 3), "voxel_size": 0.9, "offsets": m.ints(0, 20, 20, 60)},
            waits=True,
            large=lambda m: {"points": m.floats(9000, 3), "voxel_size": 0.2, "offsets": m.ints(0, 4000, 9000)},
        ),
        Case(
            "voxel/padded", voxel,
            lambda m: {"points": m.floats(3, 20, 3), "voxel_size": (0.5, 1.0, 2.0), "lengths": m.ints(20, 0, 7)},
        ),
        Case("voxel/ties", voxel, lambda m: {"points": m.grid(2, 40, 3), "voxel_size": 2.0}),
        Case("voxel/single", voxel, lambda m: {"points": m.floats(1, 3), "voxel_size": 1.0}, waits=True),
        Case("voxel/empty", voxel, lambda m: {"points": m.floats(0, 3), "voxel_size": 1.0}, waits=True),
    ]  # fmt: skip


CASES = _gather_cases() + _interpolate_cases() + _sampling_cases()

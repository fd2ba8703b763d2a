"""Ways to call voxelize, right and wrong."""

import functools
from typing import Any

import torch

import pointgrad

from .base import Case, ints

voxelize = pointgrad.voxelize


@functools.wraps(voxelize)
def tensors(**arguments: Any) -> tuple[torch.Tensor, ...]:
    """Without what the other layout has."""
    return tuple(part for part in voxelize(**arguments) if part is not None)


CASES = [
    Case(
        "voxelize/one-cloud", tensors, lambda m: {"points": m.floats(50, 3), "size": 0.7}, waits=True,
        large=lambda m: {"points": m.floats(20011, 3), "size": 0.1},
    ),
    Case(
        "voxelize/packed", tensors,
        lambda m: {"points": m.floats(60, 3), "size": (0.9, 1.0, 2.0), "offsets": m.ints(0, 20, 20, 60, 60)}, waits=True,
        large=lambda m: {"points": m.floats(9000, 3), "size": 0.2, "offsets": m.ints(0, 4000, 4000, 7001, 9000)},
    ),
    Case(
        "voxelize/padded", tensors,
        lambda m: {"points": m.floats(3, 20, 3), "size": 0.8, "lengths": m.ints(20, 0, 7)},
        large=lambda m: {"points": m.floats(5, 3000, 3), "size": 0.2, "lengths": m.ints(3000, 0, 7, 2999, 1500)},
    ),
    Case("voxelize/padded-full", tensors, lambda m: {"points": m.floats(2, 30, 3), "size": 1.0}),
    Case("voxelize/borders", tensors, lambda m: {"points": m.grid(2, 40, 3) - 1, "size": 1.0}),
    Case("voxelize/all-equal", tensors, lambda m: {"points": m.equal(9, 3), "size": 0.1}, waits=True),
    Case("voxelize/single", tensors, lambda m: {"points": m.floats(1, 3), "size": 1.0}, waits=True),
    Case("voxelize/empty", tensors, lambda m: {"points": m.floats(0, 3), "size": 1.0}, waits=True),
    Case("voxelize/no-clouds", tensors, lambda m: {"points": m.floats(0, 5, 3), "size": 1.0}),
    Case("voxelize/fine", tensors, lambda m: {"points": m.floats(50, 3), "size": 1e-18}, waits=True),
]  # fmt: skip

points = torch.zeros(6, 3)
padded = torch.zeros(2, 6, 3)

# What metadata shows: the same on every device.
BAD_METADATA = [
    (lambda: voxelize(None, 1.0), TypeError, "points must be a torch.Tensor, got NoneType None"),
    (lambda: voxelize(points, "1"), TypeError, "size must be a number or three numbers, got str '1'"),
    (lambda: voxelize(points, True), TypeError, "size must be a number or three numbers, got bool True"),
    (lambda: voxelize(points, (1.0, 2.0)), ValueError, "size must be one number or three, got 2 numbers"),
    (lambda: voxelize(points, 0.0), ValueError, "size must be finite and positive, got 0.0"),
    (lambda: voxelize(points, (1.0, -1.0, 1.0)), ValueError, "size must be finite and positive, got -1.0"),
    (lambda: voxelize(points, 1e39), ValueError, "size must be finite and positive, got 1e+39"),
    (lambda: voxelize(torch.zeros(6, 2), 1.0), ValueError, "points must be (N, 3) or (B, N, 3), got (6, 2)"),
    (lambda: voxelize(points.long(), 1.0), TypeError, "points must be float32, float64, float16 or bfloat16, got int64"),
    (lambda: voxelize(padded, 1.0, offsets=ints(0, 6)), ValueError, "offsets must be None for padded points (B, N, 3); use lengths, got a tensor"),
    (lambda: voxelize(points, 1.0, lengths=ints(6)), ValueError, "lengths must be None for packed points (N, 3); use offsets, got a tensor"),
]  # fmt: skip

# What only values show: on CPU tensors.
BAD_VALUES = [
    (lambda: voxelize(points, 1.0, offsets=ints(0, 7)), "offsets[-1] must equal N = 6, got 7"),
    (lambda: voxelize(padded, 1.0, lengths=ints(7, 0)), "lengths[0] must be in [0, N = 6], got 7"),
]  # fmt: skip

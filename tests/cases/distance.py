"""Ways to call the distance between clouds, right and wrong."""

import functools
from dataclasses import replace
from typing import Any

import torch

import pointgrad

from .base import Case, ints

chamfer = pointgrad.chamfer_distance
both = ("points", "targets")


@functools.wraps(pointgrad.chamfer_distance)
def to_targets(**arguments: Any) -> Any:
    return pointgrad.chamfer_distance(**arguments, direction="to_targets", reduction="none").to_targets


CASES = [
    Case(
        "chamfer/one-cloud", chamfer, lambda m: {"points": m.floats(12, 3), "targets": m.floats(15, 3)}, both,
        large=lambda m: {"points": m.floats(9000, 3), "targets": m.floats(7000, 3)},
    ),
    Case(
        "chamfer/packed", chamfer,
        lambda m: {
            "points": m.floats(20, 3), "targets": m.floats(18, 3), "batch_reduction": "none",
            "offsets": m.ints(0, 8, 8, 20), "target_offsets": m.ints(0, 6, 9, 18),
        },
        both,
    ),
    Case(
        "chamfer/padded", chamfer,
        lambda m: {
            "points": m.floats(3, 9, 3), "targets": m.floats(3, 7, 3), "reduction": "sum",
            "lengths": m.ints(9, 4, 0), "target_lengths": m.ints(7, 2, 3),
        },
        both,
    ),
    Case("chamfer/to-targets", to_targets, lambda m: {"points": m.floats(2, 9, 2), "targets": m.floats(2, 7, 2)}, both),
    Case(
        "chamfer/to-points", chamfer,
        lambda m: {"points": m.floats(9, 5), "targets": m.floats(7, 5), "direction": "to_points"}, both,
    ),
    Case("chamfer/same", chamfer, lambda m: {"points": m.equal(9, 3), "targets": m.equal(4, 3)}, both, smooth=False),
    Case("chamfer/ties", chamfer, lambda m: {"points": m.grid(9, 3), "targets": m.grid(8, 3)}, both, smooth=False),
    Case("chamfer/one-empty", chamfer, lambda m: {"points": m.floats(9, 3), "targets": m.floats(0, 3)}, both),
    Case("chamfer/no-clouds", chamfer, lambda m: {"points": m.floats(0, 4, 3), "targets": m.floats(0, 5, 3)}, both),
]  # fmt: skip
CASES = [replace(case, composed=True) for case in CASES]

points = torch.zeros(6, 3)
padded = torch.zeros(2, 6, 3)

BAD_METADATA = [
    (lambda: chamfer(points, None), TypeError, "targets must be a torch.Tensor, got NoneType None"),
    (lambda: chamfer(points, padded), ValueError, "targets must be (M, D) with D = 3, like points, got (2, 6, 3)"),
    (lambda: chamfer(padded, padded[:1]), ValueError, "targets must have as many clouds as points, B = 2, got B = 1"),
    (lambda: chamfer(points, points.double()), TypeError, "targets must have the dtype of points, float32, got float64"),
    (lambda: chamfer(points, points.to("meta")), ValueError, "targets must be on the device of points, cpu, got meta"),
    (lambda: chamfer(points, points, reduction="max"), ValueError, """reduction must be "mean", "sum" or "none", got 'max'"""),
    (lambda: chamfer(points, points, batch_reduction=None), TypeError, 'batch_reduction must be "mean", "sum" or "none", got NoneType None'),
    (lambda: chamfer(points, points, direction="there"), ValueError, """direction must be "both", "to_targets" or "to_points", got 'there'"""),
    (lambda: chamfer(points, points, target_lengths=ints(6)), ValueError, "target_lengths must be None for packed targets (N, D); use target_offsets, got a tensor"),
]  # fmt: skip

BAD_VALUES = [
    (lambda: chamfer(points, points, offsets=ints(0, 5), target_offsets=ints(0, 6)), "offsets[-1] must equal N = 6, got 5"),
    (lambda: chamfer(points, points, offsets=ints(0, 6), target_offsets=ints(0, 7)), "target_offsets[-1] must equal N = 6, got 7"),
]  # fmt: skip

"""Ways to call interpolation, right and wrong."""

import torch

import pointgrad

from .base import Case

grads = ("corners", "points")
trilinear = pointgrad.trilinear

CASES = [
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

points = torch.zeros(6, 3)
corners = torch.zeros(6, 8, 4)

# What metadata shows: the same on every device.
BAD_METADATA = [
    (lambda: pointgrad.trilinear(corners, None), TypeError, "points must be a torch.Tensor, got NoneType None"),
    (lambda: pointgrad.trilinear(torch.zeros(6, 7, 4), points), ValueError, "corners must be (N, 8, F), got (6, 7, 4)"),
    (lambda: pointgrad.trilinear(corners, points[:5]), ValueError, "points must be (N, 3) = (6, 3), got (5, 3)"),
    (lambda: pointgrad.trilinear(corners.long(), points), TypeError, "corners must be float32, float64, float16 or bfloat16, got int64"),
    (lambda: pointgrad.trilinear(corners, points.half()), TypeError, "points must have the dtype of corners, float32, got float16"),
    (lambda: pointgrad.trilinear(corners, points.to("meta")), ValueError, "points must be on the device of corners, cpu, got meta"),
]  # fmt: skip

BAD_VALUES = []

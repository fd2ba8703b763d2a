"""Ways to call gather and group, right and wrong."""

from dataclasses import replace
from typing import Any

import torch

import pointgrad

from .base import Case, ints

grads = ("features",)


def rows(arguments: dict[str, Any]) -> int:
    return arguments["features"].shape[-2]


gather, group = pointgrad.gather, pointgrad.group

CASES = [
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
CASES = [replace(case, rows=rows) for case in CASES]

points = torch.zeros(6, 3)
padded = torch.zeros(2, 6, 3)
features = torch.zeros(6, 4)
index = torch.zeros(5, dtype=torch.int64)

# What metadata shows: the same on every device.
BAD_METADATA = [
    (lambda: pointgrad.group(features.long(), index[:, None], points=points.long(), centers=points[:5].long()), TypeError, "features must be float32, float64, float16 or bfloat16, got int64"),
    (lambda: pointgrad.gather([1.0], index), TypeError, "features must be a torch.Tensor, got list"),
    (lambda: pointgrad.gather(torch.zeros(7), index), ValueError, "features must be (N, C) or (B, N, C), got (7,)"),
    (lambda: pointgrad.gather(features, ints()[None]), ValueError, "index must be (M,) with features (N, C), or (B, M) with (B, N, C), got (1, 0)"),
    (lambda: pointgrad.gather(padded, index.expand(3, 5)), ValueError, "index must be (M,) with features (N, C), or (B, M) with (B, N, C), got (3, 5)"),
    (lambda: pointgrad.gather(features, index.double()), TypeError, "index must be int64 or int32, got float64"),
    (lambda: pointgrad.gather(features.to(torch.complex64), index), TypeError, "features must be float32, float64, float16, bfloat16, int64, int32, int16, int8, uint8 or bool, got complex64"),
    (lambda: pointgrad.gather(features, index.to("meta")), ValueError, "index must be on the device of features, cpu, got meta"),
    (lambda: pointgrad.group(features, index), ValueError, "index must be (M, K) with features (N, C), or (B, M, K) with (B, N, C), got (5,)"),
    (lambda: pointgrad.group(features, index[:, None], points=points), TypeError, "centers must be a torch.Tensor, got NoneType None"),
    (lambda: pointgrad.group(features, index[:, None], points=points, centers=points), ValueError, "centers must be (5, 3), got (6, 3)"),
    (lambda: pointgrad.group(features, index[:, None], points=points.double(), centers=points[:5].double()), TypeError, "points must have the dtype of features, float32, got float64"),
]  # fmt: skip

# What only values show: on CPU tensors.
BAD_VALUES = [
    (lambda: pointgrad.gather(features, ints(0, 6)), "index must be -1 (nothing here) or in [0, 6), got 6"),
    (lambda: pointgrad.gather(features, ints(0, -2)), "index must be -1 (nothing here) or in [0, 6), got -2"),
    (lambda: pointgrad.gather(padded, ints(0, 1, 2, 60).view(2, 2)), "index must be -1 (nothing here) or in [0, 6), got 60"),
    (lambda: pointgrad.group(features, ints(0, 6)[None]), "index must be -1 (nothing here) or in [0, 6), got 6"),
]  # fmt: skip

"""Ways to call aggregate, masked_softmax and neighbor_attention, right and wrong."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import pointgrad

from .base import Case, Make, ints

aggregate = pointgrad.aggregate


def rows(arguments: dict[str, Any]) -> int:
    return arguments["values"].shape[-2]


def sums(m: Make, index: Tensor, num_rows: int, channels: int, groups: int | None = None) -> dict[str, Any]:
    """Arguments of aggregate for an index."""
    weights = index.shape if groups is None else (*index.shape, groups)
    return {"weights": m.floats(*weights), "values": m.floats(*index.shape[:-2], num_rows, channels), "index": index}


AGGREGATE = [
    Case(
        "aggregate/packed", aggregate, lambda m: sums(m, m.index(7, 4, 3), 7, 5),
        large=lambda m: sums(m, m.index(997, 2003, 9), 997, 67),
    ),
    Case(
        "aggregate/padded", aggregate, lambda m: sums(m, m.index(5, 2, 4, 3), 5, 3),
        large=lambda m: sums(m, m.index(97, 3, 801, 8), 97, 33),
    ),
    Case(
        "aggregate/groups", aggregate, lambda m: sums(m, m.index(7, 4, 3), 7, 6, 2),
        large=lambda m: sums(m, m.index(397, 1003, 9), 397, 64, 8),
    ),
    Case("aggregate/per-channel", aggregate, lambda m: sums(m, m.index(5, 2, 3, 3), 5, 3, 3)),
    Case("aggregate/one-neighbour", aggregate, lambda m: sums(m, m.index(3, 5, 1), 3, 1)),
    Case("aggregate/same-row", aggregate, lambda m: sums(m, m.ints(*[2] * 40).view(8, 5), 3, 4)),
    Case("aggregate/no-rows", aggregate, lambda m: sums(m, m.ints(-1, -1).view(1, 2), 0, 3)),
    Case("aggregate/no-centres", aggregate, lambda m: sums(m, m.index(4, 0, 3), 4, 2)),
    Case("aggregate/no-neighbours", aggregate, lambda m: sums(m, m.index(4, 3, 0), 4, 2)),
    Case("aggregate/no-channels", aggregate, lambda m: sums(m, m.index(4, 3, 2), 4, 0)),
    Case("aggregate/no-clouds", aggregate, lambda m: sums(m, m.index(4, 0, 3, 2), 4, 2)),
    Case("aggregate/int32-index", aggregate, lambda m: sums(m, m.index(7, 4, 3).int(), 7, 5)),
]  # fmt: skip
AGGREGATE = [replace(case, differentiable=("weights", "values"), rows=rows) for case in AGGREGATE]

CASES = AGGREGATE

BAD_METADATA = []
BAD_VALUES = []

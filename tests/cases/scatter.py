"""Ways to call scatter, segment, segment_softmax and histogram, right and wrong."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

import pointgrad

from .base import Case, Make, ints

scatter, segment, segment_softmax = pointgrad.scatter, pointgrad.segment, pointgrad.segment_softmax
histogram = pointgrad.histogram
grads = ("values",)


def size(arguments: dict[str, Any]) -> int:
    return arguments["size"]


def uneven(m: Make, rows: int) -> torch.Tensor:
    """Offsets of segments of every kind: empty ones, short ones, and one that is long enough to be split."""
    cuts = torch.cat([torch.randint(0, 900, (40,)), torch.tensor([0, 0, 900, 900, rows, rows])])
    return cuts.sort().values.to(m.device)


CASES = [
    *(
        Case(
            f"scatter/{reduce}-packed", scatter,
            lambda m, r=reduce: {"values": m.floats(23, 5), "index": m.index(7, 23), "size": 8, "reduce": r}, grads,
            large=lambda m, r=reduce: {
                "values": m.floats(20011, 67), "index": m.index(997, 20011), "size": 997, "reduce": r,
            },
            rows=size,
        )
        for reduce in ("sum", "mean", "max", "min")
    ),
    *(
        Case(
            f"scatter/{reduce}-padded", scatter,
            lambda m, r=reduce: {"values": m.floats(3, 9, 4), "index": m.index(5, 3, 9), "size": 5, "reduce": r},
            grads,
            large=lambda m, r=reduce: {
                "values": m.floats(3, 9001, 33), "index": m.index(97, 3, 9001), "size": 97, "reduce": r,
            },
            rows=size,
        )
        for reduce in ("sum", "mean", "max", "min")
    ),
    *(
        Case(
            f"scatter/{reduce}-arg", scatter,
            lambda m, r=reduce: {
                "values": m.floats(2, 9, 3), "index": m.index(4, 2, 9), "size": 6, "reduce": r, "return_arg": True,
            },
            grads, rows=size,
        )
        for reduce in ("max", "min")
    ),
    Case(
        "scatter/ties", scatter,
        lambda m: {"values": m.grid(40, 3), "index": m.index(5, 40), "size": 5, "reduce": "max", "return_arg": True},
        grads, smooth=False, rows=size,
    ),
    Case(
        "scatter/all-equal", scatter,
        lambda m: {"values": m.equal(9, 2), "index": m.index(2, 9), "size": 2, "reduce": "min", "return_arg": True},
        grads, smooth=False, rows=size,
    ),
    Case(
        "scatter/one-row", scatter,
        lambda m: {"values": m.floats(1, 1), "index": m.ints(0), "size": 1, "reduce": "mean"}, grads, rows=size,
    ),
    Case(
        "scatter/one-group", scatter,
        lambda m: {"values": m.floats(40, 3), "index": m.ints(*[2] * 40), "size": 4, "reduce": "max"}, grads, rows=size,
    ),
    *(
        Case(
            f"scatter/{reduce}-{name}", scatter,
            lambda m, r=reduce, shape=shape, s=groups: {
                "values": m.floats(*shape), "index": m.index(s, *shape[:-1]), "size": s, "reduce": r,
            },
            grads,
        )
        for reduce in ("sum", "mean", "max")
        for name, shape, groups in (
            ("no-entries", (0, 3), 4), ("no-channels", (5, 0), 4), ("no-clouds", (0, 5, 3), 4), ("no-groups", (5, 3), 0),
        )
    ),
    Case(
        "scatter/int32-index", scatter,
        lambda m: {"values": m.floats(11, 5), "index": m.index(7, 11).int(), "size": 7, "reduce": "max"}, grads,
        rows=size,
    ),
    *(
        Case(
            f"segment/{reduce}", segment,
            lambda m, r=reduce: {"values": m.floats(23, 5), "offsets": m.ints(0, 4, 4, 17, 23, 23), "reduce": r}, grads,
            large=lambda m, r=reduce: {"values": m.floats(9001, 33), "offsets": uneven(m, 9001), "reduce": r},
        )
        for reduce in ("sum", "mean", "max", "min")
    ),
    *(
        Case(
            f"segment/{reduce}-long", segment,
            lambda m, r=reduce: {"values": m.floats(1900, 2), "offsets": m.ints(0, 3, 1895, 1900), "reduce": r}, grads,
            smooth=False,  # smooth enough, but 3800 finite differences take long
        )
        for reduce in ("sum", "mean", "max")
    ),
    Case(
        "segment/ties", segment,
        lambda m: {"values": m.grid(1500, 2), "offsets": m.ints(0, 7, 9, 1500), "reduce": "min", "return_arg": True},
        grads, smooth=False,
    ),
    Case("segment/one-row", segment, lambda m: {"values": m.floats(1, 1), "offsets": m.ints(0, 1)}, grads),
    Case("segment/int32", segment, lambda m: {"values": m.floats(5, 2), "offsets": m.ints(0, 3, 5).int()}, grads),
    *(
        Case(
            f"segment/{reduce}-{name}", segment,
            lambda m, r=reduce, shape=shape, o=offsets: {"values": m.floats(*shape), "offsets": m.ints(*o), "reduce": r},
            grads,
        )
        for reduce in ("mean", "max")
        for name, shape, offsets in (("no-rows", (0, 3), (0, 0, 0)), ("no-channels", (5, 0), (0, 2, 5)), ("none", (0, 3), (0,)))
    ),
    Case(
        "segment_softmax", segment_softmax,
        lambda m: {"logits": m.floats(15, 3), "offsets": m.ints(0, 4, 4, 9, 10, 15)}, ("logits",),
        large=lambda m: {"logits": m.floats(9001, 8), "offsets": uneven(m, 9001)},
    ),
    Case(
        "segment_softmax/long", segment_softmax,
        lambda m: {"logits": m.floats(1500, 1), "offsets": m.ints(0, 2, 1500)}, ("logits",), smooth=False,
    ),
    Case("segment_softmax/one", segment_softmax, lambda m: {"logits": m.floats(1, 1), "offsets": m.ints(0, 1)}, ("logits",)),
    Case("segment_softmax/equal", segment_softmax, lambda m: {"logits": m.equal(8, 2), "offsets": m.ints(0, 8)}, ("logits",)),
    Case("segment_softmax/none", segment_softmax, lambda m: {"logits": m.floats(0, 2), "offsets": m.ints(0, 0)}, ("logits",)),
    Case(
        "histogram/counts", histogram, lambda m: {"index": m.index(7, 40), "size": 9},
        large=lambda m: {"index": m.index(997, 200011), "size": 997}, rows=size,
    ),
    Case("histogram/padded", histogram, lambda m: {"index": m.index(4, 3, 20), "size": 4}, rows=size),
    Case(
        "histogram/weights", histogram,
        lambda m: {"index": m.index(7, 40), "size": 7, "weights": m.floats(40)}, ("weights",), rows=size,
        large=lambda m: {"index": m.index(997, 200011), "size": 997, "weights": m.floats(200011)},
    ),
    Case(
        "histogram/padded-weights", histogram,
        lambda m: {"index": m.index(4, 3, 10), "size": 4, "weights": m.floats(3, 10)}, ("weights",), rows=size,
    ),
    Case("histogram/empty", histogram, lambda m: {"index": m.index(4, 0), "size": 4}),
    Case("histogram/no-bins", histogram, lambda m: {"index": m.ints(-1, -1), "size": 0}),
]  # fmt: skip

CASES = [
    replace(case, any_order=case.name.startswith(("scatter/sum", "scatter/mean", "scatter/one-row", "histogram")))
    for case in CASES
]

values = torch.zeros(6, 4)
padded = torch.zeros(2, 6, 4)
index = torch.zeros(6, dtype=torch.int64)
FLOATS = "float32, float64, float16 or bfloat16"
NUMBERS = "float32, float64, float16, bfloat16, int64 or int32"

# What metadata shows: the same on every device.
BAD_METADATA = [
    (lambda: scatter(np.zeros((6, 4)), index), TypeError, "values must be a torch.Tensor, got numpy.ndarray"),
    (lambda: scatter(values, [0]), TypeError, "index must be a torch.Tensor, got list"),
    (lambda: scatter(values, index, 2.0), TypeError, "size must be an int or None, got float 2.0"),
    (lambda: scatter(values, index, True), TypeError, "size must be an int or None, got bool True"),
    (lambda: scatter(values, index, -1), ValueError, "size must be at least 0, got -1"),
    (lambda: scatter(values, index, 1, 3), TypeError, 'reduce must be "sum", "mean", "max" or "min", got int 3'),
    (lambda: scatter(values, index, 1, "median"), ValueError, """reduce must be "sum", "mean", "max" or "min", got 'median'"""),
    (lambda: scatter(values, index, 1, return_arg=True), ValueError, 'return_arg must be False unless reduce is "max" or "min", got True'),
    (lambda: scatter(torch.zeros(6), index), ValueError, "values must be (E, C) or (B, E, C), got (6,)"),
    (lambda: scatter(values, index[:5]), ValueError, "index must be (E,) with values (E, C), or (B, E) with (B, E, C), got (5,)"),
    (lambda: scatter(padded, index), ValueError, "index must be (E,) with values (E, C), or (B, E) with (B, E, C), got (6,)"),
    (lambda: scatter(values.to(torch.int8), index), TypeError, f"values must be {NUMBERS}, got int8"),
    (lambda: scatter(values.long(), index, 1, "mean"), TypeError, f"values must be {FLOATS}, got int64"),
    (lambda: scatter(values, index.float()), TypeError, "index must be int64 or int32, got float32"),
    (lambda: scatter(values, index.to("meta"), 1), ValueError, "index must be on the device of values, cpu, got meta"),
    (lambda: segment(None, ints(0, 6)), TypeError, "values must be a torch.Tensor, got NoneType None"),
    (lambda: segment(values, [0, 6]), TypeError, "offsets must be a torch.Tensor, got list"),
    (lambda: segment(values, ints(0, 6), "last"), ValueError, """reduce must be "sum", "mean", "max" or "min", got 'last'"""),
    (lambda: segment(values, ints(0, 6), "mean", return_arg=True), ValueError, 'return_arg must be False unless reduce is "max" or "min", got True'),
    (lambda: segment(padded, ints(0, 6)), ValueError, "values must be (E, C), got (2, 6, 4)"),
    (lambda: segment(values, ints()), ValueError, "offsets must be (S + 1,), got (0,)"),
    (lambda: segment(values.bool(), ints(0, 6)), TypeError, f"values must be {NUMBERS}, got bool"),
    (lambda: segment(values, ints(0, 6).double()), TypeError, "offsets must be int64 or int32, got float64"),
    (lambda: segment(values, ints(0, 6).to("meta")), ValueError, "offsets must be on the device of values, cpu, got meta"),
    (lambda: segment_softmax(values.long(), ints(0, 6)), TypeError, f"logits must be {FLOATS}, got int64"),
    (lambda: segment_softmax(values[0], ints(0, 6)), ValueError, "logits must be (E, C), got (4,)"),
    (lambda: histogram([0], 3), TypeError, "index must be a torch.Tensor, got list"),
    (lambda: histogram(index, None), TypeError, "size must be an int, got NoneType None"),
    (lambda: histogram(index, -2), ValueError, "size must be at least 0, got -2"),
    (lambda: histogram(padded.long(), 3), ValueError, "index must be (E,) or (B, E), got (2, 6, 4)"),
    (lambda: histogram(index.float(), 3), TypeError, "index must be int64 or int32, got float32"),
    (lambda: histogram(index, 3, [1.0] * 6), TypeError, "weights must be a torch.Tensor, got list"),
    (lambda: histogram(index, 3, values), ValueError, "weights must be (6,) like index, got (6, 4)"),
    (lambda: histogram(index, 3, index.bool()), TypeError, f"weights must be {NUMBERS}, got bool"),
    (lambda: histogram(index, 3, values[:, 0].to("meta")), ValueError, "weights must be on the device of index, cpu, got meta"),
]  # fmt: skip

# What only values show: on CPU tensors.
BAD_VALUES = [
    (lambda: scatter(values, ints(0, 1, 2, 3, 4, 5), 5), "index must be -1 or in [0, 5), got 5"),
    (lambda: scatter(values, ints(0, 1, 2, 3, 4, 5), 5, "mean"), "index must be -1 or in [0, 5), got 5"),
    (lambda: scatter(values, ints(0, 1, 2, 3, 4, -2), 5, "max"), "index must be -1 or in [0, 5), got -2"),
    (lambda: scatter(values, ints(0, 1, 2, 3, 4, -2)), "index must be -1 or in [0, 5), got -2"),
    (lambda: segment(values, ints(1, 6)), "offsets[0] must be 0, got 1"),
    (lambda: segment(values, ints(0, 4, 2, 6), "max"), "offsets[2] must be at least offsets[1] = 4, got 2"),
    (lambda: segment(values, ints(0, 5), "mean"), "offsets[-1] must equal E = 6, got 5"),
    (lambda: segment_softmax(values, ints(0, 7)), "offsets[-1] must equal E = 6, got 7"),
    (lambda: histogram(index + 3, 3), "index must be -1 or in [0, 3), got 3"),
    (lambda: histogram(index + 3, 3, values[:, 0]), "index must be -1 or in [0, 3), got 3"),
]  # fmt: skip

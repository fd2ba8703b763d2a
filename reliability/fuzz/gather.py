"""gather and group."""

import torch

import pointgrad

from .draw import FLOATS, Draw
from .operators import Arguments, Operator, linear_in_each

# Several threads share more than 2^18 bytes.
EDGES = (2049, 4099)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def _features(draw: Draw) -> Arguments:
    padded, dtype = draw.flag("padded"), draw.dtype((*FLOATS, *FLOATS, *WHOLE))
    batch = (draw.number("clouds", 0, 3),) if padded else ()
    rows, channels = draw.size("rows", most=2049, edges=EDGES), draw.size("channels", most=65)
    if dtype.is_floating_point:
        features = draw.floats("features", dtype, *batch, rows, channels)
    else:
        features = draw.index("features", 120, *batch, rows, channels).to(dtype)
    return {"features": features}


def _gather(draw: Draw) -> Arguments:
    arguments = _features(draw)
    *batch, rows, _ = arguments["features"].shape
    return {**arguments, "index": draw.index("index", rows, *batch, draw.size("picks", most=4099, edges=EDGES))}


def _group(draw: Draw) -> Arguments:
    arguments = _features(draw)
    features = arguments["features"]
    *batch, rows, _ = features.shape
    picks, k = draw.size("picks", most=65), draw.size("k", most=33)
    arguments["index"] = draw.index("index", rows, *batch, picks, k)
    if features.is_floating_point() and draw.flag("relative"):
        arguments["points"] = draw.floats("points", features.dtype, *batch, rows, 3)
        arguments["centers"] = draw.floats("centers", features.dtype, *batch, picks, 3)
    return arguments


def _rows(arguments: Arguments) -> int:
    return arguments["features"].shape[-2]


GRADS = ("features", "points", "centers")
OPERATORS = [
    Operator(
        "gather", pointgrad.gather, _gather, GRADS, linear_in_each(pointgrad.gather, GRADS, copies=True), rows=_rows,
        bad={"index": [None, 3], "features": [None, 1.0]},
    ),
    Operator(
        "group", pointgrad.group, _group, GRADS,
        linear_in_each(pointgrad.group, GRADS, copies=True, centers=-1), rows=_rows,
        bad={"index": [None, 3], "features": [None, 1.0], "points": [2.0]},
    ),
]  # fmt: skip

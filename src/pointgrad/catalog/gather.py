"""gather and group."""

import torch
from torch import Tensor

from pointgrad import gather, group, knn

from .base import EACH_PASS, Benchmark, OpInfo, Precision, Sample, Scaling, any_index, ints
from .errors import bad_values, each, got, tensor_errors, type_error, value_error
from .inputs import Draw, Make
from .magnitudes import Arguments, linear_in_each
from .scaling import NEIGHBORS, check_picked, exact_features

GRADS = ("features", "points", "centers")
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
EDGES = (2049, 4099)  # threads share more than 2^18 bytes


def rows(m: Make, batch: tuple[int, ...], num_rows: int, channels: int, *picks: int) -> Arguments:
    """Features and an index of any shape."""
    return {"features": m.floats(*batch, num_rows, channels), "index": m.index(num_rows, *batch, *picks)}


def relative(m: Make, batch: tuple[int, ...], num_rows: int, channels: int, centers: int, k: int) -> Arguments:
    """Features with points and centers, of which group returns the differences."""
    places = {"points": m.floats(*batch, num_rows, 3), "centers": m.floats(*batch, centers, 3)}
    return {**rows(m, batch, num_rows, channels, centers, k), **places}


def plain_gather(features: Tensor, index: Tensor) -> Tensor:
    """features[index], zeros for -1."""
    return torch.where((index >= 0).unsqueeze(-1), features[index.clamp(min=0)], 0)


def plain_group(features: Tensor, index: Tensor, points: Tensor | None = None, centers: Tensor | None = None) -> Tensor:
    grouped = plain_gather(features, index)
    if points is None or centers is None:
        return grouped
    offset = torch.where((index >= 0).unsqueeze(-1), points[index.clamp(min=0)] - centers.unsqueeze(1), 0)
    return torch.cat([offset, grouped], -1)


def many_picks(m: Make, num_rows: int, *picks: int) -> Arguments:
    """64 channels, and an index without -1."""
    return {"features": m.floats(num_rows, 64), "index": m.below(num_rows, *picks)}


def near_picks(m: Make, num_points: int) -> Arguments:
    """Neighbor lists of a cloud whose points are sorted by grid cell, as scanners and voxel grids produce."""
    points = torch.rand(num_points, 3, device=m.device)
    cell = (points * 32).long()
    order = (cell[:, 0] * 1024 + cell[:, 1] * 32 + cell[:, 2]).argsort()
    return {"features": m.floats(num_points, 64), "index": knn(points[order], 16).index}


def index_select(features: Tensor, index: Tensor) -> Tensor:
    return features.index_select(0, index.reshape(-1)).view(*index.shape, -1)


def draw_gather(d: Draw) -> Arguments:
    batch, num_rows, channels, picks = d.batch(), d.size(2049, EDGES), d.size(65), d.size(4099, EDGES)
    return {"features": d.numbers(WHOLE, *batch, num_rows, channels), "index": d.index(num_rows, *batch, picks)}


def draw_group(d: Draw) -> Arguments:
    batch, num_rows, channels, picks, k = d.batch(), d.size(2049, EDGES), d.size(65), d.size(65), d.size(33)
    if d.flag("relative"):
        return relative(d, batch, num_rows, channels, picks, k)
    return {"features": d.numbers(WHOLE, *batch, num_rows, channels), "index": d.index(num_rows, *batch, picks, k)}


def index_rows(arguments: Arguments) -> int:
    return int(arguments["features"].shape[-2])


def many_groups(count: int, device: str) -> Arguments:
    """(N / 16, 16, channels) from N / 16 rows: the large tensor is the result."""
    size = max(count // NEIGHBORS, 1)
    index = (torch.arange(size * NEIGHBORS, device=device) * 7 % size).view(size, NEIGHBORS)
    return {"features": exact_features(size, device), "index": index}


PLAIN = {"indexing": lambda features, index: features[index], "index_select": index_select}  # without -1
points, padded, features = torch.zeros(6, 3), torch.zeros(2, 6, 3), torch.zeros(6, 4)
index, lists = torch.zeros(5, dtype=torch.int64), torch.zeros(5, 1, dtype=torch.int64)

OPERATORS = [
    OpInfo(
        "gather", gather, differentiable=("features",), plain=plain_gather, index_rows=index_rows,
        samples=[
            Sample("packed", lambda m: rows(m, (), 7, 5, 11), large=lambda m: rows(m, (), 997, 67, 20011)),
            Sample("padded", lambda m: rows(m, (3,), 7, 5, 4), large=lambda m: rows(m, (3,), 97, 33, 9001)),
            Sample("one-row", lambda m: {"features": m.floats(1, 1), "index": m.ints(0, 0, -1)}),
            Sample("same-row", lambda m: {"features": m.floats(3, 5), "index": m.ints(*[2] * 40)}),
            Sample("no-rows", lambda m: {"features": m.floats(0, 3), "index": m.ints(-1, -1)}),
            Sample("empty-index", lambda m: rows(m, (), 4, 3, 0)),
            Sample("no-channels", lambda m: rows(m, (), 4, 0, 6)),
            Sample("no-clouds", lambda m: rows(m, (0,), 4, 3, 2)),
            Sample("int32-index", lambda m: {"features": m.floats(7, 5), "index": m.index(7, 11).int()}),
        ],
        errors=[
            *tensor_errors({"features": features, "index": index}, features=[[1.0]], index=[index.double(), index.to("meta")]),
            value_error("features must be (N, C) or (B, N, C), got (7,)", torch.zeros(7), index),
            *each(value_error, "index must be (M,) with features (N, C), or (B, M) with (B, N, C)", got("(1, 0)", features, ints()[None]), got("(3, 5)", padded, index.expand(3, 5))),
            type_error("features must be float32, float64, float16, bfloat16, int64, int32, int16, int8, uint8 or bool, got complex64", features.to(torch.complex64), index),
            *each(bad_values, "index must be -1 or in [0, 6)", got("6", features, ints(0, 6)), got("-2", features, ints(0, -2)), got("60", padded, ints(0, 1, 2, 60).view(2, 2))),
        ],
        draw=draw_gather, magnitudes=linear_in_each(gather, GRADS, copies=True),
        bad_arguments={"index": [None, 3], "features": [None, 1.0]},
        precision=[Precision(lambda m: rows(m, (), m.rows // 4, 16, m.rows))],
        benchmarks=[
            Benchmark("gather {1} x 64 of {0}", many_picks, (100_000, 1_600_000), PLAIN, {" forward": "forward"}, GRADS[:1], 1e-6, floor=True)
        ],
        scaling=Scaling(lambda n, device: {"features": exact_features(n, device), "index": torch.arange(n - 1, -1, -1, device=device)}, check_picked(plain_gather)),
        growing=lambda n: (gather, torch.rand(n, n + 1), any_index(n, n + 2)),
    ),
    OpInfo(
        "group", group, differentiable=GRADS, plain=plain_group, index_rows=index_rows,
        samples=[
            Sample("packed", lambda m: rows(m, (), 7, 5, 4, 3), large=lambda m: rows(m, (), 1009, 3, 4001, 16)),
            Sample("padded", lambda m: rows(m, (2,), 7, 5, 4, 3)),
            Sample("relative-packed", lambda m: relative(m, (), 7, 2, 4, 3)),
            Sample("relative-padded", lambda m: relative(m, (2,), 5, 2, 4, 3)),
        ],
        errors=[
            type_error("features must be float32, float64, float16 or bfloat16, got int64", features.long(), lists, points=points.long(), centers=points[:5].long()),
            value_error("index must be (M, K) with features (N, C), or (B, M, K) with (B, N, C), got (5,)", features, index),
            type_error("centers must be a torch.Tensor, got NoneType None", features, lists, points=points),
            value_error("centers must be (5, 3), got (6, 3)", features, lists, points=points, centers=points),
            type_error("points must have the dtype of features, float32, got float64", features, lists, points=points.double(), centers=points[:5].double()),
            bad_values("index must be -1 or in [0, 6), got 6", features, ints(0, 6)[None]),
        ],
        draw=draw_group, magnitudes=linear_in_each(group, GRADS, copies=True, centers=-1),
        bad_arguments={"index": [None, 3], "features": [None, 1.0], "points": [2.0]},
        precision=[Precision(lambda m: relative(m, (), m.rows, 8, m.rows // 2, 8), "relative")],
        benchmarks=[
            Benchmark("group {0} x 16 x 64", lambda m, n: many_picks(m, n, n, 16), (100_000,), PLAIN, EACH_PASS, GRADS[:1], 1e-6, floor=True, work="group"),
            Benchmark("group {0} x 16 x 64, neighbours", near_picks, (100_000,), PLAIN, {" forward": "forward"}, GRADS[:1], 1e-6, floor=True, work="group"),
        ],
        scaling=Scaling(many_groups, check_picked(plain_group)),
        growing=lambda n: (
            lambda f, i, p, c: group(f, i, points=p, centers=c),
            torch.rand(n, n + 1), any_index(n, n + 2, n + 3), torch.rand(n, 3), torch.rand(n + 2, 3),
        ),
    ),
]  # fmt: skip

"""scatter, segment, segment_softmax and histogram."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pointgrad
from pointgrad import histogram, scatter, segment, segment_softmax

from .base import Benchmark, OpInfo, Precision, Sample, Scaling, any_index, equal_offsets, ints
from .errors import bad_values, each, got, tensor_errors, type_error, value_error
from .inputs import INTEGERS, Draw, Make
from .magnitudes import Arguments, Sums, linear_in_each, steepness
from .scaling import NEIGHBORS, exact_features, some

# Segments are cut into pieces: on a CPU of 2^18 numbers or 256 rows, on a GPU of 512 rows.
EDGES = (255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 1537, 4099)
REDUCTIONS = ("sum", "mean", "max", "min")


def entries(
    m: Make, batch: tuple[int, ...], rows: int, channels: int, size: int, reduce: str, empty: int = 0, **options: Any
) -> Arguments:
    """Values for scatter, with an index into `size` groups, of which at least the last `empty` are empty."""
    values = {"values": m.floats(*batch, rows, channels), "index": m.index(size - empty, *batch, rows)}
    return {**values, "size": size, "reduce": reduce, **options}


def segments(m: Make, rows: int, channels: int, *offsets: int, reduce: str = "sum", **options: Any) -> Arguments:
    return {"values": m.floats(rows, channels), "offsets": m.ints(*offsets), "reduce": reduce, **options}


def uneven(m: Make, rows: int) -> Tensor:
    """Offsets of empty, short and long segments, one of them long enough to be split."""
    cuts = torch.cat([torch.randint(0, 900, (40,)), torch.tensor([0, 0, 900, 900, rows, rows])])
    return cuts.sort().values.to(m.device)


def counted(m: Make, size: int, *shape: int, weighted: bool = False, empty: int = 0) -> Arguments:
    weights = {"weights": m.floats(*shape)} if weighted else {}
    return {"index": m.index(size - empty, *shape), "size": size, **weights}


def added(values: Tensor, index: Tensor, size: int, reduce: str = "sum") -> Tensor:
    """The sum by `index_add_`. The index must not contain -1."""
    return values.new_zeros(size, values.shape[1]).index_add_(0, index, values)


def largest(values: Tensor, index: Tensor, size: int, reduce: str = "max") -> Tensor:
    """The maximum by `scatter_reduce_`. The index must not contain -1."""
    wide = index[:, None].expand_as(values)
    return values.new_zeros(size, values.shape[1]).scatter_reduce_(0, wide, values, "amax", include_self=False)


def in_segments(m: Make, rows: int, size: int) -> Arguments:
    """Offsets of segments, and the segment of each row for plain forms."""
    index = m.below(size, rows).sort().values
    return {"offsets": torch.searchsorted(index, torch.arange(size + 1, device=m.device)), "index": index}


def softmax_of_scatters(logits: Tensor, offsets: Tensor, index: Tensor) -> Tensor:
    """The common form: maximum, exponential, sum, quotient."""
    size = len(offsets) - 1
    power = (logits - largest(logits, index, size)[index]).exp()
    return power / added(power, index, size)[index]


SEGMENT_SUMS = {
    "index_add": lambda values, offsets, index, reduce: added(values, index, len(offsets) - 1),
    "segment_reduce": lambda values, offsets, index, reduce: torch.segment_reduce(values, reduce, offsets=offsets, axis=0, unsafe=True),
}  # fmt: skip


def reduce_each(parts: Sequence[Tensor], reduce: str) -> Tensor:
    pick: Any = {"sum": Tensor.sum, "mean": Tensor.mean, "max": Tensor.amax, "min": Tensor.amin}[reduce]
    return torch.stack([pick(part, 0) if len(part) else part.new_zeros(part.shape[1:]) for part in parts])


def plain_scatter(values: Tensor, index: Tensor, size: int, reduce: str = "sum") -> Tensor:
    return reduce_each([values[index == group] for group in range(size)], reduce)


def plain_segment(values: Tensor, offsets: Tensor, reduce: str = "sum") -> Tensor:
    return reduce_each(values.split(offsets.diff().tolist()), reduce)


def plain_segment_softmax(logits: Tensor, offsets: Tensor) -> Tensor:
    return softmax_of_scatters(logits, offsets, torch.repeat_interleave(offsets.diff()))


def plain_histogram(index: Tensor, size: int, weights: Tensor) -> Tensor:
    return plain_scatter(weights.unsqueeze(-1), index, size).squeeze(-1)


def draw_reduce(d: Draw, *shape: int) -> Arguments:
    """Values (integers where allowed) and the name of a reduction."""
    reduce = d.pick("reduce", REDUCTIONS)
    values = d.floats(*shape) if reduce == "mean" else d.numbers(INTEGERS, *shape)
    return {"values": values, "reduce": reduce, **({"return_arg": d.flag("arg")} if reduce in ("max", "min") else {})}


def draw_scatter(d: Draw) -> Arguments:
    batch, rows, channels, size = d.batch(), d.size(4099, EDGES), d.size(33), d.size(65)
    arguments = {**draw_reduce(d, *batch, rows, channels), "index": d.index(size, *batch, rows)}
    return arguments if d.flag("size from index", 6) else {**arguments, "size": size}


def draw_segment(d: Draw, softmax: bool = False) -> Arguments:
    parts = d.number("segments", 0, 9)
    rows = d.size(1537, EDGES) if parts else 0
    offsets = d.offsets(rows, parts)
    values = {"logits": d.floats(rows, d.size(17))} if softmax else draw_reduce(d, rows, d.size(33))
    return {**values, "offsets": offsets}


def draw_histogram(d: Draw) -> Arguments:
    batch, rows, size = d.batch(), d.size(1025, EDGES), d.size(65)
    weights = {"weights": d.numbers(INTEGERS, *batch, rows)} if d.flag("weighted") else {}
    return {"index": d.index(size, *batch, rows), "size": size, **weights}


def reduced(arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]) -> Sums:
    """Extremes and their gradients are copies, and sums of integers are exact."""
    if arguments["reduce"] in ("max", "min") or not outputs[0].is_floating_point():
        return [], {}
    return linear_in_each(scatter if "index" in arguments else segment, ("values",))(arguments, upstream, outputs)


def softmax_magnitudes(arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]) -> Sums:
    offsets = arguments["offsets"].long()
    with pointgrad.backend("reference"):
        shares = segment_softmax(arguments["logits"].double(), offsets)
        forward = (1 + steepness(outputs[0].dtype)) * shares
        if not upstream:
            return [forward], {}
        grad = upstream[0].abs()
        mean = segment(shares * grad, offsets)
    row = torch.repeat_interleave(offsets.diff(), output_size=len(shares))
    return [forward], {"logits": 2 * forward * (grad + mean[row])}


def interleaved(count: int, device: str) -> Arguments:
    groups = max(count // NEIGHBORS, 1)
    index = torch.arange(count, device=device) % groups
    return {"values": exact_features(count, device), "index": index, "size": groups}


def check_interleaved(arguments: Arguments, result: Any) -> None:
    values, groups, (sums, grad) = arguments["values"], arguments["size"], result
    for place in some(groups, values.device).tolist():
        members = torch.arange(place, len(values), groups, device=values.device)
        assert torch.equal(sums[place], values[members].sum(0))
    assert (grad[some(len(values), values.device)] == 1).all()


def scattered(r: str) -> list[Sample]:
    """Samples of one reduction by index."""
    adds = r in ("sum", "mean")
    empty = {"no-entries": ((), 0, 3, 4), "no-channels": ((), 5, 0, 4), "no-clouds": ((0,), 5, 3, 4), "no-groups": ((), 5, 3, 0)}  # fmt: skip
    return [
        Sample(f"{r}-packed", lambda m: entries(m, (), 23, 5, 8, r, empty=1), large=lambda m: entries(m, (), 20011, 67, 997, r), any_order=adds),
        Sample(f"{r}-padded", lambda m: entries(m, (3,), 9, 4, 5, r), large=lambda m: entries(m, (3,), 9001, 33, 97, r), any_order=adds),
        *([] if adds else [Sample(f"{r}-arg", lambda m: entries(m, (2,), 9, 3, 6, r, empty=2, return_arg=True))]),
        *(Sample(f"{r}-{name}", partial(entries, batch=b, rows=n, channels=c, size=size, reduce=r), any_order=adds) for name, (b, n, c, size) in empty.items()),
    ]  # fmt: skip


def segmented(r: str) -> list[Sample]:
    """Samples of one reduction by segments."""
    return [
        Sample(r, lambda m: segments(m, 23, 5, 0, 4, 4, 17, 23, 23, reduce=r), large=lambda m: {"values": m.floats(9001, 33), "offsets": uneven(m, 9001), "reduce": r}),
        # Smooth, but thousands of finite differences would take long.
        Sample(f"{r}-long", lambda m: segments(m, 1900, 2, 0, 3, 1895, 1900, reduce=r), smooth=False),
        Sample(f"{r}-no-rows", lambda m: segments(m, 0, 3, 0, 0, 0, reduce=r)),
        Sample(f"{r}-no-channels", lambda m: segments(m, 5, 0, 0, 2, 5, reduce=r)),
        Sample(f"{r}-no-segments", lambda m: segments(m, 0, 3, 0, reduce=r)),
    ]  # fmt: skip


def reducible(m: Make, reduce: str) -> Tensor:
    """Values, without ties for extremes."""
    return m.floats(m.rows, 16) if reduce in ("sum", "mean") else m.distinct(min(m.rows, 256), 8)


def scatter_precision(r: str) -> Precision:
    return Precision(
        lambda m: {"values": (v := reducible(m, r)), "index": m.index(10, len(v)), "size": 10, "reduce": r}, r
    )


def segment_precision(r: str) -> Precision:
    return Precision(lambda m: {"values": (v := reducible(m, r)), "offsets": m.offsets(len(v), 6), "reduce": r}, r)


def index_rows(arguments: Arguments) -> int | None:
    return arguments.get("size")


values, padded, index = torch.zeros(6, 4), torch.zeros(2, 6, 4), torch.zeros(6, dtype=torch.int64)
FLOATS = "float32, float64, float16 or bfloat16"
NUMBERS = "float32, float64, float16, bfloat16, int64 or int32"
REDUCE = 'reduce must be "sum", "mean", "max" or "min", got'

OPERATORS = [
    OpInfo(
        "scatter", scatter, differentiable=("values",), plain=plain_scatter, index_rows=index_rows,
        samples=[
            *(sample for r in REDUCTIONS for sample in scattered(r)),
            Sample("ties", lambda m: {**entries(m, (), 40, 3, 5, "max", return_arg=True), "values": m.grid(40, 3)}, smooth=False),
            Sample("all-equal", lambda m: {**entries(m, (), 9, 2, 2, "min", return_arg=True), "values": m.equal(9, 2)}, smooth=False),
            Sample("one-row", lambda m: {"values": m.floats(1, 1), "index": m.ints(0), "size": 1, "reduce": "mean"}, any_order=True),
            Sample("one-group", lambda m: {"values": m.floats(40, 3), "index": m.ints(*[2] * 40), "size": 4, "reduce": "max"}),
            Sample("int32-index", lambda m: {"values": m.floats(11, 5), "index": m.index(7, 11).int(), "size": 7, "reduce": "max"}),
        ],
        errors=[
            *tensor_errors({"values": values, "index": index}, values=[np.zeros((6, 4))], index=[[0], index.float()]),
            *each(type_error, "size must be an int or None", got("float 2.0", values, index, 2.0), got("bool True", values, index, True)),
            value_error("size must be at least 0, got -1", values, index, -1),
            type_error(f"{REDUCE} int 3", values, index, 1, 3),
            value_error(f"{REDUCE} 'median'", values, index, 1, "median"),
            value_error('return_arg must be False unless reduce is "max" or "min", got True', values, index, 1, return_arg=True),
            value_error("values must be (E, C) or (B, E, C), got (6,)", torch.zeros(6), index),
            *each(value_error, "index must be (E,) with values (E, C), or (B, E) with (B, E, C)", got("(5,)", values, index[:5]), got("(6,)", padded, index)),
            type_error(f"values must be {NUMBERS}, got int8", values.to(torch.int8), index),
            type_error(f"values must be {FLOATS}, got int64", values.long(), index, 1, "mean"),
            value_error("index must be on the device of values, cpu, got meta", values, index.to("meta"), 1),
            *each(bad_values, "index must be -1 or in [0, 5)", got("5", values, ints(0, 1, 2, 3, 4, 5), 5), got("5", values, ints(0, 1, 2, 3, 4, 5), 5, "mean"), got("-2", values, ints(0, 1, 2, 3, 4, -2), 5, "max")),
            *each(bad_values, "index must be -1 or in [0, 5)", got("-2", values, ints(0, 1, 2, 3, 4, -2))),
        ],
        draw=draw_scatter, magnitudes=reduced,
        bad_arguments={"reduce": ["median", None, 3], "values": [None], "index": [None], "size": [-1, 2.0, True, "3", 2**63]},
        precision=[scatter_precision(r) for r in REDUCTIONS],
        benchmarks=[
            Benchmark(
                f"scatter {reduce} {{0}} x 64 -> {{1}}",
                lambda m, rows, size, reduce=reduce: {"values": m.floats(rows, 64), "index": m.below(size, rows), "size": size, "reduce": reduce},
                (1_600_000, 100_000), plain, {"": "forward"}, tolerance=1e-6, floor=True, work="scatter",
            )
            for reduce, plain in (("sum", {"index_add": added}), ("max", {"scatter_reduce": largest}))
        ],
        scaling=Scaling(interleaved, check_interleaved),
        growing=lambda n: (
            lambda v, i, s: [scatter(v, i, s, reduce) for reduce in ("sum", "mean", "max")],
            torch.rand(n, n + 1), any_index(n + 2, n), n + 2,
        ),
    ),
    OpInfo(
        "segment", segment, differentiable=("values",), plain=plain_segment,
        samples=[
            *(sample for r in REDUCTIONS for sample in segmented(r)),
            Sample("ties", smooth=False, build=lambda m: {"values": m.grid(1500, 2), "offsets": m.ints(0, 7, 9, 1500), "reduce": "min", "return_arg": True}),
            Sample("one-row", lambda m: segments(m, 1, 1, 0, 1)),
            Sample("int32", lambda m: {"values": m.floats(5, 2), "offsets": m.ints(0, 3, 5).int()}),
        ],
        errors=[
            *tensor_errors({"values": values, "offsets": ints(0, 6)}, values=[None], offsets=[[0, 6], ints(0, 6).double(), ints(0, 6).to("meta")]),
            value_error(f"{REDUCE} 'last'", values, ints(0, 6), "last"),
            value_error('return_arg must be False unless reduce is "max" or "min", got True', values, ints(0, 6), "mean", return_arg=True),
            value_error("values must be (E, C), got (2, 6, 4)", padded, ints(0, 6)),
            value_error("offsets must be (S + 1,), got (0,)", values, ints()),
            type_error(f"values must be {NUMBERS}, got bool", values.bool(), ints(0, 6)),
            bad_values("offsets[0] must be 0, got 1", values, ints(1, 6)),
            bad_values("offsets[2] must be at least offsets[1] = 4, got 2", values, ints(0, 4, 2, 6), "max"),
            bad_values("offsets[-1] must equal E = 6, got 5", values, ints(0, 5), "mean"),
        ],
        draw=draw_segment, magnitudes=reduced, bad_arguments={"reduce": ["median", None, 3], "offsets": [None, 3]},
        precision=[segment_precision(r) for r in REDUCTIONS[:3]],
        benchmarks=[
            Benchmark(
                "segment sum {0} x 64 -> {1}", lambda m, rows, size: {"values": m.floats(rows, 64), **in_segments(m, rows, size), "reduce": "sum"},
                (1_600_000, 100_000), SEGMENT_SUMS, {"": "forward"}, tolerance=1e-6, floor=True, work="segment", only_plain=("index",),
            )
        ],
        growing=lambda n: (
            lambda v, o: [segment(v, o, reduce) for reduce in ("sum", "mean", "max")],
            torch.rand(n * n, n + 1), equal_offsets(n, n),
        ),
    ),
    OpInfo(
        "segment_softmax", segment_softmax, differentiable=("logits",), plain=plain_segment_softmax,
        samples=[
            Sample("packed", lambda m: {"logits": m.floats(15, 3), "offsets": m.ints(0, 4, 4, 9, 10, 15)}, large=lambda m: {"logits": m.floats(9001, 8), "offsets": uneven(m, 9001)}),
            Sample("long", lambda m: {"logits": m.floats(1500, 1), "offsets": m.ints(0, 2, 1500)}, smooth=False),
            Sample("one-row", lambda m: {"logits": m.floats(1, 1), "offsets": m.ints(0, 1)}),
            Sample("all-equal", lambda m: {"logits": m.equal(8, 2), "offsets": m.ints(0, 8)}),
            Sample("no-rows", lambda m: {"logits": m.floats(0, 2), "offsets": m.ints(0, 0)}),
        ],
        errors=[
            type_error(f"logits must be {FLOATS}, got int64", values.long(), ints(0, 6)),
            value_error("logits must be (E, C), got (4,)", values[0], ints(0, 6)),
            bad_values("offsets[-1] must equal E = 6, got 7", values, ints(0, 7)),
        ],
        draw=lambda d: draw_segment(d, softmax=True), magnitudes=softmax_magnitudes, rounds=True,
        precision=[Precision(lambda m: {"logits": m.floats(m.rows, 8), "offsets": m.offsets(m.rows, 12)})],
        benchmarks=[
            Benchmark(
                "segment softmax {0} x 8 in {1}", lambda m, rows, size: {"logits": m.floats(rows, 8), **in_segments(m, rows, size)},
                (1_600_000, 100_000), {"scatters": softmax_of_scatters}, {"": "forward"}, tolerance=1e-6, floor=True, work="segment_softmax",
                only_plain=("index",),
            )
        ],
        growing=lambda n: (segment_softmax, torch.rand(n * n, n + 1), equal_offsets(n, n)),
    ),
    OpInfo(
        "histogram", histogram, differentiable=("weights",), plain=plain_histogram, index_rows=index_rows,
        samples=[
            Sample("counts", lambda m: counted(m, 9, 40, empty=2), large=lambda m: counted(m, 997, 200011), any_order=True),
            Sample("padded", lambda m: counted(m, 4, 3, 20), any_order=True),
            Sample("weights", lambda m: counted(m, 7, 40, weighted=True), large=lambda m: counted(m, 997, 200011, weighted=True), any_order=True),
            Sample("padded-weights", lambda m: counted(m, 4, 3, 10, weighted=True), any_order=True),
            Sample("empty", lambda m: counted(m, 4, 0), any_order=True),
            Sample("no-bins", lambda m: {"index": m.ints(-1, -1), "size": 0}, any_order=True),
        ],
        errors=[
            *tensor_errors({"index": index, "size": 3}, index=[[0], index.float()], weights=[[1.0] * 6, values[:, 0].to("meta")]),
            type_error("size must be an int, got NoneType None", index, None),
            value_error("size must be at least 0, got -2", index, -2),
            value_error("index must be (E,) or (B, E), got (2, 6, 4)", padded.long(), 3),
            value_error("weights must be (6,) like index, got (6, 4)", index, 3, values),
            type_error(f"weights must be {NUMBERS}, got bool", index, 3, index.bool()),
            *each(bad_values, "index must be -1 or in [0, 3)", got("3", index + 3, 3), got("3", index + 3, 3, values[:, 0])),
        ],
        draw=draw_histogram, magnitudes=linear_in_each(histogram, ("weights",)), bad_arguments={"size": [-1, 2.0, True, None, 2**63]},
        benchmarks=[
            Benchmark("histogram {0} -> {1}", lambda m, rows, size: {"index": m.below(size, rows), "size": size}, (1_600_000, 100_000), {"bincount": lambda index, size: torch.bincount(index, minlength=size)}),
        ],
        precision=[Precision(lambda m: {**counted(m, 10, m.rows), "weights": m.positive(m.rows)}, "weights")],
        growing=lambda n: (histogram, any_index(n + 1, n), n + 1, torch.rand(n)),
    ),
]  # fmt: skip

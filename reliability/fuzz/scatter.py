"""scatter, segment, segment_softmax and histogram."""

import torch
from torch import Tensor

import pointgrad

from .draw import FLOATS, INTEGERS, Draw
from .operators import Arguments, Operator, linear_in_each

# Segments are cut into pieces: on a CPU of 2^18 numbers or 256 rows, on a GPU of 512 rows.
EDGES = (255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 1537, 4099)


def _values(draw: Draw, name: str, dtypes: tuple[torch.dtype, ...], *shape: int) -> Tensor:
    dtype = draw.dtype(dtypes)
    if dtype.is_floating_point:
        return draw.floats(name, dtype, *shape)
    most = torch.iinfo(dtype).max
    bits = torch.randint(-most, most, shape, generator=draw.generator).to(dtype)  # sums wrap around
    return bits.to(draw.device)


def _numbers(reduce: str) -> tuple[torch.dtype, ...]:
    return FLOATS if reduce == "mean" else (*FLOATS, *FLOATS, *INTEGERS)


def _scatter(draw: Draw) -> Arguments:
    reduce = draw.pick("reduce", ("sum", "mean", "max", "min"))
    batch = (draw.number("clouds", 0, 3),) if draw.flag("padded") else ()
    rows, channels = draw.size("rows", most=4099, edges=EDGES), draw.size("channels", most=33)
    size = draw.size("size", most=65)
    arguments = {
        "values": _values(draw, "values", _numbers(reduce), *batch, rows, channels),
        "index": draw.index("index", size, *batch, rows),
        "size": size, "reduce": reduce,
    }  # fmt: skip
    if draw.flag("size from index", 6):
        del arguments["size"]
    if reduce in ("max", "min"):
        arguments["return_arg"] = draw.flag("arg")
    return arguments


def _segment(draw: Draw) -> Arguments:
    reduce = draw.pick("reduce", ("sum", "mean", "max", "min"))
    segments = draw.number("segments", 0, 9)
    rows = draw.size("rows", most=1537, edges=EDGES) if segments else 0
    arguments = {
        "values": _values(draw, "values", _numbers(reduce), rows, draw.size("channels", most=33)),
        "offsets": draw.cuts("offsets", rows, segments),
        "reduce": reduce,
    }
    if reduce in ("max", "min"):
        arguments["return_arg"] = draw.flag("arg")
    return arguments


def _softmax(draw: Draw) -> Arguments:
    segments = draw.number("segments", 0, 9)
    rows = draw.size("rows", most=1537, edges=EDGES) if segments else 0
    logits = draw.floats("logits", draw.dtype(), rows, draw.size("channels", most=17))
    return {"logits": logits, "offsets": draw.cuts("offsets", rows, segments)}


def _histogram(draw: Draw) -> Arguments:
    batch = (draw.number("clouds", 0, 3),) if draw.flag("padded") else ()
    rows, size = draw.size("rows", most=1025, edges=EDGES), draw.size("size", most=65)
    arguments = {"index": draw.index("index", size, *batch, rows), "size": size}
    if draw.flag("weighed"):
        arguments["weights"] = _values(draw, "weights", (*FLOATS, *INTEGERS), *batch, rows)
    return arguments


def _groups(arguments: Arguments) -> int | None:
    return arguments.get("size")


def _softmax_magnitudes(
    arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]
) -> tuple[list[Tensor | None], dict[str, Tensor]]:
    """exp errs by its argument's rounding, and that is at most 104 (745 in float64), or exp gives 0."""
    offsets = arguments["offsets"].long()
    with pointgrad.backend("reference"):
        shares = pointgrad.segment_softmax(arguments["logits"].double(), offsets)
        steep = 1 + (745 if outputs[0].dtype == torch.float64 else 104)
        forward = steep * shares
        if not upstream:
            return [forward], {}
        grad = upstream[0].abs()
        mean = pointgrad.segment(shares * grad, offsets)
    row = torch.repeat_interleave(offsets.diff(), output_size=len(shares))
    return [forward], {"logits": 2 * forward * (grad + mean[row])}


GRADS = ("values",)


def _reduced(
    arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]
) -> tuple[list[Tensor | None], dict[str, Tensor]]:
    """Extremes and their gradients are copies, and sums of integers are exact."""
    if arguments["reduce"] in ("max", "min") or not outputs[0].is_floating_point():
        return [], {}
    call = pointgrad.scatter if "index" in arguments else pointgrad.segment
    return linear_in_each(call, GRADS)(arguments, upstream, outputs)


BAD_REDUCE = {"reduce": ["median", None, 3], "values": [None], "index": [None]}
OPERATORS = [
    Operator(
        "scatter", pointgrad.scatter, _scatter, GRADS, _reduced, index_rows=_groups,
        bad_arguments={**BAD_REDUCE, "size": [-1, 2.0, True, "3", 2**63]},
    ),
    Operator(
        "segment", pointgrad.segment, _segment, GRADS, _reduced,
        bad_arguments={"reduce": ["median", None, 3], "offsets": [None, 3]},
    ),
    Operator("segment_softmax", pointgrad.segment_softmax, _softmax, ("logits",), _softmax_magnitudes, rounds=True),
    Operator(
        "histogram", pointgrad.histogram, _histogram, ("weights",), linear_in_each(pointgrad.histogram, ("weights",)),
        index_rows=_groups, bad_arguments={"size": [-1, 2.0, True, None, 2**63]},
    ),
]  # fmt: skip

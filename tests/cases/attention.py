"""Ways to call aggregate, masked_softmax and neighbor_attention, right and wrong."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import pointgrad

from .base import Case, Make

aggregate, masked_softmax = pointgrad.aggregate, pointgrad.masked_softmax
neighbor_attention = pointgrad.neighbor_attention


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


def attention(
    m: Make, index: Tensor, num_rows: int, heads: int, depth: int, width: int | None = None, bias: int | None = None
) -> dict[str, Any]:
    """Arguments of neighbor_attention for an index."""
    batch = index.shape[:-2]
    arguments = {
        "query": m.floats(*index.shape[:-1], heads, depth),
        "key": m.floats(*batch, num_rows, heads, depth),
        "value": m.floats(*batch, num_rows, heads, width or depth),
        "index": index,
    }
    return arguments if bias is None else {**arguments, "bias": m.floats(*index.shape, bias)}


ATTENTION = [
    Case(
        "attention/packed", neighbor_attention, lambda m: attention(m, m.index(7, 4, 3), 7, 2, 3),
        large=lambda m: attention(m, m.index(997, 1003, 9), 997, 4, 16),
    ),
    Case(
        "attention/padded", neighbor_attention,
        lambda m: {**attention(m, m.index(5, 2, 3, 3), 5, 2, 2, 3), "scale": 0.3},
        large=lambda m: attention(m, m.index(97, 3, 301, 8), 97, 3, 11, 7, 3),
    ),
    Case("attention/bias", neighbor_attention, lambda m: attention(m, m.index(7, 4, 3), 7, 2, 3, 2, 2)),
    Case("attention/shared-bias", neighbor_attention, lambda m: attention(m, m.index(7, 4, 5), 7, 3, 2, 1, 1)),
    Case("attention/one", neighbor_attention, lambda m: attention(m, m.index(3, 5, 1), 3, 1, 1)),
    Case("attention/same-row", neighbor_attention, lambda m: attention(m, m.ints(*[1] * 12).view(4, 3), 2, 2, 2)),
    Case("attention/no-rows", neighbor_attention, lambda m: attention(m, m.ints(-1, -1).view(1, 2), 0, 2, 3)),
    Case("attention/no-centres", neighbor_attention, lambda m: attention(m, m.index(4, 0, 3), 4, 2, 3)),
    Case("attention/no-neighbours", neighbor_attention, lambda m: attention(m, m.index(4, 3, 0), 4, 2, 3, 2, 2)),
    Case("attention/no-depth", neighbor_attention, lambda m: attention(m, m.index(4, 3, 2), 4, 2, 0, 3)),
    Case("attention/no-clouds", neighbor_attention, lambda m: attention(m, m.index(4, 0, 3, 2), 4, 2, 3)),
    Case("attention/int32-index", neighbor_attention, lambda m: attention(m, m.index(7, 4, 3).int(), 7, 1, 4)),
]  # fmt: skip
ATTENTION = [
    replace(
        case,
        differentiable=("query", "key", "value", "bias")
        if "bias" in case.inputs(Make())
        else ("query", "key", "value"),
        rows=lambda arguments: arguments["key"].shape[-3],
    )
    for case in ATTENTION
]


def mask(m: Make, *shape: int) -> Tensor:
    """Two thirds True."""
    return torch.rand(shape).to(m.device) < 0.67


SOFTMAX = [
    Case("softmax/last", masked_softmax, lambda m: {"logits": m.floats(4, 5), "mask": mask(m, 4, 5)}),
    Case(
        "softmax/middle", masked_softmax,
        lambda m: {"logits": m.floats(2, 4, 3), "mask": mask(m, 2, 4, 1), "dim": 1},
        large=lambda m: {"logits": m.floats(200, 16, 33), "mask": mask(m, 200, 16, 1), "dim": 1},
    ),
    Case("softmax/all-masked", masked_softmax, lambda m: {"logits": m.floats(2, 3), "mask": mask(m, 3) & False}),
    Case("softmax/empty", masked_softmax, lambda m: {"logits": m.floats(3, 0), "mask": mask(m, 3, 0)}),
]  # fmt: skip
SOFTMAX = [replace(case, differentiable=("logits",)) for case in SOFTMAX]

CASES = AGGREGATE + ATTENTION + SOFTMAX

weights = torch.zeros(5, 2)
values = torch.zeros(6, 4)
index = torch.zeros(5, 2, dtype=torch.int64)
query, key = torch.zeros(5, 2, 3), torch.zeros(6, 2, 3)
bias = torch.zeros(5, 2, 2)
logits, flags = torch.zeros(4, 3), torch.ones(4, 3, dtype=torch.bool)

# What metadata shows: the same on every device.
BAD_METADATA = [
    (lambda: aggregate(None, values, index), TypeError, "weights must be a torch.Tensor, got NoneType None"),
    (lambda: aggregate(weights, values, [0]), TypeError, "index must be a torch.Tensor, got list"),
    (lambda: aggregate(weights, torch.zeros(6), index), ValueError, "values must be (N, C) or (B, N, C), got (6,)"),
    (lambda: aggregate(weights, values, index[0]), ValueError, "index must be (M, K) with values (N, C), or (B, M, K) with (B, N, C), got (2,)"),
    (lambda: aggregate(weights, torch.zeros(3, 6, 4), index.expand(2, 5, 2)), ValueError, "index must be (M, K) with values (N, C), or (B, M, K) with (B, N, C), got (2, 5, 2)"),
    (lambda: aggregate(weights[:4], values, index), ValueError, "weights must be (5, 2) like index, or (5, 2, G), got (4, 2)"),
    (lambda: aggregate(torch.zeros(5, 2, 3), values, index), ValueError, "weights must be (5, 2, G) with G dividing C = 4, got (5, 2, 3)"),
    (lambda: aggregate(torch.zeros(5, 2, 0), values, index), ValueError, "weights must be (5, 2, G) with G dividing C = 4, got (5, 2, 0)"),
    (lambda: aggregate(weights.long(), values, index), TypeError, "weights must be float32, float64, float16 or bfloat16, got int64"),
    (lambda: aggregate(weights, values.half(), index), TypeError, "values must have the dtype of weights, float32, got float16"),
    (lambda: aggregate(weights, values, index.float()), TypeError, "index must be int64 or int32, got float32"),
    (lambda: aggregate(weights, values.to("meta"), index), ValueError, "values must be on the device of weights, cpu, got meta"),
    (lambda: neighbor_attention(query, key, None, index), TypeError, "value must be a torch.Tensor, got NoneType None"),
    (lambda: neighbor_attention(query, key, key, index, bias.tolist()), TypeError, "bias must be a torch.Tensor, got list"),
    (lambda: neighbor_attention(query, key, key, index, scale="1"), TypeError, "scale must be a number or None, got str '1'"),
    (lambda: neighbor_attention(query, key, key, index, scale=True), TypeError, "scale must be a number or None, got bool True"),
    (lambda: neighbor_attention(query[0], key, key, index), ValueError, "query must be (M, H, D) or (B, M, H, D) with at least one head, got (2, 3)"),
    (lambda: neighbor_attention(query[:, :0], key, key, index), ValueError, "query must be (M, H, D) or (B, M, H, D) with at least one head, got (5, 0, 3)"),
    (lambda: neighbor_attention(query, key[..., :2], key, index), ValueError, "key must be (N, 2, 3) to match query, got (6, 2, 2)"),
    (lambda: neighbor_attention(query, key, key[:5], index), ValueError, "value must be (6, 2, Dv) to match key, got (5, 2, 3)"),
    (lambda: neighbor_attention(query, key, key, index[:4]), ValueError, "index must be (5, K) to match query, got (4, 2)"),
    (lambda: neighbor_attention(query, key, key, index, bias[..., :0]), ValueError, "bias must be (5, 2, 2) or (5, 2, 1), got (5, 2, 0)"),
    (lambda: neighbor_attention(query.int(), key, key, index), TypeError, "query must be float32, float64, float16 or bfloat16, got int32"),
    (lambda: neighbor_attention(query, key, key.double(), index), TypeError, "value must have the dtype of query, float32, got float64"),
    (lambda: neighbor_attention(query, key, key, index.bool()), TypeError, "index must be int64 or int32, got bool"),
    (lambda: neighbor_attention(query, key, key, index, bias.to("meta")), ValueError, "bias must be on the device of query, cpu, got meta"),
    (lambda: masked_softmax([0.0], flags), TypeError, "logits must be a torch.Tensor, got list"),
    (lambda: masked_softmax(logits, None), TypeError, "mask must be a torch.Tensor, got NoneType None"),
    (lambda: masked_softmax(logits, flags, 0.5), TypeError, "dim must be an int, got float 0.5"),
    (lambda: masked_softmax(logits[0, 0], flags), ValueError, "logits must have at least one dimension, got ()"),
    (lambda: masked_softmax(logits, flags[:, :2]), ValueError, "mask must be broadcastable to logits (4, 3), got (4, 2)"),
    (lambda: masked_softmax(logits, flags[None]), ValueError, "mask must be broadcastable to logits (4, 3), got (1, 4, 3)"),
    (lambda: masked_softmax(logits.int(), flags), TypeError, "logits must be float32, float64, float16 or bfloat16, got int32"),
    (lambda: masked_softmax(logits, flags.int()), TypeError, "mask must be bool, got int32"),
    (lambda: masked_softmax(logits, flags.to("meta")), ValueError, "mask must be on the device of logits, cpu, got meta"),
    (lambda: masked_softmax(logits, flags, 2), ValueError, "dim must be in [-2, 2), got 2"),
]  # fmt: skip

# What only values show: on CPU tensors.
BAD_VALUES = [
    (lambda: aggregate(weights, values, index + 6), "index must be -1 or in [0, 6), got 6"),
    (lambda: aggregate(weights, values, index - 2), "index must be -1 or in [0, 6), got -2"),
    (lambda: neighbor_attention(query, key, key, index + 6), "index must be -1 or in [0, 6), got 6"),
    (lambda: neighbor_attention(query, key, key, index - 2), "index must be -1 or in [0, 6), got -2"),
]  # fmt: skip

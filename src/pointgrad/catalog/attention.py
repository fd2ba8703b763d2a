"""aggregate, masked_softmax and neighbor_attention."""

import torch
from torch import Tensor

import pointgrad
from pointgrad import aggregate, masked_softmax, neighbor_attention

from .base import BOTH_PASSES, EACH_PASS, Benchmark, OpInfo, Precision, Sample, any_index
from .errors import bad_values, each, got, tensor_errors, type_error, value_error
from .inputs import Draw, Make
from .magnitudes import Arguments, Sums, doubled, linear_in_each, steepness


def sums(m: Make, index: Tensor, num_rows: int, channels: int, groups: int | None = None) -> Arguments:
    """Arguments of aggregate for an index."""
    weights = index.shape if groups is None else (*index.shape, groups)
    return {"weights": m.floats(*weights), "values": m.floats(*index.shape[:-2], num_rows, channels), "index": index}


def heads(
    m: Make, index: Tensor, num_rows: int, num_heads: int, depth: int, width: int | None = None, bias: int | None = None
) -> Arguments:
    """Arguments of neighbor_attention for an index."""
    batch, width = index.shape[:-2], depth if width is None else width
    arguments = {
        "query": m.floats(*index.shape[:-1], num_heads, depth), "key": m.floats(*batch, num_rows, num_heads, depth),
        "value": m.floats(*batch, num_rows, num_heads, width), "index": index,
    }  # fmt: skip
    return arguments if bias is None else {**arguments, "bias": m.floats(*index.shape, bias)}


def masked(m: Make, *shape: int, dim: int = -1, broadcast: tuple[int, ...] | None = None) -> Arguments:
    return {"logits": m.floats(*shape), "mask": m.mask(*(shape if broadcast is None else broadcast)), "dim": dim}


def plain_aggregate(weights: Tensor, values: Tensor, index: Tensor) -> Tensor:
    """Index, multiply, sum. The index must not contain -1."""
    cloud = torch.arange(len(index), device=index.device)[:, None, None]
    picked = values[index] if index.dim() == 2 else values[cloud, index]
    if weights.dim() == index.dim():
        return (weights.unsqueeze(-1) * picked).sum(-2)
    return (weights.repeat_interleave(values.shape[-1] // weights.shape[-1], -1) * picked).sum(-2)


def plain_attention(query: Tensor, key: Tensor, value: Tensor, index: Tensor, bias: Tensor | None = None) -> Tensor:
    """Index, dot products, softmax, index, sum. The index must not contain -1."""
    logits = (query.unsqueeze(1) * key[index]).sum(-1) * query.shape[-1] ** -0.5
    logits = logits if bias is None else logits + bias
    return (torch.softmax(logits, 1).unsqueeze(-1) * value[index]).sum(1)


def three_rows(m: Make, num_rows: int, picks: int, batch: int) -> Arguments:
    return sums(m, m.below(num_rows, batch, picks, 3), num_rows, 256)


def draw_masked(d: Draw) -> Arguments:
    shape = [d.size(65) for _ in range(d.number("rank", 1, 3))]
    while torch.Size(shape).numel() > 20_000:
        shape[shape.index(max(shape))] = 3
    broadcast = [1 if d.flag(f"mask {axis}", 5) else size for axis, size in enumerate(shape)]
    mask = torch.rand(broadcast, generator=d.generator) < d.pick("kept", (0.8, 0.3, 0.0, 1.1))
    mask = mask[0] if len(broadcast) > 1 and broadcast[0] == 1 and d.flag("mask of less rank") else mask
    return {"logits": d.floats(*shape), "mask": mask.to(d.device), "dim": d.number("dim", -len(shape), len(shape) - 1)}


def draw_aggregate(d: Draw) -> Arguments:
    batch, rows, picks, k = d.batch(), d.size(129), d.size(513), d.size(33)
    groups = d.pick("groups", (None, 1, 2, 3, 8))
    return sums(d, d.index(rows, *batch, picks, k), rows, (groups or 1) * d.size(17), groups)


def draw_attention(d: Draw) -> Arguments:
    batch, rows, picks, k = d.batch(2), d.size(65), d.size(33), d.size(33)
    num_heads = d.pick("heads", (1, 2, 3, 4))
    bias = d.pick("bias heads", (num_heads, 1)) if d.flag("biased") else None
    arguments = heads(d, d.index(rows, *batch, picks, k), rows, num_heads, d.size(33), d.size(33), bias)
    return {**arguments, "scale": d.pick("scale", (1.0, 0.0, -2.5, 1e-3))} if d.flag("scaled", 3) else arguments


def masked_magnitudes(arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]) -> Sums:
    with pointgrad.backend("reference"):
        weights = masked_softmax(**doubled(arguments))
    forward = (1 + steepness(outputs[0].dtype)) * weights
    if not upstream:
        return [forward], {}
    grad = torch.where(arguments["mask"], upstream[0].abs(), 0)
    return [forward], {"logits": 2 * forward * (grad + (weights * grad).sum(arguments["dim"], keepdim=True))}


def finite_part(values: Tensor) -> Tensor:
    return values.abs().nan_to_num(0, 0, 0)


def unbounded(where: Tensor) -> Tensor:
    """A magnitude that allows any result."""
    return torch.where(where, torch.inf, 0.0).double()


def attention_magnitudes(arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]) -> Sums:
    """The error of a logit is relative to its products, and it is the relative error of its weight."""
    given = doubled(arguments)
    query, key, value, index = given["query"], given["key"], given["value"], given["index"].long()
    num_heads, scale = query.shape[-2], abs(given.get("scale", max(query.shape[-1], 1) ** -0.5))
    valid = (index >= 0).unsqueeze(-1)
    with pointgrad.backend("reference"):
        picked_key = pointgrad.group(key.flatten(-2), index).unflatten(-1, (num_heads, key.shape[-1]))  # (M, K, H, D)
        picked = pointgrad.group(value.flatten(-2), index).unflatten(-1, (num_heads, value.shape[-1]))
        logits = given.get("scale", scale) * (query.unsqueeze(-3) * picked_key).sum(-1)
        sizes = scale * (query.abs().unsqueeze(-3) * picked_key.abs()).sum(-1)
        most = max(scale, 1.0)  # neither the product nor the scaled product may overflow
        products = finite_part(query).unsqueeze(-3) * (finite_part(picked_key) + most)
        products = torch.where(valid, products.sum(-1), 0)
        finite = query.isfinite().all(-1).unsqueeze(-2) & picked_key.isfinite().all(-1)
        if "bias" in given:
            finite = finite & given["bias"].isfinite()
            logits, sizes = logits + given["bias"], sizes + given["bias"].abs()
        # All other logits have a weight of exactly zero. Where numbers overflow, the weight is unknown.
        counts = valid & ((logits != -torch.inf) | finite)
        sizes = torch.where(counts, sizes, 0)
        weights = masked_softmax(logits, valid, -2)  # (M, K, H)
        # The errors of the logit itself and of the largest logit, which is subtracted.
        blur = 1 + steepness(outputs[0].dtype) + 4 * sizes.sum(-2, keepdim=True)
        shares = weights * blur
        # If the error of a logit is not small, its weight may have any value; if a product overflows, it may be NaN.
        wide = torch.finfo(torch.promote_types(outputs[0].dtype, torch.float32))
        any_weight = 1e300 * (blur * wide.eps > 0.01).double()  # (M, 1, H)
        overflow = unbounded((products > wide.max / 4).any(-2, keepdim=True))
        forward = ((shares + any_weight).unsqueeze(-1) * picked.abs()).sum(-3) + overflow.squeeze(-2).unsqueeze(-1)
        if not upstream:
            return [forward], {}
        grad = upstream[0].abs()
        slopes = (grad.unsqueeze(-3) * picked.abs()).sum(-1)
        slopes = 2 * shares * (slopes + (weights * slopes).sum(-2, keepdim=True)) + any_weight
        slopes, shares = torch.where(valid, slopes, 0), torch.where(valid, shares + any_weight, 0)
        lost = torch.where(valid, overflow, 0).unsqueeze(-1)
        lost_slopes = unbounded((slopes > wide.max / 4).any(-2, keepdim=True))
        lost_slopes = lost + torch.where(valid, lost_slopes, 0).unsqueeze(-1)

        def spread(rows: Tensor) -> Tensor:  # (M, K, H, D) to (N, H, D)
            total = pointgrad.scatter(rows.flatten(-2).flatten(-3, -2), index.flatten(-2), key.shape[-3])
            return total.unflatten(-1, rows.shape[-2:])

        grads = {
            "query": most * (slopes.unsqueeze(-1) * picked_key.abs() + lost_slopes).sum(-3),
            "key": most * spread(slopes.unsqueeze(-1) * query.abs().unsqueeze(-3) + lost_slopes),
            "value": spread(shares.unsqueeze(-1) * grad.unsqueeze(-3) + lost),
        }
        if "bias" in given:
            slopes = slopes + lost_slopes.squeeze(-1)
            grads["bias"] = slopes if given["bias"].shape[-1] == num_heads else slopes.sum(-1, keepdim=True)
    return [forward], grads


weights, values, index = torch.zeros(5, 2), torch.zeros(6, 4), torch.zeros(5, 2, dtype=torch.int64)
query, key, bias = torch.zeros(5, 2, 3), torch.zeros(6, 2, 3), torch.zeros(5, 2, 2)
logits, flags = torch.zeros(4, 3), torch.ones(4, 3, dtype=torch.bool)

OPERATORS = [
    OpInfo(
        "aggregate", aggregate, differentiable=("weights", "values"), plain=plain_aggregate,
        index_rows=lambda arguments: arguments["values"].shape[-2],
        samples=[
            Sample("packed", lambda m: sums(m, m.index(7, 4, 3), 7, 5), large=lambda m: sums(m, m.index(997, 2003, 9), 997, 67)),
            Sample("padded", lambda m: sums(m, m.index(5, 2, 4, 3), 5, 3), large=lambda m: sums(m, m.index(97, 3, 801, 8), 97, 33)),
            Sample("groups", lambda m: sums(m, m.index(7, 4, 3), 7, 6, 2), large=lambda m: sums(m, m.index(397, 1003, 9), 397, 64, 8)),
            Sample("per-channel", lambda m: sums(m, m.index(5, 2, 3, 3), 5, 3, 3)),
            Sample("one-neighbor", lambda m: sums(m, m.index(3, 5, 1), 3, 1)),
            Sample("same-row", lambda m: sums(m, m.ints(*[2] * 40).view(8, 5), 3, 4)),
            Sample("no-rows", lambda m: sums(m, m.ints(-1, -1).view(1, 2), 0, 3)),
            Sample("no-centers", lambda m: sums(m, m.index(4, 0, 3), 4, 2)),
            Sample("no-neighbors", lambda m: sums(m, m.index(4, 3, 0), 4, 2)),
            Sample("no-channels", lambda m: sums(m, m.index(4, 3, 2), 4, 0)),
            Sample("no-clouds", lambda m: sums(m, m.index(4, 0, 3, 2), 4, 2)),
            Sample("int32-index", lambda m: sums(m, m.index(7, 4, 3).int(), 7, 5)),
        ],
        errors=[
            *tensor_errors({"weights": weights, "values": values, "index": index}, weights=[None, weights.long()], index=[[0], index.float()], values=[values.half(), values.to("meta")]),
            value_error("values must be (N, C) or (B, N, C), got (6,)", weights, torch.zeros(6), index),
            *each(value_error, "index must be (M, K) with values (N, C), or (B, M, K) with (B, N, C)", got("(2,)", weights, values, index[0]), got("(2, 5, 2)", weights, torch.zeros(3, 6, 4), index.expand(2, 5, 2))),
            value_error("weights must be (5, 2) like index, or (5, 2, G), got (4, 2)", weights[:4], values, index),
            *each(value_error, "weights must be (5, 2, G) with G dividing C = 4", got("(5, 2, 3)", torch.zeros(5, 2, 3), values, index), got("(5, 2, 0)", torch.zeros(5, 2, 0), values, index)),
            *each(bad_values, "index must be -1 or in [0, 6)", got("6", weights, values, index + 6), got("-2", weights, values, index - 2)),
        ],
        draw=draw_aggregate, magnitudes=linear_in_each(aggregate, ("weights", "values")),
        bad_arguments={"index": [None], "weights": [1.0]},
        precision=[Precision(lambda m: sums(m, m.below(m.rows, m.rows, 12), m.rows, 16, 4))],
        benchmarks=[
            Benchmark("aggregate {0} x 16 x 128", lambda m, n: sums(m, m.below(n, n, 16), n, 128), (10_000,), {"PyTorch": plain_aggregate}, BOTH_PASSES, ("weights", "values"), cuda=(100_000,)),
            Benchmark("aggregate 3 of {0}, {2} x {1} x 256", three_rows, (1024, 4096, 2), {"PyTorch": plain_aggregate}, EACH_PASS, ("weights", "values"), floor=True, cuda=(1024, 4096, 16)),
        ],
        growing=lambda n: (
            aggregate, torch.rand(n, n + 1, n + 2), torch.rand(n + 3, 2 * n + 4), any_index(n + 3, n, n + 1),
        ),
    ),
    OpInfo(
        "neighbor_attention", neighbor_attention, differentiable=("query", "key", "value", "bias"), plain=plain_attention,
        index_rows=lambda arguments: arguments["key"].shape[-3],
        samples=[
            Sample("packed", lambda m: heads(m, m.index(7, 4, 3), 7, 2, 3), large=lambda m: heads(m, m.index(997, 1003, 9), 997, 4, 16)),
            Sample("padded", lambda m: {**heads(m, m.index(5, 2, 3, 3), 5, 2, 2, 3), "scale": 0.3}, large=lambda m: heads(m, m.index(97, 3, 301, 8), 97, 3, 11, 7, 3)),
            Sample("bias", lambda m: heads(m, m.index(7, 4, 3), 7, 2, 3, 2, 2)),
            Sample("shared-bias", lambda m: heads(m, m.index(7, 4, 5), 7, 3, 2, 1, 1)),
            Sample("one", lambda m: heads(m, m.index(3, 5, 1), 3, 1, 1)),
            Sample("same-row", lambda m: heads(m, m.ints(*[1] * 12).view(4, 3), 2, 2, 2)),
            Sample("no-rows", lambda m: heads(m, m.ints(-1, -1).view(1, 2), 0, 2, 3)),
            Sample("no-centers", lambda m: heads(m, m.index(4, 0, 3), 4, 2, 3)),
            Sample("no-neighbors", lambda m: heads(m, m.index(4, 3, 0), 4, 2, 3, 2, 2)),
            Sample("no-depth", lambda m: heads(m, m.index(4, 3, 2), 4, 2, 0, 3)),
            Sample("no-clouds", lambda m: heads(m, m.index(4, 0, 3, 2), 4, 2, 3)),
            Sample("int32-index", lambda m: heads(m, m.index(7, 4, 3).int(), 7, 1, 4)),
        ],
        errors=[
            *tensor_errors({"query": query, "key": key, "value": key, "index": index}, value=[None, key.double()], bias=[bias.tolist(), bias.to("meta")], query=[query.int()], index=[index.bool()]),
            *each(type_error, "scale must be a number or None", got("str '1'", query, key, key, index, scale="1"), got("bool True", query, key, key, index, scale=True)),
            *each(value_error, "query must be (M, H, D) or (B, M, H, D) with at least one head", got("(2, 3)", query[0], key, key, index), got("(5, 0, 3)", query[:, :0], key, key, index)),
            value_error("key must be (N, 2, 3) to match query, got (6, 2, 2)", query, key[..., :2], key, index),
            value_error("value must be (6, 2, Dv) to match key, got (5, 2, 3)", query, key, key[:5], index),
            value_error("index must be (5, K) to match query, got (4, 2)", query, key, key, index[:4]),
            value_error("bias must be (5, 2, 2) or (5, 2, 1), got (5, 2, 0)", query, key, key, index, bias[..., :0]),
            *each(bad_values, "index must be -1 or in [0, 6)", got("6", query, key, key, index + 6), got("-2", query, key, key, index - 2)),
        ],
        draw=draw_attention, magnitudes=attention_magnitudes,
        bad_arguments={"scale": ["1", True, [1.0]], "bias": [1.0], "index": [None]},
        precision=[Precision(lambda m: heads(m, m.below(m.rows, m.rows, 12), m.rows, 4, 8, 8, 4))],
        benchmarks=[
            Benchmark("attention {0} x 16 x 128", lambda m, n: heads(m, m.below(n, n, 16), n, 8, 16), (10_000,), {"PyTorch": plain_attention}, BOTH_PASSES, ("query", "key", "value"), cuda=(100_000,)),
        ],
        growing=lambda n: (
            neighbor_attention, torch.rand(n, n + 1, n + 2), torch.rand(n + 3, n + 1, n + 2),
            torch.rand(n + 3, n + 1, n + 4), any_index(n + 3, n, n + 5), torch.rand(n, n + 5, n + 1),
        ),
    ),
    OpInfo(
        "masked_softmax", masked_softmax, differentiable=("logits",), plain=lambda logits, mask: logits.masked_fill(~mask, -torch.inf).softmax(-1),
        samples=[
            Sample("last", lambda m: masked(m, 4, 5)),
            Sample("middle", lambda m: masked(m, 2, 4, 3, dim=1, broadcast=(2, 4, 1)), large=lambda m: masked(m, 200, 16, 33, dim=1, broadcast=(200, 16, 1))),
            Sample("all-masked", lambda m: {"logits": m.floats(2, 3), "mask": m.mask(3) & False}),
            Sample("empty", lambda m: masked(m, 3, 0)),
        ],
        errors=[
            *tensor_errors({"logits": logits, "mask": flags}, logits=[[0.0], logits.int()], mask=[None, flags.to("meta")]),
            type_error("dim must be an int, got float 0.5", logits, flags, 0.5),
            value_error("logits must have at least one dimension, got ()", logits[0, 0], flags),
            *each(value_error, "mask must be broadcastable to logits (4, 3)", got("(4, 2)", logits, flags[:, :2]), got("(1, 4, 3)", logits, flags[None])),
            type_error("mask must be bool, got int32", logits, flags.int()),
            value_error("dim must be in [-2, 2), got 2", logits, flags, 2),
        ],
        draw=draw_masked, magnitudes=masked_magnitudes, rounds=True,
        bad_arguments={"dim": [3, -4, 1.0, None, True], "mask": [None]},
        precision=[Precision(lambda m: {"logits": m.floats(m.rows, 20), "mask": m.mask(m.rows, 20)})],
        growing=lambda n: (masked_softmax, torch.rand(n, n + 1), torch.rand(n, n + 1) > 0.5),
    ),
]  # fmt: skip

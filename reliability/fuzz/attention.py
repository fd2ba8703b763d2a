"""masked_softmax, aggregate and neighbor_attention."""

import torch
from torch import Tensor

import pointgrad

from .draw import Draw
from .operators import Arguments, Operator, doubled, linear_in_each


def steepness(dtype: torch.dtype) -> int:
    """How much the rounding of its argument weighs in an exponential, which else is 0: the argument is no larger."""
    return 745 if dtype == torch.float64 else 104


def _masked(draw: Draw) -> Arguments:
    shape = [draw.size(f"size {axis}", most=65) for axis in range(draw.number("rank", 1, 3))]
    while torch.Size(shape).numel() > 20_000:
        shape[shape.index(max(shape))] = 3
    logits = draw.floats("logits", draw.dtype(), *shape)
    broadcast = [1 if draw.flag(f"mask {axis}", 5) else size for axis, size in enumerate(shape)]
    mask = torch.rand(broadcast, generator=draw.generator) < draw.pick("kept", (0.8, 0.3, 0.0, 1.1))
    mask = mask[0] if len(broadcast) > 1 and broadcast[0] == 1 and draw.flag("mask of less rank") else mask
    return {"logits": logits, "mask": mask.to(draw.device), "dim": draw.number("dim", -len(shape), len(shape) - 1)}


def _masked_magnitudes(
    arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]
) -> tuple[list[Tensor | None], dict[str, Tensor]]:
    with pointgrad.backend("reference"):
        shares = pointgrad.masked_softmax(**doubled(arguments))
    forward = (1 + steepness(outputs[0].dtype)) * shares
    if not upstream:
        return [forward], {}
    grad = torch.where(arguments["mask"], upstream[0].abs(), 0)
    return [forward], {"logits": 2 * forward * (grad + (shares * grad).sum(arguments["dim"], keepdim=True))}


def _aggregate(draw: Draw) -> Arguments:
    batch = (draw.number("clouds", 0, 3),) if draw.flag("padded") else ()
    rows, picks, k = draw.size("rows", most=129), draw.size("picks", most=513), draw.size("k", most=33)
    dtype, groups = draw.dtype(), draw.pick("groups", (0, 1, 2, 3, 8))
    channels = max(groups, 1) * draw.size("width", most=17)
    weights = (*batch, picks, k, *((groups,) if groups else ()))
    return {
        "weights": draw.floats("weights", dtype, *weights),
        "values": draw.floats("values", dtype, *batch, rows, channels),
        "index": draw.index("index", rows, *batch, picks, k),
    }


def _attention(draw: Draw) -> Arguments:
    batch = (draw.number("clouds", 0, 2),) if draw.flag("padded") else ()
    rows, picks, k = draw.size("rows", most=65), draw.size("picks", most=33), draw.size("k", most=33)
    dtype, heads, width = draw.dtype(), draw.pick("heads", (1, 2, 3, 4)), draw.size("width", most=33)
    arguments = {
        "query": draw.floats("query", dtype, *batch, picks, heads, width),
        "key": draw.floats("key", dtype, *batch, rows, heads, width),
        "value": draw.floats("value", dtype, *batch, rows, heads, draw.size("value width", most=33)),
        "index": draw.index("index", rows, *batch, picks, k),
    }
    if draw.flag("biased"):
        arguments["bias"] = draw.floats("bias", dtype, *batch, picks, k, draw.pick("bias heads", (heads, 1)))
    if draw.flag("scaled", 3):
        arguments["scale"] = draw.pick("scale", (1.0, 0.0, -2.5, 1e-3))
    return arguments


def _finite(values: Tensor) -> Tensor:
    return values.abs().nan_to_num(0, 0, 0)


def _open(where: Tensor) -> Tensor:
    """A magnitude for which nothing can be said."""
    return torch.where(where, torch.inf, 0.0).double()


def _attention_magnitudes(
    arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]
) -> tuple[list[Tensor | None], dict[str, Tensor]]:
    """A logit errs as its products do, and by as much, relatively, the weight that comes from it."""
    given = doubled(arguments)
    query, key, value, index = given["query"], given["key"], given["value"], given["index"].long()
    heads, scale = query.shape[-2], abs(given.get("scale", max(query.shape[-1], 1) ** -0.5))
    there = (index >= 0).unsqueeze(-1)
    with pointgrad.backend("reference"):
        picked_key = pointgrad.group(key.flatten(-2), index).unflatten(-1, (heads, key.shape[-1]))  # (M, K, H, D)
        picked = pointgrad.group(value.flatten(-2), index).unflatten(-1, (heads, value.shape[-1]))
        signed = given.get("scale", scale)
        logits = signed * (query.unsqueeze(-3) * picked_key).sum(-1)
        sizes = scale * (query.abs().unsqueeze(-3) * picked_key.abs()).sum(-1)
        reach = max(scale, 1.0)  # what is scaled must not overflow before or after
        products = _finite(query).unsqueeze(-3) * (_finite(picked_key) + reach)
        products = torch.where(there, products.sum(-1), 0)
        finite = query.isfinite().all(-1).unsqueeze(-2) & picked_key.isfinite().all(-1)
        if "bias" in given:
            finite = finite & given["bias"].isfinite()
            logits, sizes = logits + given["bias"], sizes + given["bias"].abs()
        # The others have a weight of exactly zero; where numbers overflow, nobody knows.
        counts = there & ((logits != -torch.inf) | finite)
        sizes = torch.where(counts, sizes, 0)
        weights = pointgrad.masked_softmax(logits, there, -2)  # (M, K, H)
        # Of the logit itself and of the largest, which is subtracted.
        blur = 1 + steepness(outputs[0].dtype) + 4 * sizes.sum(-2, keepdim=True)
        shares = weights * blur
        # Where the blur is no longer small a weight may be any, and where a product overflows it may be NaN.
        wide = torch.finfo(torch.promote_types(outputs[0].dtype, torch.float32))
        any_weight = 1e300 * (blur * wide.eps > 0.01).double()  # (M, 1, H)
        overflow = _open((products > wide.max / 4).any(-2, keepdim=True))
        forward = ((shares + any_weight).unsqueeze(-1) * picked.abs()).sum(-3) + overflow.squeeze(-2).unsqueeze(-1)
        if not upstream:
            return [forward], {}
        grad = upstream[0].abs()
        slopes = (grad.unsqueeze(-3) * picked.abs()).sum(-1)
        slopes = 2 * shares * (slopes + (weights * slopes).sum(-2, keepdim=True)) + any_weight
        slopes, shares = torch.where(there, slopes, 0), torch.where(there, shares + any_weight, 0)
        lost = torch.where(there, overflow, 0).unsqueeze(-1)
        flat = index.flatten(-2)
        lost_slopes = _open((slopes > wide.max / 4).any(-2, keepdim=True))
        lost_slopes = lost + torch.where(there, lost_slopes, 0).unsqueeze(-1)

        def spread(rows: Tensor) -> Tensor:  # (M, K, H, D) to (N, H, D)
            total = pointgrad.scatter(rows.flatten(-2).flatten(-3, -2), flat, key.shape[-3])
            return total.unflatten(-1, rows.shape[-2:])

        grads = {
            "query": reach * (slopes.unsqueeze(-1) * picked_key.abs() + lost_slopes).sum(-3),
            "key": reach * spread(slopes.unsqueeze(-1) * query.abs().unsqueeze(-3) + lost_slopes),
            "value": spread(shares.unsqueeze(-1) * grad.unsqueeze(-3) + lost),
        }
        if "bias" in given:
            slopes = slopes + lost_slopes.squeeze(-1)
            grads["bias"] = slopes if given["bias"].shape[-1] == heads else slopes.sum(-1, keepdim=True)
    return [forward], grads


WEIGHED = ("weights", "values")
OPERATORS = [
    Operator(
        "masked_softmax", pointgrad.masked_softmax, _masked, ("logits",), _masked_magnitudes, rounds=True,
        bad_arguments={"dim": [3, -4, 1.0, None, True], "mask": [None]},
    ),
    Operator(
        "aggregate", pointgrad.aggregate, _aggregate, WEIGHED, linear_in_each(pointgrad.aggregate, WEIGHED),
        index_rows=lambda arguments: arguments["values"].shape[-2], bad_arguments={"index": [None], "weights": [1.0]},
    ),
    Operator(
        "neighbor_attention", pointgrad.neighbor_attention, _attention, ("query", "key", "value", "bias"),
        _attention_magnitudes, index_rows=lambda arguments: arguments["key"].shape[-3],
        bad_arguments={"scale": ["1", True, [1.0]], "bias": [1.0], "index": [None]},
    ),
]  # fmt: skip

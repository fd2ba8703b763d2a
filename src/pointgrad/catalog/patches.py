"""patch_attention, patch_index and rotary_embedding."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pointgrad import patch_attention, patch_index, rotary_embedding

from .attention import BOTH_PASSES, attention_magnitudes
from .base import Benchmark, OpInfo, Precision, Sample, any_index, equal_offsets, ints
from .errors import bad_values, each, got, tensor_errors, type_error, value_error
from .inputs import Draw, Make
from .magnitudes import Arguments, Sums

SOURCES = ("query", "key", "value", "bias_table")


def shuffled(m: Make, *sizes: int) -> Tensor:
    """(N,) the points of packed clouds of these sizes, in random order within each cloud."""
    begin = [sum(sizes[:cloud]) for cloud in range(len(sizes))]
    orders = [torch.randperm(size) + first for size, first in zip(sizes, begin, strict=True)]
    return torch.cat([torch.zeros(0, dtype=torch.int64), *orders]).to(m.device)


def cloud_offsets(m: Make, *sizes: int) -> Tensor:
    return m.ints(*(sum(sizes[:cloud]) for cloud in range(len(sizes) + 1)))


def packed(m: Make, sizes: tuple[int, ...], patch: int, heads: int, depth: int, bound: int | None = None) -> Arguments:
    """Packed clouds; one cloud without offsets. `bound` adds a table of position biases."""
    order = shuffled(m, *sizes)
    tensors = {name: m.floats(len(order), heads, depth) for name in SOURCES[:3]}
    arguments = {**tensors, "order": order, "patch": patch, **biased(m, order, heads, bound)}
    return arguments if len(sizes) == 1 else {**arguments, "offsets": cloud_offsets(m, *sizes)}


def padded(
    m: Make, num_points: int, lengths: tuple[int, ...], patch: int, heads: int, depth: int, bound: int | None = None
) -> Arguments:
    order = torch.full((len(lengths), num_points), -1, device=m.device)
    for row, length in zip(order, lengths, strict=True):
        row[:length] = shuffled(m, length)
    tensors = {name: m.floats(*order.shape, heads, depth) for name in SOURCES[:3]}
    return {**tensors, "order": order, "patch": patch, "lengths": m.ints(*lengths), **biased(m, order, heads, bound)}


def biased(m: Make, order: Tensor, heads: int, bound: int | None) -> Arguments:
    if bound is None:
        return {}
    coordinates = m.below(2 * bound + 3, *order.shape, 3)
    return {"coordinates": coordinates, "bias_table": m.floats(3 * (2 * bound + 1), heads)}


def plain_attention(query: Tensor, key: Tensor, value: Tensor, order: Tensor, patch: int) -> Tensor:
    """Gathers patches, computes matrices of logits, and gathers the results."""
    index, inverse = patch_index(order, patch)
    q, k, v = (rows[index.clamp(min=0)].transpose(1, 2) for rows in (query, key, value))
    logits = q @ k.transpose(-1, -2) * query.shape[-1] ** -0.5
    missing = (index < 0)[:, None, None]
    weights = logits.masked_fill(missing, torch.finfo(logits.dtype).min).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(0, 1)[inverse]


def gathered_sdpa(query: Tensor, key: Tensor, value: Tensor, order: Tensor, patch: int) -> Tensor:
    """Flash attention of gathered copies. N must be more than `patch` and not a multiple of it: all patches are full."""
    index, inverse = patch_index(order, patch)
    q, k, v = (rows[index].transpose(1, 2) for rows in (query, key, value))
    out = F.scaled_dot_product_attention(q, k, v)
    return out.transpose(1, 2).flatten(0, 1)[inverse]


def plain_rotary(features: Tensor, positions: Tensor, base: float = 100.0) -> Tensor:
    """Multiplies complex numbers."""
    pairs, wide = features.shape[-1] // 6, torch.promote_types(features.dtype, torch.float32)
    step = torch.arange(pairs, device=features.device, dtype=wide) / pairs
    angle = positions.to(wide).unsqueeze(-1) * torch.pow(base, -step)
    halves = features.to(wide).unflatten(-1, (3, 2, pairs)).unbind(-2)
    turned = torch.complex(*halves) * torch.polar(torch.ones_like(angle), angle).unsqueeze(-3)
    return torch.view_as_real(turned).movedim(-1, -2).flatten(-3).to(features.dtype)


def draw_patches(d: Draw) -> Arguments:
    heads, depth, patch = d.pick("heads", (1, 2, 3)), d.size(65, least=1), d.size(65, (4,), least=1)
    bound = d.pick("bound", (None, None, 0, 2))
    layout, batch = d.layout()
    sizes = tuple(d.size(33) for _ in range(batch))
    if layout in ("packed", "offsets"):
        arguments = packed(d, sizes if sizes else (), patch, heads, depth, bound)
    else:
        most = max(sizes, default=0) + d.number("beyond", 0, 2)
        arguments = padded(d, most, sizes if layout == "lengths" else (most,) * batch, patch, heads, depth, bound)
        arguments = arguments if layout == "lengths" or d.flag("full") else {**arguments, "lengths": None}
    return {**arguments, "scale": d.pick("scale", (1.0, 0.0, -2.5, 1e-3))} if d.flag("scaled", 3) else arguments


def draw_index(d: Draw) -> Arguments:
    arguments = draw_patches(d)
    return {name: arguments[name] for name in ("order", "patch", "offsets", "lengths") if name in arguments}


def draw_rotary(d: Draw) -> Arguments:
    batch, count, heads = d.batch(), d.size(65), d.pick("heads", (0, 1, 3))
    features = d.floats(*batch, count, heads, 6 * d.pick("pairs", (0, 1, 2, 5)))
    positions = d.index(1000, *batch, count, 3) if d.flag("integers") else d.floats(*batch, count, 3)
    return {"features": features, "positions": positions, "base": d.pick("base", (100.0, 10_000.0, 0.5))}


def patch_magnitudes(arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]) -> Sums:
    """The magnitudes of attention to lists of neighbors: the points of each point's patch."""
    order, patch = arguments["order"], arguments["patch"]
    sizes = {name: arguments.get(name) for name in ("offsets", "lengths")}
    index, inverse = patch_index(order, patch, **sizes)
    entries = torch.where(inverse >= 0, inverse // patch, 0)
    lists = index[entries] if order.dim() == 1 else index.gather(1, entries.unsqueeze(-1).expand(*entries.shape, patch))
    lists = torch.where((inverse >= 0).unsqueeze(-1), lists, -1)  # (N, patch)
    plain: Arguments = {name: arguments[name] for name in ("query", "key", "value", "scale") if name in arguments}
    table, rows = arguments.get("bias_table"), torch.zeros(0)
    if table is not None:
        bound = (len(table) // 3 - 1) // 2
        places = arguments["coordinates"].long()
        at = lists.clamp(min=0).flatten(-2)
        near = places[at] if order.dim() == 1 else places.gather(1, at.unsqueeze(-1).expand(*at.shape, 3))
        steps = places.unsqueeze(-2) - near.unflatten(-2, lists.shape[-2:])
        rows = steps.clamp(-bound, bound) + bound + torch.arange(3, device=order.device) * (2 * bound + 1)
        plain["bias"] = table.double()[rows].sum(-2)
    forward, grads = attention_magnitudes({**plain, "index": lists}, upstream, outputs)
    if table is not None and "bias" in grads:
        slopes = grads.pop("bias")
        total = torch.zeros_like(table, dtype=torch.float64)
        for axis in rows.unbind(-1):
            total.index_add_(0, axis.flatten(), slopes.flatten(0, -2))
        grads["bias_table"] = total
    return forward, grads


query, order, table = torch.zeros(6, 2, 3), torch.arange(6), torch.zeros(9, 2)
places, features = torch.zeros(6, 3, dtype=torch.int64), torch.zeros(4, 2, 12)
valid = {"query": query, "key": query, "value": query, "order": order, "patch": 4}
full = (query, query, query)

OPERATORS = [
    OpInfo(
        "patch_attention", patch_attention, differentiable=SOURCES, plain=plain_attention, lowers=True,
        samples=[
            Sample("packed", lambda m: packed(m, (9, 0, 2), 4, 2, 3), large=lambda m: packed(m, (1300, 40, 513), 256, 3, 24)),
            Sample("padded", lambda m: {**padded(m, 6, (5, 0, 6), 4, 2, 2), "scale": 0.3}, large=lambda m: padded(m, 700, (700, 300), 128, 2, 40, 3)),
            Sample("bias", lambda m: packed(m, (9,), 4, 2, 2, 1), any_order=True),
            Sample("one", lambda m: {**packed(m, (1,), 4, 1, 2, 0), "order": m.ints(0).int()}),
            Sample("no-points", lambda m: packed(m, (0, 0), 4, 2, 3, 1)),
        ],
        errors=[
            *tensor_errors(valid, key=[None, query.double()], query=[query.int()], value=[query.to("meta")]),
            type_error("order must be int64 or int32, got float32", *full, order.float(), 4),
            type_error("bias_table must be a torch.Tensor, got list", **valid, coordinates=places, bias_table=[1]),
            *each(type_error, "patch must be an int", got("float 4.0", *full, order, 4.0), got("NoneType None", *full, order, None)),
            type_error("scale must be a number or None, got str '1'", **valid, scale="1"),
            *each(value_error, "query must be (N, H, D) or (B, N, H, D) with H and D at least 1", got("(2, 3)", query[0], query, query, order, 4), got("(6, 2, 0)", query[..., :0], query, query, order, 4)),
            value_error("key must be (6, 2, 3) like query, got (5, 2, 3)", query, query[:5], query, order, 4),
            value_error("order must be (6,) to match query, got (5,)", *full, order[:5], 4),
            value_error("lengths must be None for packed query; use offsets, got a tensor", **valid, lengths=ints(6)),
            value_error("offsets must be (B + 1,), got (1, 1)", **valid, offsets=ints(6)[None]),
            value_error("bias_table must be (3 * (2 * R + 1), H) with H = 2, got (6, 2)", **valid, coordinates=places, bias_table=table[:6]),
            value_error("coordinates must be (6, 3) to match query, got (6, 2)", **valid, coordinates=places[:, :2], bias_table=table),
            value_error("coordinates and bias_table must be given together, got one of them", **valid, bias_table=table),
            *each(value_error, "patch must be in [1, 65536]", got(0, *full, order, 0), got(65537, *full, order, 65537)),
            *each(bad_values, "order[5] must be in [0, 6), the points of its cloud", got(6, *full, ints(0, 1, 2, 3, 4, 6), 4), got(-1, *full, ints(0, 1, 2, 3, 4, -1), 4)),
            bad_values("order[1] must be in [0, 2), the points of its cloud, got 2", *full, ints(0, 2, 1, 3, 4, 5), 4, offsets=ints(0, 2, 6)),
            bad_values("order[3] must be a point that is not listed before, got 1", *full, ints(0, 1, 2, 1, 4, 5), 4),
            bad_values("offsets[-1] must equal N = 6, got 5", **valid, offsets=ints(0, 5)),
        ],
        draw=draw_patches, magnitudes=patch_magnitudes, rounds=True,
        bad_arguments={"patch": [0, -1, 1.5, None, 2**17], "scale": ["1", True], "order": [None], "bias_table": [1.0]},
        precision=[Precision(lambda m: packed(m, (m.rows,), 64, 2, 16))],
        benchmarks=[
            Benchmark(
                "patch attention {0} x {1}, 4 heads of 16", lambda m, n, patch: packed(m, (n,), patch, 4, 16), (10_000, 1024),
                {"PyTorch": plain_attention, "SDPA": gathered_sdpa}, BOTH_PASSES, SOURCES[:3], cuda=(100_000, 1024),
            ),
        ],
        growing=lambda n: (
            lambda q, i, p, o, c, t: patch_attention(q, q, q, i, p, offsets=o, coordinates=c, bias_table=t),
            torch.rand(n * n, n + 1, n + 2), torch.arange(n * n), n + 2, equal_offsets(n, n), any_index(n, n * n, 3),
            torch.rand(9, n + 1),
        ),
    ),
    OpInfo(
        "patch_index", patch_index, plain=lambda order, patch: order[:-1].unfold(0, patch, patch),
        samples=[
            Sample("packed", lambda m: {"order": shuffled(m, 7, 0, 2, 5), "patch": 3, "offsets": cloud_offsets(m, 7, 0, 2, 5)}),
            Sample("padded", lambda m: {name: value for name, value in padded(m, 6, (5, 0, 6), 4, 1, 1).items() if name in ("order", "patch", "lengths")}),
            Sample("empty", lambda m: {"order": shuffled(m, 0).int(), "patch": 2}),
        ],
        errors=[
            type_error("order must be a torch.Tensor, got list", [0, 1], 2),
            value_error("order must be (N,) or (B, N), got ()", order[0], 2),
            value_error("offsets must be None for padded order; use lengths, got a tensor", order[None], 2, offsets=ints(0, 6)),
            value_error("lengths must be (B,) = (1,), got (2,)", order[None], 2, lengths=ints(0, 6)),
            value_error("patch must be in [1, 65536], got 0", order, 0),
            bad_values("order[0, 2] must be a point that is not listed before, got 1", ints(0, 1, 1, 5)[None], 2, lengths=ints(3)),
            bad_values("order[0, 2] must be in [0, 3), the points of its cloud, got 3", ints(0, 1, 3, 5)[None], 2, lengths=ints(3)),
        ],
        draw=draw_index, bad_arguments={"patch": [0, -1, 1.5, None], "order": [None]},
        growing=lambda n: (
            lambda i, p, s: patch_index(i, p, lengths=s),
            torch.arange(n + 1).repeat(n, 1), n + 2, torch.arange(n),
        ),
    ),
    OpInfo(
        "rotary_embedding", rotary_embedding, differentiable=("features", "positions"), plain=plain_rotary,
        samples=[
            Sample("packed", lambda m: {"features": m.floats(4, 2, 12), "positions": m.floats(4, 3)}),
            Sample("padded", lambda m: {"features": m.floats(2, 3, 2, 6), "positions": m.below(9, 2, 3, 3), "base": 1000.0}),
            Sample("empty", lambda m: {"features": m.floats(0, 2, 6), "positions": m.floats(0, 3)}),
        ],
        errors=[
            *tensor_errors({"features": features, "positions": places[:4]}, features=[None, features.int()], positions=[[0]]),
            value_error("features must be (N, H, D) or (B, N, H, D) with D a multiple of 6, got (6, 2, 3)", query, places),
            value_error("positions must be (4, 3) to match features, got (6, 3)", features, places),
            type_error("base must be a number, got str '1'", features, places[:4], "1"),
            *each(value_error, "base must be finite and positive", got(0, features, places[:4], 0), got("inf", features, places[:4], float("inf"))),
        ],
        draw=draw_rotary, bad_arguments={"base": [0.0, -1.0, "1", None], "positions": [None, 1.0]},
        precision=[Precision(lambda m: {"features": m.floats(m.rows, 2, 12), "positions": m.floats(m.rows, 3)})],
        growing=lambda n: (
            rotary_embedding, torch.rand(n, n + 1, n + 2, 6 * n), torch.rand(n, n + 1, 3),
        ),
    ),
]  # fmt: skip

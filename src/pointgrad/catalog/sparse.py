"""sparse_conv, sparse_pool, and the kernel maps, which have the same bits on every backend.

The operators are described as functions of tensors, which build the map and use it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pointgrad import KernelMap, sparse_conv, sparse_pool, strided_map, submanifold_map, transposed_map

from .base import OpInfo, Precision, Sample, any_index, equal_offsets, ints
from .errors import BadCall, bad_values, each, got, tensor_errors, type_error, value_error
from .inputs import VALUES, Draw, Make
from .magnitudes import Arguments, Sums, doubled, linear_in_each, run

ALL = ("features", "weight", "bias")
FINITE = [kind for kind in VALUES if kind != "special"]
EDGES = (127, 128, 129, 257)  # around tiles of rows
LIMIT = 2**31
BAD_SIZES: dict[str, Sequence[Any]] = {
    "kernel_size": [0, -1, 2.0, (1, 2), None, "3", 2**15, (32, 32, 32)], "dilation": [0, -2, 1.0, None, 2**15],
    "unique": [1, None], "coordinates": [None],
}  # fmt: skip
BAD_MAP: dict[str, Sequence[Any]] = {
    **BAD_SIZES, "stride": [0, 1.5, (1, 1)], "padding": [0.5, None, 2**15], "shape": [-1, (3, 3)],
    "outputs": [3], "output_offsets": [3], "output_lengths": [3],
}  # fmt: skip


def convolve(
    features: Tensor, weight: Tensor, coordinates: Tensor, kernel_size: Any, *, bias: Tensor | None = None,
    groups: int = 1, _map: Callable[..., KernelMap] = submanifold_map, _inverse: bool = False, **settings: Any,
) -> Tensor:  # fmt: skip
    """sparse_conv with a map that is built first."""
    found = _map(coordinates, kernel_size, **settings)
    return sparse_conv(features, weight, found.inverse() if _inverse else found, bias=bias, groups=groups)


def pool(
    features: Tensor, coordinates: Tensor, kernel_size: Any, reduce: Any = "max", *,
    _map: Callable[..., KernelMap] = strided_map, _inverse: bool = False, **settings: Any,
) -> Tensor:  # fmt: skip
    """sparse_pool with a map that is built first."""
    found = _map(coordinates, kernel_size, **settings)
    return sparse_pool(features, found.inverse() if _inverse else found, reduce)


def voxels(m: Make, *shape: int, side: int = 3) -> Tensor:
    """Coordinates from -1 to below `side`."""
    return m.index(side, *shape, 3)


def volume(kernel_size: Any) -> int:
    return int(torch.Size([kernel_size] * 3 if isinstance(kernel_size, int) else kernel_size).numel())


def convolved(
    m: Make, coordinates: Tensor, kernel_size: Any, into: int, out: int, groups: int = 1, **settings: Any
) -> Arguments:
    """Features for the coordinates, or for `outputs` of an inverse map, and a weight."""
    rows = settings["outputs"] if settings.get("_inverse") else coordinates
    return {
        "features": m.floats(*rows.shape[:-1], into), "weight": m.floats(volume(kernel_size), into // groups, out),
        "coordinates": coordinates, "kernel_size": kernel_size, "groups": groups, **settings,
    }  # fmt: skip


def pooled(m: Make, coordinates: Tensor, kernel_size: Any, channels: int, **settings: Any) -> Arguments:
    rows = coordinates.shape[:-1]
    features = m.distinct(rows.numel(), channels).reshape(*rows, channels)
    return {"features": features, "coordinates": coordinates, "kernel_size": kernel_size, **settings}


def sizes(m: Make, shift: int = 0, rows: int = 50, **settings: Any) -> Arguments:
    return {"coordinates": voxels(m, rows) + shift, **settings}


def draw_sizes(d: Draw, name: str, least: int, most: int) -> Any:
    if d.flag(f"{name} per axis"):
        return [d.number(f"{name} {axis}", least, most) for axis in range(3)]
    return d.number(name, least, most)


def draw_cloud(d: Draw, layout: tuple[str, int], prefix: str = "") -> Arguments:
    """Voxels of clouds in one of the layouts."""
    kind, batch = layout
    name = "outputs" if prefix else "coordinates"
    rows = d.size(257, EDGES) if batch or kind != "offsets" else 0
    side = d.pick("side", (1, 2, 4, 9))
    if kind in ("packed", "offsets"):
        found = {name: d.index(side, rows, 3)}
        return found if kind == "packed" else {**found, f"{prefix}offsets": d.offsets(rows, batch)}
    found = {name: d.index(side, batch, rows, 3)}
    return found if kind == "padded" else {**found, f"{prefix}lengths": d.below(rows + 1, batch)}


def draw_submanifold(d: Draw) -> Arguments:
    arguments = draw_cloud(d, d.layout())
    shift = d.pick("shift", (0, 0, 0, 0, LIMIT - 9, 1 - LIMIT, 2**20))
    if shift:
        arguments["coordinates"] = arguments["coordinates"].long() + shift
    kernel = draw_sizes(d, "kernel", 1, 3)
    return {**arguments, "kernel_size": kernel, "dilation": draw_sizes(d, "dilation", 1, 3)}


def draw_map(d: Draw) -> Arguments:
    """Arguments of strided_map and transposed_map."""
    layout = d.layout()
    arguments = {
        **draw_cloud(d, layout), "kernel_size": draw_sizes(d, "kernel", 1, 3), "stride": draw_sizes(d, "stride", 1, 3),
        "padding": draw_sizes(d, "padding", -2, 3), "dilation": draw_sizes(d, "dilation", 1, 2),
    }  # fmt: skip
    if d.flag("given"):
        return {**arguments, **draw_cloud(d, layout, "output_")}
    return {**arguments, "shape": draw_sizes(d, "shape", 0, 5)} if d.flag("bounded", 3) else arguments


def draw_build(d: Draw) -> Arguments:
    """Arguments of a function that builds one of the maps."""
    if d.flag("strided or transposed"):
        return {**draw_map(d), "_map": d.pick("map", (strided_map, transposed_map))}
    return {**draw_submanifold(d), "_map": submanifold_map}


def draw_conv(d: Draw) -> Arguments:
    arguments, groups = draw_build(d), d.pick("groups", (1, 1, 1, 2, 3))
    inputs, outputs = (groups * d.size(5 if groups > 1 else 33) for _ in range(2))
    if "outputs" in arguments and d.flag("inverse"):
        arguments["_inverse"] = True
    rows = arguments["outputs" if "_inverse" in arguments else "coordinates"].shape[:-1]
    matrices = (volume(arguments["kernel_size"]), inputs // groups, outputs)
    arguments |= {"features": d.floats(*rows, inputs), "weight": d.floats(*matrices, kinds=FINITE), "groups": groups}
    return {**arguments, "bias": d.floats(outputs)} if d.flag("biased") else arguments


def draw_pool(d: Draw) -> Arguments:
    arguments = draw_build(d)
    features = d.floats(*arguments["coordinates"].shape[:-1], d.size(33))
    return {**arguments, "features": features, "reduce": d.pick("reduce", ("max", "mean", "sum"))}


def pool_magnitudes(arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]) -> Sums:
    """Maxima are copies; an input sums the gradients of the outputs of which it is the maximum."""
    if arguments.get("reduce", "max") != "max":
        return linear_in_each(pool, ALL[:1])(arguments, upstream, outputs)
    _, _, grads = run(pool, ALL[:1], doubled(arguments), [grad.abs() for grad in upstream])
    return [None], grads


def plain_conv(
    features: Tensor, weight: Tensor, coordinates: Tensor, kernel_size: int, bias: Tensor | None = None, groups: int = 1
) -> Tensor:
    """A submanifold convolution: for each position, gather, multiply and add."""
    sources = neighbors(coordinates, kernel_size)
    out = features.new_zeros(len(features), weight.shape[2]) if bias is None else bias.expand(len(features), -1)
    for position, matrix in enumerate(weight):
        into = (sources[:, position] >= 0).nonzero()[:, 0]
        out = out.index_add(0, into, features[sources[into, position]] @ matrix)
    return out


def plain_pool(features: Tensor, coordinates: Tensor, kernel_size: int, reduce: str, stride: int) -> Tensor:
    """A pool whose windows do not overlap."""
    found, into = torch.unique(coordinates // stride, dim=0, return_inverse=True)
    name = {"max": "amax", "mean": "mean", "sum": "sum"}[reduce]
    at = into[:, None].expand_as(features)
    # torch shares the gradient of a maximum with the initial value where they are equal.
    start = features.new_full((len(found), features.shape[1]), -torch.inf)
    return start.scatter_reduce(0, at, features, name, include_self=False)


def neighbors(coordinates: Tensor, kernel_size: int) -> Tensor:
    """(N, K) the row of each neighbor of different voxels, or -1, by a search in sorted keys."""
    lowest = coordinates.min(0).values - kernel_size
    sides = (coordinates.max(0).values - lowest + kernel_size + 1).tolist()
    steps = coordinates.new_tensor([sides[1] * sides[2], sides[2], 1])
    key, order = ((coordinates - lowest) * steps).sum(1).sort()
    axis = torch.arange(kernel_size, device=coordinates.device) - kernel_size // 2
    moves = (torch.cartesian_prod(axis, axis, axis).reshape(-1, 3) * steps).sum(1)
    wanted = ((coordinates - lowest) * steps).sum(1)[:, None] + moves
    place = torch.searchsorted(key, wanted).clamp_(max=len(key) - 1)
    return torch.where(key[place] == wanted, order[place], -1)


def apart(m: Make, rows: int, side: int) -> Tensor:
    """Different voxels in random order."""
    place = torch.randperm(side**3)[:rows]
    return torch.stack([place // side**2, place // side % side, place % side], 1).to(m.device)


def cloud_errors(**other: Any) -> list[BadCall]:
    """Errors of the coordinates and sizes, which all maps have."""
    return [
        *each(type_error, "coordinates must be int64 or int32", got("float32", line.float(), 3, **other), got("bool", line.bool(), 3, **other)),
        type_error("coordinates must be a torch.Tensor, got NoneType None", None, 3, **other),
        value_error("coordinates must be (N, 3) or (B, N, 3), got (6, 2)", line[:, :2], 3, **other),
        value_error("offsets must be None for padded coordinates (B, N, 3); use lengths, got a tensor", line[None], 3, offsets=ints(0, 6), **other),
        value_error("lengths must be None for packed coordinates (N, 3); use offsets, got a tensor", line, 3, lengths=ints(6), **other),
        type_error("offsets must be int64 or int32, got float32", line, 3, offsets=ints(0, 6).float(), **other),
        value_error("offsets must be on the device of coordinates, cpu, got meta", line, 3, offsets=ints(0, 6).to("meta"), **other),
        *each(type_error, "kernel_size must be an int or three ints", got("float 3.0", line, 3.0, **other), got("str '3'", line, "3", **other)),
        value_error("kernel_size must be one int or three, got 2 ints", line, (3, 3), **other),
        value_error("kernel_size must be in [1, 32767], got 0", line, (3, 0, 3), **other),
        value_error("kernel_size must have fewer than 32768 positions in all, got 32768", line, 32, **other),
        value_error("dilation must be in [1, 32767], got 0", line, 3, dilation=0, **other),
        type_error("unique must be a bool, got int 1", line, 3, unique=1, **other),
        bad_values("coordinates must be different within each cloud, got a voxel that occurs 6 times", line, 3, unique=True, **other),
        bad_values("offsets[-1] must equal N = 6, got 7", line, 3, offsets=ints(0, 7), **other),
        bad_values("lengths[0] must be in [0, N = 6], got 7", line[None], 3, lengths=ints(7), **other),
    ]  # fmt: skip


def map_errors() -> list[BadCall]:
    """Errors of strided_map and transposed_map."""
    return [
        *cloud_errors(),
        value_error("stride must be in [1, 32767], got 0", line, 3, stride=0),
        value_error("padding must be in [-32767, 32767], got 32768", line, 3, padding=2**15),
        value_error("shape must be in [0, 2147483648], got -1", line, 3, shape=(-1, 1, 1)),
        value_error("shape must be None with outputs, got (1, 1, 1)", line, 3, shape=(1, 1, 1), outputs=line),
        value_error("output_offsets must be None without outputs, got a tensor", line, 3, output_offsets=ints(0, 6)),
        value_error("outputs must be (M, 3) with coordinates (N, 3), or (B, M, 3) with (B, N, 3), got (1, 6, 3)", line, 3, outputs=line[None]),
        value_error("outputs must have as many clouds as coordinates, B = 1, got B = 2", line, 3, outputs=line, output_offsets=ints(0, 3, 6)),
        value_error("outputs must be on the device of coordinates, cpu, got meta", line, 3, outputs=line.to("meta")),
        value_error("coordinates must be on a device that holds values if they are packed, got meta", line.to("meta"), 3),
        bad_values("output_offsets[-1] must equal N = 6, got 5", line, 3, outputs=line, output_offsets=ints(0, 5)),
        bad_values("outputs must be different within each cloud, got a voxel that occurs 6 times", line[:1], 3, outputs=line, unique=True),
    ]  # fmt: skip


line, features, weight = torch.zeros(6, 3, dtype=torch.int64), torch.zeros(6, 4), torch.zeros(1, 4, 2)
valid = {"features": features, "weight": weight, "coordinates": line, "kernel_size": 1}

OPERATORS = [
    OpInfo(
        "sparse_conv", convolve, differentiable=ALL, plain=plain_conv, lowers=True, finite=("weight",),
        samples=[
            Sample(
                "submanifold", lambda m: convolved(m, voxels(m, 9, side=1), (1, 3, 3), 2, 1, offsets=m.ints(0, 5, 5, 9), bias=m.floats(1)),
                large=lambda m: convolved(m, voxels(m, 700, side=9), 3, 17, 33, offsets=m.ints(0, 300, 300, 700)),
            ),
            Sample("padded", lambda m: convolved(m, voxels(m, 3, 4), (2, 1, 2), 2, 4, 2, dilation=(1, 1, 2), lengths=m.ints(4, 0, 3), bias=m.floats(4))),
            Sample(
                "strided", lambda m: convolved(m, voxels(m, 7), (1, 2, 3), 2, 2, 2, _map=strided_map, stride=2, padding=1), waits=True,
                large=lambda m: convolved(m, voxels(m, 2, 150, side=6), 3, 5, 5, 5, _map=strided_map, stride=2, padding=1),
            ),
            Sample("transposed", lambda m: convolved(m, voxels(m, 2, 3), (2, 1, 2), 1, 2, _map=transposed_map, stride=2)),
            Sample("inverse", lambda m: convolved(m, voxels(m, 6), 2, 1, 1, _map=strided_map, _inverse=True, outputs=voxels(m, 4, side=1), stride=2)),
            Sample("one-voxel", lambda m: convolved(m, voxels(m, 1), 1, 3, 2, bias=m.floats(2))),
            Sample("empty", lambda m: convolved(m, voxels(m, 0), 3, 3, 2, bias=m.floats(2))),
        ],
        errors=[
            *tensor_errors(valid, features=[None, features.long()], weight=[None, weight.double(), weight.to("meta"), weight.to_sparse()], bias=[1.0, torch.zeros(2).double()]),
            value_error("map must be on the device of features, cpu, got meta", features, weight, line.to("meta"), 1),
            type_error("groups must be an int, got float 1.0", features, weight, line, 1, groups=1.0),
            *each(value_error, "weight must be (1, C / groups, D)", got("(27, 4, 2)", features, torch.zeros(27, 4, 2), line, 1), got("(4, 2)", features, weight[0], line, 1)),
            *each(value_error, "weight must be (1, C / groups, D), where C = 4 and groups = 1 divides C and D", got("(1, 3, 2)", features, weight[:, :3], line, 1)),
            *each(value_error, "weight must be (1, C / groups, D), where C = 4 and groups = 4 divides C and D", got("(1, 1, 2)", features, weight[:, :1], line, 1, groups=4)),
            *each(value_error, "weight must be (1, C / groups, D), where C = 4 and groups = 0 divides C and D", got("(1, 4, 2)", features, weight, line, 1, groups=0)),
            value_error("bias must be (D,) = (2,), got (3,)", features, weight, line, 1, bias=torch.zeros(3)),
            *each(value_error, "features must be (5, C), one row for each input of the map", got("(6, 4)", features, weight, line[:5], 1), got("(5, 4, 1)", features[:5, :, None], weight, line[:5], 1)),
            value_error("features must be (1, 6, C), one row for each input of the map, got (6, 4)", features, weight, line[None], 1),
        ],
        draw=draw_conv, magnitudes=linear_in_each(convolve, ALL),
        bad_arguments={**BAD_SIZES, "features": [None, 1.0], "weight": [None], "bias": [1.0], "groups": [0, -1, 1.0, None]},
        precision=[Precision(lambda m: convolved(m, apart(m, m.rows, 8), 3, 5, 4, bias=m.floats(4)))],
        growing=lambda n: (
            lambda f, w, c, b, o: sparse_conv(
                f, w, strided_map(c, (1, 2, 2), stride=2, offsets=o), bias=b
            ),
            torch.rand(n * n, n + 1), torch.rand(4, n + 1, n + 2), any_index(n, n * n, 3), torch.rand(n + 2), equal_offsets(n, n),
        ),
    ),
    OpInfo(
        "sparse_pool", pool, differentiable=ALL[:1], plain=plain_pool,
        samples=[
            Sample(
                "max", lambda m: pooled(m, voxels(m, 12), 2, 3, stride=2), waits=True,
                large=lambda m: pooled(m, voxels(m, 2, 700, side=9), 3, 33, stride=2, lengths=m.ints(700, 650)),
            ),
            Sample("mean", lambda m: pooled(m, voxels(m, 3, 5), (1, 2, 3), 2, reduce="mean", stride=2, padding=(0, -1, 1), lengths=m.ints(5, 0, 4))),
            Sample("sum", lambda m: pooled(m, voxels(m, 9, side=2), (1, 3, 3), 2, reduce="sum", _map=submanifold_map)),
            Sample("ties", lambda m: {**pooled(m, voxels(m, 2, 12, side=2), (3, 1, 3), 2, _map=submanifold_map), "features": m.grid(2, 12, 2)}, smooth=False),
        ],
        errors=[
            type_error("features must be a torch.Tensor, got NoneType None", None, line, 1),
            type_error("features must be float32, float64, float16 or bfloat16, got int64", features.long(), line, 1),
            value_error("features must be (6, C), one row for each input of the map, got (5, 4)", features[:5], line, 1),
            value_error("map must be on the device of features, cpu, got meta", features[None], line[None].to("meta"), 1),
            value_error("reduce must be 'max', 'mean' or 'sum', got 'min'", features, line, 1, "min"),
        ],
        draw=draw_pool, magnitudes=pool_magnitudes, bad_arguments={**BAD_SIZES, "features": [None, 1.0], "reduce": ["min", None, 1]},
        precision=[
            Precision(lambda m, reduce=reduce: pooled(m, apart(m, m.rows // 2, 8), 2, 4, stride=2, reduce=reduce), reduce)  # type: ignore[misc]
            for reduce in ("max", "mean", "sum")
        ],
        growing=lambda n: (
            lambda f, c: [
                sparse_pool(f, submanifold_map(c, 3), reduce) for reduce in ("max", "mean", "sum")
            ],
            torch.rand(n, n + 1, n + 2), any_index(n, n, n + 1, 3),
        ),
    ),
    OpInfo(
        "submanifold_map", submanifold_map,
        samples=[
            Sample("packed", lambda m: sizes(m, kernel_size=3, offsets=m.ints(0, 20, 20, 50)), large=lambda m: {"coordinates": voxels(m, 3001, side=20), "kernel_size": 3}),
            Sample("padded-even", lambda m: {"coordinates": voxels(m, 2, 9).int(), "kernel_size": (2, 3, 1), "dilation": (1, 2, 1), "lengths": m.ints(9, 4)}),
            Sample("highest", lambda m: sizes(m, LIMIT - 3, kernel_size=3)),
            Sample("lowest", lambda m: sizes(m, 1 - LIMIT, kernel_size=3)),
            Sample("empty", lambda m: sizes(m, rows=0, kernel_size=2)),
        ],
        errors=[
            *cloud_errors(),
            *each(bad_values, "coordinates must be in the range of int32", got(2**31, line + 2**31, 3), got(-(2**40), line - 2**40, 3)),
        ],
        draw=draw_submanifold, bad_arguments=BAD_SIZES,
        growing=lambda n: (
            lambda c, s: submanifold_map(c, 2, lengths=s), any_index(n, n, n + 1, 3), torch.arange(n),
        ),
    ),
    OpInfo(
        "strided_map", strided_map,
        samples=[
            Sample("packed", lambda m: sizes(m, kernel_size=3, stride=2, padding=1, offsets=m.ints(0, 20, 20, 50)), waits=True, large=lambda m: {"coordinates": voxels(m, 3001, side=20), "kernel_size": 3, "stride": 2}),
            Sample("padded", lambda m: {"coordinates": voxels(m, 2, 9), "kernel_size": (2, 3, 1), "stride": (2, 1, 3), "dilation": (1, 2, 1), "padding": (0, -1, 2), "lengths": m.ints(9, 4)}),
            Sample("outputs", lambda m: sizes(m, -LIMIT + 1, kernel_size=2, stride=2, padding=(1, 0, 3), outputs=voxels(m, 20, side=2) - LIMIT // 2)),
            Sample("shape", lambda m: sizes(m, kernel_size=3, stride=1, shape=(3, 2, 1)), waits=True),
            Sample("empty", lambda m: sizes(m, rows=0, kernel_size=2, stride=2), waits=True),
        ],
        errors=[
            *map_errors(),
            *each(bad_values, "coordinates must be in the range of int32", got(2**31, line + 2**31, 2, stride=2)),
            *each(bad_values, "outputs must be in the range of int32", got(2**31, line, 2, outputs=line + 2**31)),
        ],
        draw=draw_map, bad_arguments=BAD_MAP,
        growing=lambda n: (
            lambda c, o: strided_map(c, 3, stride=2, offsets=o), any_index(n, n * n, 3), equal_offsets(n, n),
        ),
    ),
    OpInfo(
        "transposed_map", transposed_map,
        samples=[
            Sample("packed", lambda m: sizes(m, kernel_size=3, stride=2, padding=1, offsets=m.ints(0, 20, 20, 50)), waits=True),
            Sample("padded", lambda m: {"coordinates": voxels(m, 2, 9), "kernel_size": (2, 3, 1), "stride": (2, 1, 3), "dilation": (1, 2, 1), "padding": (0, -1, 2), "lengths": m.ints(9, 4)}),
            Sample("outputs", lambda m: sizes(m, rows=20, kernel_size=2, stride=2, outputs=voxels(m, 30))),
        ],
        errors=map_errors(),
        draw=draw_map, bad_arguments=BAD_MAP,
        growing=lambda n: (
            lambda c, o: transposed_map(c, 2, stride=2, offsets=o), any_index(n, n * n, 3), equal_offsets(n, n),
        ),
    ),
]  # fmt: skip

"""The compiled module `pointops._C` of Pointcept: packed clouds, results in arguments.

Points are (n, 3), features (n, c); `offset` (b,) has the ends of the clouds. Functions read and write arrays whose
sizes are the first arguments, and return nothing. As in the original, sums and gradients are added to the arrays that
receive them.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

import pointgrad
from pointgrad.ops import checks

from .._arrays import Arrays, check_index
from .._scalars import number
from .functions import query
from .functions.aggregation import aggregation
from .functions.attention import attention_fusion_step, attention_relation_step
from .functions.sampling import farthest_point_sampling
from .functions.subtraction import subtraction

__all__ = [
    "aggregation_backward_cuda",
    "aggregation_forward_cuda",
    "attention_fusion_step_backward_cuda",
    "attention_fusion_step_forward_cuda",
    "attention_relation_step_backward_cuda",
    "attention_relation_step_forward_cuda",
    "ball_query_cuda",
    "farthest_point_sampling_cuda",
    "grouping_backward_cuda",
    "grouping_forward_cuda",
    "interpolation_backward_cuda",
    "interpolation_forward_cuda",
    "knn_query_cuda",
    "random_ball_query_cuda",
    "subtraction_backward_cuda",
    "subtraction_forward_cuda",
]

MISSING2 = 1e10  # squared distance of missing neighbors


def knn_query_cuda(
    m: int, nsample: int, xyz: Tensor, new_xyz: Tensor, offset: Tensor, new_offset: Tensor, idx: Tensor, dist2: Tensor
) -> None:
    """Write the `nsample` nearest neighbors to `idx` and squared distances to `dist2`, both (m, nsample).

    Missing neighbors have index -1 and squared distance 1e10.
    """
    arrays = Arrays(m=m, nsample=nsample)
    points, queries = arrays.floats("xyz", xyz, "* 3"), arrays.floats("new_xyz", new_xyz, "m 3")
    out, out2 = arrays.out_index("idx", idx, "m nsample"), arrays.out("dist2", dist2, "m nsample")
    if nsample > 0:
        found = query.nearest(nsample, points, offset, queries, new_offset)
        out.copy_(found.index)
        out2.copy_(found.distance2.masked_fill(found.index < 0, MISSING2))


def ball_query_cuda(
    m: int,
    nsample: int,
    min_radius: float,
    max_radius: float,
    xyz: Tensor,
    new_xyz: Tensor,
    offset: Tensor,
    new_offset: Tensor,
    idx: Tensor,
    dist2: Tensor,
) -> None:
    """Write the result of `pointops.ball_query` to `idx`, and squared distances to `dist2`, both (m, nsample)."""
    arrays = Arrays(m=m, nsample=nsample)
    points, queries = arrays.floats("xyz", xyz, "* 3"), arrays.floats("new_xyz", new_xyz, "m 3")
    out, out2 = arrays.out_index("idx", idx, "m nsample"), arrays.out("dist2", dist2, "m nsample")
    index, distance = query.ball_query(
        nsample, number(max_radius), number(min_radius), points, offset, queries, new_offset
    )
    out.copy_(index)
    out2.copy_(distance.square())


def random_ball_query_cuda(
    m: int,
    nsample: int,
    min_radius: float,
    max_radius: float,
    order: Tensor,
    xyz: Tensor,
    new_xyz: Tensor,
    offset: Tensor,
    new_offset: Tensor,
    idx: Tensor,
    dist2: Tensor,
) -> None:
    """Write the first `nsample` points of each ball, in the order `order` (n,), to `idx` and `dist2` (m, nsample)."""
    arrays = Arrays(m=m, nsample=nsample)
    points, queries = arrays.floats("xyz", xyz, "* 3"), arrays.floats("new_xyz", new_xyz, "m 3")
    out, out2 = arrays.out_index("idx", idx, "m nsample"), arrays.out("dist2", dist2, "m nsample")
    permutation = arrays.index("order", order, "*").long()
    checks.shape(permutation.shape[0] == points.shape[0], "order", f"({points.shape[0]},), like xyz", order)
    check_index("order", permutation, points.shape[0])
    found, inner, hole = query.all_in_ball(
        nsample, number(max_radius), number(min_radius), points[permutation], offset, queries, new_offset
    )
    rank = torch.arange(found.index.shape[1], device=points.device)
    first, last = inner.unsqueeze(1), (inner + hole).unsqueeze(1)
    outside = (found.index < 0) | ((rank >= first) & (rank < last))
    position, chosen = found.index.masked_fill(outside, points.shape[0]).sort(dim=1)
    valid = position[:, :nsample] < points.shape[0]
    missing = nsample - valid.shape[1]
    index = permutation[position[:, :nsample].where(valid, 0)].where(valid, -1)
    distance2 = found.distance2.gather(1, chosen)[:, :nsample].masked_fill(~valid, MISSING2)
    out.copy_(functional.pad(index, (0, missing), value=-1))
    out2.copy_(functional.pad(distance2, (0, missing), value=MISSING2))


def farthest_point_sampling_cuda(
    b: int, n: int, xyz: Tensor, offset: Tensor, new_offset: Tensor, tmp: Tensor, idx: Tensor
) -> None:
    """Write the rows of farthest point sampling to `idx` (new_offset[-1],); `n` and `tmp` are not used."""
    arrays = Arrays(b=b)
    points = arrays.floats("xyz", xyz, "* 3")
    ends, new_ends = arrays.index("offset", offset, "b"), arrays.index("new_offset", new_offset, "b")
    out = arrays.out_index("idx", idx, "*")
    index = farthest_point_sampling(points, ends, new_ends)
    checks.shape(out.shape == index.shape, "idx", f"(new_offset[-1],) = ({index.shape[0]},)", idx)
    out.copy_(index)


def grouping_forward_cuda(m: int, nsample: int, c: int, input: Tensor, idx: Tensor, output: Tensor) -> None:
    """Write the features (n, c) of neighbors to `output` (m, nsample, c)."""
    arrays = Arrays(m=m, nsample=nsample, c=c)
    features, index = arrays.floats("input", input, "* c"), arrays.index("idx", idx, "m nsample")
    arrays.out("output", output, "m nsample c").copy_(pointgrad.group(features, index))


def grouping_backward_cuda(m: int, nsample: int, c: int, grad_output: Tensor, idx: Tensor, grad_input: Tensor) -> None:
    """Add the gradient of `grouping_forward_cuda` to `grad_input` (n, c)."""
    arrays = Arrays(m=m, nsample=nsample, c=c)
    gradient, index = arrays.floats("grad_output", grad_output, "m nsample c"), arrays.index("idx", idx, "m nsample")
    out = arrays.out("grad_input", grad_input, "* c")
    out.add_(pointgrad.scatter(gradient.flatten(0, 1), index.flatten(), out.shape[0]))


def interpolation_forward_cuda(
    n: int, c: int, k: int, input: Tensor, idx: Tensor, weight: Tensor, output: Tensor
) -> None:
    """Add weighted sums of k rows of `input` (m, c) to `output` (n, c)."""
    arrays = Arrays(n=n, c=c, k=k)
    features, index = arrays.floats("input", input, "* c"), arrays.index("idx", idx, "n k")
    weights, out = arrays.floats("weight", weight, "n k"), arrays.out("output", output, "n c")
    out.add_(pointgrad.interpolate_at(features, index, weights))


def interpolation_backward_cuda(
    n: int, c: int, k: int, grad_output: Tensor, idx: Tensor, weight: Tensor, grad_input: Tensor
) -> None:
    """Add the gradient of the features of `interpolation_forward_cuda` to `grad_input` (m, c)."""
    arrays = Arrays(n=n, c=c, k=k)
    gradient, index = arrays.floats("grad_output", grad_output, "n c"), arrays.index("idx", idx, "n k")
    weights, out = arrays.floats("weight", weight, "n k"), arrays.out("grad_input", grad_input, "* c")
    spread = gradient.unsqueeze(1) * weights.unsqueeze(2)
    out.add_(pointgrad.scatter(spread.flatten(0, 1), index.flatten(), out.shape[0]))


def subtraction_forward_cuda(
    n: int, nsample: int, c: int, input1: Tensor, input2: Tensor, idx: Tensor, output: Tensor
) -> None:
    """Write the differences of `input1` (n, c) and its neighbors in `input2` to `output` (n, nsample, c)."""
    arrays = Arrays(n=n, nsample=nsample, c=c)
    features1, features2 = arrays.floats("input1", input1, "n c"), arrays.floats("input2", input2, "* c")
    index, out = arrays.index("idx", idx, "n nsample"), arrays.out("output", output, "n nsample c")
    out.copy_(subtraction(features1, features2, index))


def subtraction_backward_cuda(
    n: int, nsample: int, c: int, idx: Tensor, grad_output: Tensor, grad_input1: Tensor, grad_input2: Tensor
) -> None:
    """Add the gradients of `subtraction_forward_cuda` to `grad_input1` (n, c) and `grad_input2`."""
    arrays = Arrays(n=n, nsample=nsample, c=c)
    index, gradient = arrays.index("idx", idx, "n nsample"), arrays.floats("grad_output", grad_output, "n nsample c")
    out1, out2 = arrays.out("grad_input1", grad_input1, "n c"), arrays.out("grad_input2", grad_input2, "* c")
    out1.add_(gradient.sum(1))
    out2.sub_(pointgrad.scatter(gradient.flatten(0, 1), index.flatten(), out2.shape[0]))


def aggregation_forward_cuda(
    n: int, nsample: int, c: int, w_c: int, input: Tensor, position: Tensor, weight: Tensor, idx: Tensor, output: Tensor
) -> None:
    """Add the result of `pointops.aggregation` to `output` (n, c)."""
    arrays = Arrays(n=n, nsample=nsample, c=c, w_c=w_c)
    features, positions = arrays.floats("input", input, "* c"), arrays.floats("position", position, "n nsample c")
    weights, index = arrays.floats("weight", weight, "n nsample w_c"), arrays.index("idx", idx, "n nsample")
    arrays.out("output", output, "n c").add_(aggregation(features, positions, weights, index))


def aggregation_backward_cuda(
    n: int,
    nsample: int,
    c: int,
    w_c: int,
    input: Tensor,
    position: Tensor,
    weight: Tensor,
    idx: Tensor,
    grad_output: Tensor,
    grad_input: Tensor,
    grad_position: Tensor,
    grad_weight: Tensor,
) -> None:
    """Add the gradients of `aggregation_forward_cuda` to `grad_input`, `grad_position` and `grad_weight`."""
    arrays = Arrays(n=n, nsample=nsample, c=c, w_c=w_c)
    features, positions = arrays.floats("input", input, "* c"), arrays.floats("position", position, "n nsample c")
    weights, index = arrays.floats("weight", weight, "n nsample w_c"), arrays.index("idx", idx, "n nsample")
    gradient = arrays.floats("grad_output", grad_output, "n c")
    outs = {
        "grad_input": arrays.out("grad_input", grad_input, "* c"),
        "grad_position": arrays.out("grad_position", grad_position, "n nsample c"),
        "grad_weight": arrays.out("grad_weight", grad_weight, "n nsample w_c"),
    }
    inputs = features, positions, weights
    _add_gradients(outs, lambda x, p, w: aggregation(x, p, w, index), inputs, gradient)


def attention_relation_step_forward_cuda(
    m: int,
    g: int,
    c: int,
    query: Tensor,
    key: Tensor,
    weight: Tensor,
    index_target: Tensor,
    index_refer: Tensor,
    output: Tensor,
) -> None:
    """Add the result of `pointops.attention_relation_step` to `output` (m, g)."""
    arrays = Arrays(m=m, g=g, c=c)
    queries, keys = arrays.floats("query", query, "* g c"), arrays.floats("key", key, "* g c")
    weights, out = arrays.floats("weight", weight, "c"), arrays.out("output", output, "m g")
    target, refer = arrays.index("index_target", index_target, "m"), arrays.index("index_refer", index_refer, "m")
    out.add_(attention_relation_step(queries, keys, weights, target, refer))


def attention_relation_step_backward_cuda(
    m: int,
    g: int,
    c: int,
    query: Tensor,
    grad_query: Tensor,
    key: Tensor,
    grad_key: Tensor,
    weight: Tensor,
    grad_weight: Tensor,
    index_target: Tensor,
    index_refer: Tensor,
    grad_output: Tensor,
) -> None:
    """Add the gradients of `attention_relation_step_forward_cuda` to `grad_query`, `grad_key` and `grad_weight`."""
    arrays = Arrays(m=m, g=g, c=c)
    queries, keys = arrays.floats("query", query, "* g c"), arrays.floats("key", key, "* g c")
    weights, gradient = arrays.floats("weight", weight, "c"), arrays.floats("grad_output", grad_output, "m g")
    target, refer = arrays.index("index_target", index_target, "m"), arrays.index("index_refer", index_refer, "m")
    outs = {
        "grad_query": arrays.out("grad_query", grad_query, "* g c"),
        "grad_key": arrays.out("grad_key", grad_key, "* g c"),
        "grad_weight": arrays.out("grad_weight", grad_weight, "c"),
    }
    inputs = queries, keys, weights
    _add_gradients(outs, lambda q, k, w: attention_relation_step(q, k, w, target, refer), inputs, gradient)


def attention_fusion_step_forward_cuda(
    m: int, g: int, c: int, weight: Tensor, value: Tensor, index_target: Tensor, index_refer: Tensor, output: Tensor
) -> None:
    """Add the result of `pointops.attention_fusion_step` to `output` (n, g, c)."""
    arrays = Arrays(m=m, g=g, c=c)
    weights, values = arrays.floats("weight", weight, "m g"), arrays.floats("value", value, "* g c")
    target, refer = arrays.index("index_target", index_target, "m"), arrays.index("index_refer", index_refer, "m")
    out = arrays.out("output", output, "* g c")
    checks.shape(out.shape == values.shape, "output", f"{tuple(values.shape)}, like value", output)
    out.add_(attention_fusion_step(weights, values, target, refer))


def attention_fusion_step_backward_cuda(
    m: int,
    g: int,
    c: int,
    weight: Tensor,
    grad_weight: Tensor,
    value: Tensor,
    grad_value: Tensor,
    index_target: Tensor,
    index_refer: Tensor,
    grad_output: Tensor,
) -> None:
    """Add the gradients of `attention_fusion_step_forward_cuda` to `grad_weight` and `grad_value`."""
    arrays = Arrays(m=m, g=g, c=c)
    weights, values = arrays.floats("weight", weight, "m g"), arrays.floats("value", value, "* g c")
    target, refer = arrays.index("index_target", index_target, "m"), arrays.index("index_refer", index_refer, "m")
    gradient = arrays.floats("grad_output", grad_output, "* g c")
    checks.shape(gradient.shape == values.shape, "grad_output", f"{tuple(values.shape)}, like value", grad_output)
    outs = {
        "grad_weight": arrays.out("grad_weight", grad_weight, "m g"),
        "grad_value": arrays.out("grad_value", grad_value, "* g c"),
    }
    _add_gradients(outs, lambda w, v: attention_fusion_step(w, v, target, refer), (weights, values), gradient)


def _add_gradients(
    outs: dict[str, Tensor], function: Callable[..., Tensor], inputs: Sequence[Tensor], gradient: Tensor
) -> None:
    """Add the gradients of `function(*inputs)` to `outs`, given the gradient of its result."""
    for (name, out), value in zip(outs.items(), inputs, strict=True):
        checks.shape(out.shape == value.shape, name, f"{tuple(value.shape)}, like its input", out)
    with torch.enable_grad():
        leaves = [value.requires_grad_() for value in inputs]  # detached by `Arrays`
        gradients = torch.autograd.grad(function(*leaves), leaves, gradient)
    for out, value in zip(outs.values(), gradients, strict=True):
        out.add_(value)

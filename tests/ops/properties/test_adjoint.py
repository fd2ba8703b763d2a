"""Linear operators: <Ax, y> = <x, Aᵀy> where Aᵀ is the backward, A(ax + by) = aAx + bAy, and the backward of the
backward is A.

With small integers every product and sum is exact in any order, so these are equalities to the last bit. Operators
that divide or take roots are compared in float64, within 1e-12 of the sum of absolute terms.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import assume
from hypothesis import strategies as st

import pointgrad
from pointgrad import functional
from tests.ops.properties.laws import DEVICE, clouds, indices, integers, law, offsets, reals

HALVES = {torch.float16: 2**11, torch.bfloat16: 2**8}  # largest exact integer
EXACT_DTYPES = [torch.float64, torch.float32, *HALVES]


@dataclass
class Linear:
    call: Callable  # linear in all its arguments together
    shapes: list[tuple[int, ...]]
    bits: int = 0  # binary digits after the point in the entries of A


size = st.integers(1, 5)
rows = st.integers(1, 12)


def gather(draw):
    n, c, m = draw(rows), draw(size), draw(rows)
    index = draw(indices(n, m))
    return Linear(lambda x: pointgrad.gather(x, index), [(n, c)])


def gather_padded(draw):
    b, n, c, m = draw(size), draw(rows), draw(size), draw(rows)
    index = draw(indices(n, b, m))
    return Linear(lambda x: pointgrad.gather(x, index), [(b, n, c)])


def group(draw):
    n, c, m, k = draw(rows), draw(size), draw(rows), draw(size)
    index = draw(indices(n, m, k))
    return Linear(lambda x: pointgrad.group(x, index), [(n, c)])


def group_relative(draw):
    b, n, c, m, k = draw(size), draw(rows), draw(size), draw(rows), draw(size)
    index = draw(indices(n, b, m, k))

    def call(features, points, centers):
        return pointgrad.group(features, index, points=points, centers=centers)

    return Linear(call, [(b, n, c), (b, n, 3), (b, m, 3)])


def scatter(draw, reduce="sum"):
    b, e, c, groups = draw(size), draw(rows), draw(size), draw(size)
    index = draw(indices(groups, b, e))
    return Linear(lambda x: pointgrad.scatter(x, index, groups, reduce), [(b, e, c)])


def scatter_mean(draw):
    return scatter(draw, "mean")


def segment(draw, reduce="sum"):
    e, c = draw(rows), draw(size)
    cuts = draw(offsets(e))
    return Linear(lambda x: pointgrad.segment(x, cuts, reduce), [(e, c)])


def segment_mean(draw):
    return segment(draw, "mean")


def histogram(draw):
    b, e, bins = draw(size), draw(rows), draw(size)
    index = draw(indices(bins, b, e))
    return Linear(lambda x: pointgrad.histogram(index, bins, x), [(b, e)])


def interpolate(draw):
    n, m, c, k = draw(rows), draw(rows), draw(size), draw(size)
    points, queries = draw(reals(n, 3)), draw(reals(m, 3))
    return Linear(lambda x: pointgrad.interpolate(x, points, queries, k), [(n, c)])


def interpolate_at(draw):
    n, m, c, k = draw(rows), draw(rows), draw(size), draw(size)
    index, weights = draw(indices(n, m, k)), draw(integers(m, k))
    return Linear(lambda x: pointgrad.interpolate_at(x, index, weights.to(x.dtype)), [(n, c)])


def interpolate_at_weights(draw):
    n, m, c, k = draw(rows), draw(rows), draw(size), draw(size)
    index, features = draw(indices(n, m, k)), draw(integers(n, c))
    return Linear(lambda w: pointgrad.interpolate_at(features.to(w.dtype), index, w), [(m, k)])


def aggregate(draw):
    b, n, m, width, k, groups = (draw(size) for _ in range(6))
    index, weights = draw(indices(n, b, m, k)), draw(integers(b, m, k, groups))
    return Linear(lambda x: pointgrad.aggregate(weights.to(x.dtype), x, index), [(b, n, width * groups)])


def aggregate_weights(draw):
    b, n, m, width, k, groups = (draw(size) for _ in range(6))
    index, values = draw(indices(n, b, m, k)), draw(integers(b, n, width * groups))
    return Linear(lambda w: pointgrad.aggregate(w, values.to(w.dtype), index), [(b, m, k, groups)])


def attention(draw):
    n, m, k, heads, depth, width = (draw(size) for _ in range(6))
    index, query, key = draw(indices(n, m, k)), draw(reals(m, heads, depth)), draw(reals(n, heads, depth))
    return Linear(lambda x: pointgrad.neighbor_attention(query, key, x, index), [(n, heads, width)])


def trilinear(draw):
    n, c = draw(rows), draw(size)
    points = draw(integers(n, 3, most=6)) / 4
    return Linear(lambda x: pointgrad.trilinear(x, points.to(x.dtype)), [(n, 8, c)], bits=9)


PADDING = st.sampled_from(["zeros", "border", "reflection"])


def grid_sample(draw):
    b, c, n, sizes = draw(size), draw(size), draw(rows), draw(st.tuples(*[st.sampled_from([1, 2, 4])] * 3))
    points, padding = draw(integers(b, n, 3, most=6)) / 4, draw(PADDING)
    return Linear(
        lambda x: pointgrad.grid_sample(x, points.to(x.dtype), padding_mode=padding), [(b, c, *sizes)], bits=9
    )


def splat(draw):
    b, c, n, sizes = draw(size), draw(size), draw(rows), draw(st.tuples(*[st.sampled_from([1, 2, 4])] * 3))
    points, padding = draw(integers(b, n, 3, most=6)) / 4, draw(PADDING)
    return Linear(lambda x: pointgrad.splat(x, points.to(x.dtype), sizes, padding_mode=padding), [(b, n, c)], bits=9)


def grid_sample_anywhere(draw):
    b, c, n, sizes = draw(size), draw(size), draw(rows), draw(st.tuples(size, size, size))
    points, padding, align = draw(reals(b, n, 3)), draw(PADDING), draw(st.booleans())
    return Linear(
        lambda x: pointgrad.grid_sample(x, points, padding_mode=padding, align_corners=align), [(b, c, *sizes)]
    )


def windows(draw):
    pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, dilation, stride = draw(pairs), draw(pairs), draw(pairs)
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    reach = [step * (length - 1) + 1 for step, length in zip(dilation, kernel, strict=True)]
    image = [max(draw(st.integers(1, 6)), r - 2 * p, 1) for r, p in zip(reach, padding, strict=True)]
    return image, {"kernel_size": kernel, "dilation": dilation, "padding": padding, "stride": stride}


def unfold(draw):
    image, steps = windows(draw)
    return Linear(lambda x: functional.unfold(x, **steps), [(draw(size), draw(size), *image)])


def fold(draw):
    n, c = draw(size), draw(size)
    image, steps = windows(draw)
    columns = functional.unfold(torch.zeros(n, c, *image, device=DEVICE), **steps).shape
    return Linear(lambda x: functional.fold(x, image, **steps), [tuple(columns)])


def convolution(draw):
    """Image, settings, and the shape of the weight; `parts` groups of channels."""
    image, steps = windows(draw)
    parts, c, o = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    weight = (o * parts, c, *steps.pop("kernel_size"))
    return (draw(st.integers(1, 3)), c * parts, *image), {**steps, "groups": parts}, weight


def conv2d(draw):
    image, steps, shape = convolution(draw)
    weight = draw(integers(*shape))
    return Linear(lambda x: functional.conv2d(x, weight.to(x.dtype), **steps), [image])


def conv2d_weight(draw):
    image, steps, shape = convolution(draw)
    values = draw(integers(*image))
    return Linear(lambda w, b: functional.conv2d(values.to(w.dtype), w, b, **steps), [shape, shape[:1]])


def conv1d(draw):
    n, c, o, k, length = draw(size), draw(size), draw(size), draw(st.integers(1, 3)), draw(st.integers(3, 9))
    weight, stride, padding = draw(integers(o, c, k)), draw(st.integers(1, 2)), draw(st.integers(0, 2))
    return Linear(lambda x: functional.conv1d(x, weight.to(x.dtype), None, stride, padding), [(n, c, length)])


def conv1d_weight(draw):
    n, c, o, k, length = draw(size), draw(size), draw(size), draw(st.integers(1, 3)), draw(st.integers(3, 9))
    values = draw(integers(n, c, length))
    return Linear(lambda w, b: functional.conv1d(values.to(w.dtype), w, b, padding="same"), [(o, c, k), (o,)])


def sparse(draw):
    """A map, the rows of its inputs, and the shape of a weight; `parts` groups of channels."""
    places, parts = draw(clouds(dims=(3, 3), most=12, reach=2)).long(), draw(st.integers(1, 2))
    kernel = draw(st.tuples(*[st.integers(1, 3)] * 3))
    if draw(st.booleans()):
        found = pointgrad.submanifold_map(places, kernel)
    else:
        found = pointgrad.strided_map(places, kernel, stride=draw(st.integers(1, 2)), padding=draw(st.integers(0, 1)))
    found = found.inverse() if draw(st.booleans()) else found
    shape = (found.sources.shape[1], draw(st.integers(1, 2)), parts * draw(st.integers(1, 2)))
    return found, (len(found.input_coordinates), parts * shape[1]), shape, parts


def sparse_conv(draw):
    found, rows, shape, parts = sparse(draw)
    weight = draw(integers(*shape, most=2))
    return Linear(lambda x: pointgrad.sparse_conv(x, weight.to(x.dtype), found, groups=parts), [rows])


def sparse_conv_weight(draw):
    found, rows, shape, parts = sparse(draw)
    features = draw(integers(*rows, most=2))
    call = lambda w, b: pointgrad.sparse_conv(features.to(w.dtype), w, found, bias=b, groups=parts)  # noqa: E731
    return Linear(call, [shape, shape[2:]])


def sparse_sum(draw):
    found, rows, _, _ = sparse(draw)
    return Linear(lambda x: pointgrad.sparse_pool(x, found, "sum"), [rows])


def sparse_mean(draw):
    found, rows, _, _ = sparse(draw)
    return Linear(lambda x: pointgrad.sparse_pool(x, found, "mean"), [rows])


def linear(draw):
    n, c, o = draw(rows), draw(size), draw(size)
    weight = draw(integers(o, c))
    return Linear(lambda x: functional.linear(x, weight.to(x.dtype)), [(n, 2, c)])


def linear_weight(draw):
    n, c, o = draw(rows), draw(size), draw(size)
    values = draw(integers(n, c))
    return Linear(lambda w, b: functional.linear(values.to(w.dtype), w, b), [(o, c), (o,)])


def cat(draw):
    shape, dim = [draw(size), draw(size)], draw(st.integers(0, 1))
    widths = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    return Linear(lambda *xs: functional.cat(xs, dim), [(*shape[:dim], w, *shape[dim + 1 :]) for w in widths])


def mean_of_powers(draw):
    """A mean over a power of two of entries: the division is exact."""
    return Linear(lambda x: functional.mean(x, (0, 2)), [(draw(st.sampled_from([1, 2, 4])), draw(size), 4)], bits=4)


def mean(draw):
    dims, keep = draw(st.sampled_from([None, 0, 1, -1, (0, 2)])), draw(st.booleans())
    return Linear(lambda x: functional.mean(x, dims, keep), [tuple(draw(size) for _ in range(3))])


def nll(draw):
    n, c, d = draw(rows), draw(size), draw(size)
    target, weight = draw(indices(c, n, d)), draw(integers(c)).abs()
    reduction = draw(st.sampled_from(["none", "sum"]))

    def call(x):
        return functional.nll_loss(x, target, weight.to(x.dtype), ignore_index=-1, reduction=reduction)

    return Linear(call, [(n, c, d)])


def nll_mean(draw):
    n, c = draw(rows), draw(size)
    target = draw(indices(c, n)).clamp(min=0)
    return Linear(lambda x: functional.nll_loss(x, target), [(n, c)])


def cross_entropy_target(draw):
    """Linear in the probabilities, which need not sum to one."""
    n, c = draw(rows), draw(size)
    logits, weight = draw(reals(n, c)), draw(reals(c)).abs()
    reduction = draw(st.sampled_from(["none", "sum", "mean"]))
    return Linear(lambda t: functional.cross_entropy(logits, t, weight, reduction=reduction), [(n, c)])


EXACT = [
    gather, gather_padded, group, group_relative, scatter, segment, histogram, interpolate_at, interpolate_at_weights,
    aggregate, aggregate_weights, trilinear, grid_sample, splat, unfold, fold, conv2d, conv2d_weight, conv1d,
    conv1d_weight, sparse_conv, sparse_conv_weight, sparse_sum, linear, linear_weight, cat, mean_of_powers, nll,
]  # fmt: skip
ROUNDED = [
    scatter_mean, segment_mean, sparse_mean, interpolate, attention, grid_sample_anywhere, mean, nll_mean,
    cross_entropy_target,
]  # fmt: skip


def inner(xs, ys):
    """The inner product in float64, and the sum of the absolute values of its terms."""
    terms = [a.double() * b.double() for a, b in zip(xs, ys, strict=True)]
    return sum(term.sum().item() for term in terms), sum(term.abs().sum().item() for term in terms)


def transposed(operator, xs, data, strategy):
    """A x, a random y, and Aᵀ y as a function of y."""
    output = operator.call(*[x.requires_grad_() for x in xs])
    y = data.draw(strategy(*output.shape, dtype=output.dtype)).requires_grad_()
    return output, y, torch.autograd.grad(output, xs, y, create_graph=True)


@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: kind.__name__)
@law(data=st.data(), dtype=st.sampled_from(EXACT_DTYPES))
def test_exactly(kind, data, dtype):
    operator = kind(data.draw)
    assume(not (operator.bits and dtype in HALVES))
    most = 2 if dtype in HALVES else 4
    xs, zs = ([data.draw(integers(*shape, most=most, dtype=dtype)) for shape in operator.shapes] for _ in range(2))
    output, y, back = transposed(operator, xs, data, integers)
    limit = HALVES.get(dtype, 2**22) / 2 ** (operator.bits + 2)  # leaves two bits for 2x - z below
    assume(all(value.abs().max() <= limit for value in (output, *back) if value.numel()))
    assert inner([output], [y])[0] == inner(xs, back)[0]
    other = operator.call(*zs)
    assert torch.equal(torch.autograd.grad(back, y, zs)[0], other)
    mixed = operator.call(*(2 * x - z for x, z in zip(xs, zs, strict=True)))
    assert torch.equal(mixed, 2 * output - other)


@pytest.mark.parametrize("kind", [*EXACT, *ROUNDED], ids=lambda kind: kind.__name__)
@law(data=st.data())
def test_in_float64(kind, data):
    operator = kind(data.draw)
    xs, zs = ([data.draw(reals(*shape)) for shape in operator.shapes] for _ in range(2))
    output, y, back = transposed(operator, xs, data, reals)
    (forward, terms), (backward, others) = inner([output], [y]), inner(xs, back)
    assert abs(forward - backward) <= 1e-12 * (terms + others)
    other = operator.call(*zs)
    torch.testing.assert_close(torch.autograd.grad(back, y, zs)[0], other, rtol=1e-12, atol=1e-12)
    mixed = operator.call(*(2 * x - z for x, z in zip(xs, zs, strict=True)))
    torch.testing.assert_close(mixed, 2 * output - other, rtol=1e-12, atol=1e-11)

"""pointgrad.compat.torch_scatter: what torch-scatter documents, worked out element by element; what it gets wrong;
itself where it is installed."""

import importlib
import inspect
import itertools
import math
import sys

import numpy as np
import pytest
import torch

from pointgrad.compat import torch_scatter
from pointgrad.compat.torch_scatter import (
    gather_coo,
    gather_csr,
    scatter,
    scatter_add,
    scatter_log_softmax,
    scatter_logsumexp,
    scatter_max,
    scatter_mean,
    scatter_min,
    scatter_mul,
    scatter_softmax,
    scatter_std,
    scatter_sum,
    segment_coo,
    segment_csr,
    segment_max_coo,
    segment_max_csr,
    segment_min_csr,
)
from pointgrad.compat.torch_scatter.utils import broadcast

nan, inf = float("nan"), float("inf")
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
REDUCTIONS = ["sum", "mul", "mean", "min", "max"]

# Shapes of src, shape of index, dim: one index for all, for each leading position, for each element, and mixtures.
LAYOUTS = [
    ((7,), (7,), -1),
    ((7, 3), (7,), 0),
    ((3, 7), (7,), 1),
    ((3, 7), (7,), -1),
    ((2, 7, 3), (7,), 1),
    ((2, 7, 3), (2, 7), 1),
    ((2, 7, 3), (2, 7), -2),
    ((2, 7, 3), (1, 7), 1),
    ((2, 7, 3), (2, 7, 3), 1),
    ((2, 7, 3), (2, 7, 1), 1),
    ((2, 7, 3), (1, 7, 3), 1),
    ((7, 2, 3), (7, 1, 3), 0),
    ((2, 2, 7), (2, 2, 7), 2),
    ((2, 7, 2, 2), (2, 7, 1, 2), -3),
]


def groups_by_hand(src, index, dim):
    """For each position outside `dim` and each group the places along `dim`, in order."""
    dim = dim % src.dim()
    shape = list(index.shape)
    if len(shape) == 1:
        shape = [1] * dim + shape
    shape += [1] * (src.dim() - len(shape))
    full = np.broadcast_to(index.cpu().numpy().reshape(shape), tuple(src.shape))
    found = {}
    for place in itertools.product(*map(range, src.shape)):
        key = (*place[:dim], int(full[place]), *place[dim + 1 :])
        found.setdefault(key, []).append(place[dim])
    return found


def reduce_by_hand(src, index, dim, size, reduce):
    """Values in float64 or int64, and places; empty groups are 0, their place the size of src."""
    dim = dim % src.dim()
    exact = src.detach().cpu().double() if src.is_floating_point() else src.cpu().long()
    shape = [*src.shape[:dim], size, *src.shape[dim + 1 :]]
    values = torch.full(shape, 1 if reduce == "mul" else 0, dtype=exact.dtype)
    arg = torch.full(shape, src.shape[dim])
    for key, places in groups_by_hand(src, index, dim).items():
        members = [exact[(*key[:dim], place, *key[dim + 1 :])].item() for place in places]
        if reduce in ("min", "max"):
            best = max(members) if reduce == "max" else min(members)
            values[key], arg[key] = best, places[members.index(best)]
        elif reduce == "mean":
            values[key] = sum(members) / len(members) if src.is_floating_point() else sum(members) // len(members)
        else:
            values[key] = sum(members) if reduce == "sum" else math.prod(members)
    return values, arg


def values_like(dtype, shape, device="cpu"):
    if dtype.is_floating_point:
        return (torch.randint(-8, 9, shape) / 4).to(device, dtype)  # sums and products are exact in 16 bits too
    return torch.randint(0 if dtype == torch.uint8 else -3, 4, shape).to(device, dtype)


def close(received, expected, dtype):
    """To one rounding of the exact result."""
    assert received.dtype == dtype
    if dtype.is_floating_point:
        received, eps = received.cpu().double(), torch.finfo(dtype).eps
        torch.testing.assert_close(received, expected.double(), rtol=eps, atol=0)
    else:
        assert torch.equal(received.cpu(), expected.to(dtype))


# -- scatter -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize(("shape", "index_shape", "dim"), LAYOUTS, ids=str)
def test_scatter_equals_a_plain_loop(shape, index_shape, dim, reduce, default_place):
    src = values_like(torch.float32, shape, default_place.device)
    index = torch.randint(0, 5, index_shape, device=default_place.device)
    received = scatter(src, index, dim, dim_size=6, reduce=reduce)
    expected, arg = reduce_by_hand(src, index, dim, 6, reduce)
    close(received, expected, torch.float32)
    assert received.is_contiguous()
    if reduce in ("min", "max"):
        function = scatter_max if reduce == "max" else scatter_min
        both = function(src, index, dim, dim_size=6)
        assert type(both) is tuple
        assert torch.equal(both[0], received)
        assert both[1].dtype == torch.int64
        assert torch.equal(both[1].cpu(), arg)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_scatter_keeps_the_dtype(dtype, reduce, default_place):
    src = values_like(dtype, (9, 2), default_place.device)
    index = torch.randint(0, 4, (9,), device=default_place.device)
    expected, _ = reduce_by_hand(src, index, 0, 4, reduce)
    close(scatter(src, index, 0, dim_size=4, reduce=reduce), expected, dtype)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_the_size_comes_from_the_index(reduce):
    src, index = torch.rand(3, 6), torch.tensor([0, 4, 0, 1, 1, 0])
    assert scatter(src, index, reduce=reduce).shape == (3, 5)
    assert torch.equal(scatter(src, index, reduce=reduce), scatter(src, index, dim_size=5, reduce=reduce))


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3), (0, 4, 3)])
def test_empty_inputs_have_empty_results(shape, reduce):
    """Illegal accesses have been reported for the original."""
    for dim in range(len(shape)):
        index = torch.zeros(shape[dim], dtype=torch.int64)
        received = scatter(torch.empty(shape), index, dim, dim_size=4, reduce=reduce)
        assert received.shape == (*shape[:dim], 4, *shape[dim + 1 :])
        assert (received == (1 if reduce == "mul" and received.numel() else 0)).all()
        if shape[dim] == 0:
            assert scatter(torch.empty(shape), index, dim, reduce=reduce).shape == shape
        received = scatter(torch.empty(shape), torch.zeros(shape, dtype=torch.int64), dim, dim_size=4, reduce=reduce)
        assert received.shape == (*shape[:dim], 4, *shape[dim + 1 :])


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("bad", [3, 2**40, -2])
def test_an_index_out_of_range_is_a_value_error(bad, reduce):
    """The original reads and writes out of bounds."""
    index = torch.tensor([0, bad, 1])
    for src in (torch.rand(3), torch.rand(3, 4), torch.rand(2, 3, 4)):
        with pytest.raises(ValueError, match="index must be"):
            scatter(src, index, src.dim() - (2 if src.dim() > 1 else 1), dim_size=3, reduce=reduce)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_minus_one_goes_nowhere(reduce, default_place):
    src = torch.rand(3, 2, device=default_place.device, requires_grad=True)
    index = torch.tensor([1, -1, 1], device=default_place.device)
    received = scatter(src, index, 0, dim_size=2, reduce=reduce)
    torch.testing.assert_close(received, scatter(src[::2], index[::2], 0, dim_size=2, reduce=reduce))
    (grad,) = torch.autograd.grad(received.sum(), src)
    assert (grad[1] == 0).all()


def test_views_are_read_right(default_place):
    src = torch.rand(5, 8, 6, device=default_place.device)
    index = torch.randint(0, 4, (16,), device=default_place.device)[::2]
    for view in (src.transpose(0, 2).contiguous().transpose(0, 2), src.flip(0), src[:1].expand(5, 8, 6)):
        for reduce in REDUCTIONS:
            expected = scatter(view.contiguous(), index.contiguous(), 1, dim_size=4, reduce=reduce)
            torch.testing.assert_close(scatter(view, index, 1, dim_size=4, reduce=reduce), expected)


def test_an_expanded_index_is_as_good_as_a_short_one(default_place):
    """What `broadcast` returns takes the path of the short one: no copy for each channel."""
    src = torch.rand(4, 9, 3, device=default_place.device)
    index = torch.randint(0, 5, (9,), device=default_place.device)
    rows = sys.modules["pointgrad.compat.torch_scatter._rows"]
    assert rows.by_index(src, broadcast(index, src, 1), 1).values.shape == (4, 9, 3)
    for reduce in REDUCTIONS:
        expected = scatter(src, index, 1, reduce=reduce)
        torch.testing.assert_close(scatter(src, broadcast(index, src, 1), 1, reduce=reduce), expected)
        torch.testing.assert_close(scatter(src, broadcast(index, src, 1).contiguous(), 1, reduce=reduce), expected)


def test_broadcast_aligns_from_the_left():
    other = torch.empty(2, 3, 4)
    assert broadcast(torch.arange(3), other, -2)[1, :, 2].tolist() == [0, 1, 2]
    assert broadcast(torch.arange(6).reshape(2, 3), other, 1)[1, :, 2].tolist() == [3, 4, 5]
    assert broadcast(torch.arange(4), other, 2)[1, 2].tolist() == [0, 1, 2, 3]


def test_the_mean_of_small_integers_does_not_overflow():
    """The original counts and adds in the dtype of the values."""
    src = torch.full((300,), 100, dtype=torch.uint8)
    assert scatter_mean(src, torch.zeros(300, dtype=torch.int64)).tolist() == [100]


def test_the_mean_of_integers_is_rounded_down():
    src, index = torch.tensor([-3, -4, 3, 4]), torch.tensor([0, 0, 1, 1])
    assert scatter_mean(src, index).tolist() == [-4, 3]
    assert segment_coo(src, index, reduce="mean").tolist() == [-3, 3]  # as the original: towards 0
    assert segment_csr(src, torch.tensor([0, 2, 4]), reduce="mean").tolist() == [-3, 3]


def test_the_maximum_of_minus_infinity_is_minus_infinity(default_place):
    """The original takes it for an empty group: 0, and no place."""
    src = torch.tensor([-inf, -inf, 1.0], device=default_place.device)
    index = torch.tensor([0, 0, 2], device=default_place.device)
    best, arg = scatter_max(src, index)
    assert best.tolist() == [-inf, 0, 1]
    assert arg.tolist() == [0, 3, 2]
    assert [x.tolist() for x in scatter_min(-src, index)] == [[inf, 0, -1], [0, 3, 2]]
    assert scatter_min(torch.tensor([255], dtype=torch.uint8), torch.tensor([0]))[0].tolist() == [255]
    lowest = torch.iinfo(torch.int64).min
    assert scatter_max(torch.tensor([lowest]), torch.tensor([0]))[0].tolist() == [lowest]


def test_a_nan_is_not_skipped(default_place):
    """The original's maximum of 1 and NaN is 1, and of NaN alone 0."""
    src = torch.tensor([1, nan, nan, 2], device=default_place.device)
    index = torch.tensor([0, 0, 1, 2], device=default_place.device)
    for function in (scatter_max, scatter_min):
        best, arg = function(src, index)
        assert best.isnan().tolist() == [True, True, False]
        assert arg.tolist() == [1, 2, 3]


# -- out ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int16], ids=str)
@pytest.mark.parametrize("index_shape", [(7,), (2, 7, 3)])
def test_out_is_continued(index_shape, dtype, default_place):
    src = values_like(dtype, (2, 7, 3), default_place.device)
    index = torch.randint(0, 5, index_shape, device=default_place.device)
    start = values_like(dtype, (2, 6, 3), default_place.device)
    total, _ = reduce_by_hand(src, index, 1, 6, "sum")
    product, _ = reduce_by_hand(src, index, 1, 6, "mul")
    count, _ = reduce_by_hand(torch.ones_like(src), index, 1, 6, "sum")
    before = start.cpu().to(total.dtype)
    rounding = None if dtype.is_floating_point else "floor"
    expected = {
        "sum": before + total,
        "add": before + total,
        "mul": before * product,
        "mean": torch.div(before + total, count.clamp(min=1), rounding_mode=rounding),
    }
    for reduce, wanted in expected.items():
        out = start.clone()
        assert scatter(src, index, 1, out, reduce=reduce) is out
        close(out, wanted, dtype)
    for reduce, function in (("min", scatter_min), ("max", scatter_max)):
        best, arg = reduce_by_hand(src, index, 1, 6, reduce)
        better = (arg < 7) & ((best > before) if reduce == "max" else (best < before))
        out = start.clone()
        received, places = function(src, index, 1, out)
        assert received is out
        close(out, torch.where(better, best, before), dtype)
        assert torch.equal(places.cpu(), torch.where(better, arg, 7))


def test_an_out_that_is_a_view_is_written_through():
    """The original's extremes, products and segments write to a copy of it and return that."""
    for reduce in REDUCTIONS:
        base = torch.ones(3, 4)
        out = base.T
        received = scatter(torch.full((2, 3), 5.0), torch.tensor([0, 0]), 0, out, reduce=reduce)
        assert received is out
        assert (base[:, 0] == {"sum": 11, "mul": 25, "mean": 5.5, "min": 1, "max": 5}[reduce]).all()
        assert (base[:, 1:] == 1).all()
    base = torch.ones(3, 2)
    assert segment_csr(torch.full((2, 3), 5.0), torch.tensor([0, 2, 2]), base.T).tolist() == [[10] * 3, [0] * 3]
    assert base.tolist() == [[10, 0]] * 3


def test_gradients_flow_through_out():
    src, index = torch.tensor([3.0, 1, 5], requires_grad=True), torch.tensor([0, 0, 1])
    start = torch.tensor([2.0, 7, 4], requires_grad=True)
    upstream = torch.tensor([1.0, 10, 100])
    expected = {
        "sum": ([1, 1, 10], [1, 10, 100]),
        "mean": ([0.5, 0.5, 10], [0.5, 10, 100]),
        "max": ([1, 0, 0], [0, 10, 100]),
        "min": ([0, 1, 10], [0, 0, 100]),
        "mul": ([2, 6, 70], [3, 50, 100]),
    }
    for reduce, grads in expected.items():
        received = scatter(src, index, 0, start.clone(), reduce=reduce)
        received = torch.autograd.grad(received, (src, start), upstream)
        assert [grad.tolist() for grad in received] == [list(map(float, grad)) for grad in grads]


def test_segment_coo_continues_its_first_group():
    """The original's CPU version begins it with row 0 of out, whichever group it is."""
    src, index = torch.tensor([1.0, 2, 4]), torch.tensor([1, 1, 2])
    out = torch.tensor([100.0, 10, 20])
    assert segment_coo(src, index, out) is out
    assert out.tolist() == [100, 13, 24]


# -- segments ----------------------------------------------------------------------------------------------------------

POINTERS = [[0, 3, 3, 7], [0, 7], [0, 0, 7, 7], [2, 3, 5], [0], [4]]


def csr_by_hand(src, indptr, reduce):
    """The same reduction by an index, for the rows that lie in a range."""
    dim = indptr.dim() - 1
    wanted = indptr.expand(*src.shape[:dim], indptr.shape[-1])
    index = torch.full((*src.shape[:dim], src.shape[dim]), -1)
    for place in itertools.product(*map(range, src.shape[:dim])):
        for segment, (begin, end) in enumerate(itertools.pairwise(wanted[place].tolist())):
            index[(*place, slice(begin, end))] = segment
    groups = indptr.shape[-1]
    values, arg = reduce_by_hand(src, torch.where(index < 0, groups, index), dim, groups + 1, reduce)
    return values.narrow(dim, 0, groups - 1), arg.narrow(dim, 0, groups - 1)


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
@pytest.mark.parametrize("indptr", POINTERS, ids=str)
@pytest.mark.parametrize(("shape", "lead"), [((7,), 0), ((7, 3), 0), ((2, 7, 3), 1), ((2, 2, 7), 2), ((1, 7, 3), 1)])
def test_segment_csr_equals_a_plain_loop(shape, lead, indptr, reduce, default_place):
    src = values_like(torch.float32, shape, default_place.device)
    indptr = torch.tensor(indptr, device=default_place.device).reshape((1,) * lead + (-1,))
    received = segment_csr(src, indptr, reduce=reduce)
    expected, arg = csr_by_hand(src, indptr.cpu(), reduce)
    close(received, expected, torch.float32)
    assert received.is_contiguous()
    if reduce in ("min", "max"):
        best, places = (segment_max_csr if reduce == "max" else segment_min_csr)(src, indptr)
        assert torch.equal(best, received)
        assert torch.equal(places.cpu(), arg)


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_each_row_of_pointers_cuts_its_own_values(dtype, reduce, default_place):
    src = values_like(dtype, (3, 7, 2), default_place.device)
    indptr = torch.tensor([[0, 3, 7], [0, 0, 7], [2, 5, 6]], device=default_place.device)
    expected, _ = csr_by_hand(src, indptr.cpu(), reduce)
    if reduce == "mean" and not dtype.is_floating_point:  # towards 0, which the loop above is not
        total, _ = csr_by_hand(src, indptr.cpu(), "sum")
        expected = torch.div(total, indptr.cpu().diff().clamp(min=1).unsqueeze(-1), rounding_mode="trunc")
    close(segment_csr(src, indptr, reduce=reduce), expected, dtype)


def test_segments_overwrite_out():
    out = torch.full((3, 2), 9.0)
    received = segment_csr(torch.ones(4, 2), torch.tensor([0, 1, 1, 4]), out)
    assert received is out
    assert out.tolist() == [[1, 1], [0, 0], [3, 3]]
    out = torch.full((3,), 9.0)
    best, arg = segment_max_csr(torch.tensor([5.0, 6]), torch.tensor([0, 0, 2, 2]), out)
    assert best is out
    assert best.tolist() == [0, 6, 0]
    assert arg.tolist() == [2, 1, 2]


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
@pytest.mark.parametrize(
    ("shape", "index_shape"), [((7,), (7,)), ((7, 3), (7,)), ((2, 7, 3), (2, 7)), ((2, 7), (1, 7))]
)
def test_segment_coo_equals_a_plain_loop(shape, index_shape, reduce, default_place):
    src = values_like(torch.float32, shape, default_place.device)
    index = torch.randint(0, 5, torch.empty(index_shape).shape, device=default_place.device).sort(-1).values
    received = segment_coo(src, index, dim_size=6, reduce=reduce)
    expected, arg = reduce_by_hand(src, index, index.dim() - 1, 6, reduce)
    close(received, expected, torch.float32)
    if reduce == "max":
        assert torch.equal(segment_max_coo(src, index, dim_size=6)[1].cpu(), arg)


def test_segment_coo_takes_an_index_that_is_not_sorted():
    assert segment_coo(torch.tensor([1.0, 2, 4]), torch.tensor([1, 0, 1])).tolist() == [2, 5]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_gathering_is_the_opposite(dtype, default_place):
    src = torch.randint(0, 9, (2, 4, 3)).to(default_place.device, dtype)
    index = torch.tensor([[0, 0, 2, 3, 3], [1, 1, 1, 2, 3]], device=default_place.device)
    expected = src.gather(1, index[..., None].expand(2, 5, 3))
    assert torch.equal(gather_coo(src, index), expected)
    indptr = torch.tensor([[0, 2, 2, 3, 5], [0, 0, 3, 4, 5]], device=default_place.device)
    assert torch.equal(gather_csr(src, indptr), expected)
    assert torch.equal(gather_coo(src[0], index[0]), expected[0])
    assert torch.equal(gather_csr(src[0], indptr[0]), expected[0])
    out = torch.empty_like(expected)
    assert gather_coo(src, index, out) is out
    assert torch.equal(out, expected)


def test_gathering_leaves_the_rest_of_out():
    out = torch.full((6,), 9.0)
    assert gather_csr(torch.tensor([1.0, 2]), torch.tensor([1, 2, 4]), out) is out
    assert out.tolist() == [9, 1, 2, 2, 9, 9]
    assert gather_csr(torch.tensor([1.0, 2]), torch.tensor([1, 2, 4])).tolist() == [0, 1, 2, 2]
    assert gather_csr(torch.empty(0), torch.tensor([0])).shape == (0,)


@pytest.mark.parametrize("indptr", [[0, 3, 2, 4], [0, 5], [-1, 4], [0, 2, 9, 4]])
def test_bad_pointers_are_a_value_error(indptr):
    """The original reads out of bounds."""
    with pytest.raises(ValueError, match="indptr must be"):
        segment_csr(torch.rand(4, 2), torch.tensor(indptr))


# -- gradients ---------------------------------------------------------------------------------------------------------

CALLS = {
    "sum": lambda s, i, p: scatter_sum(s, i, 0, dim_size=5),
    "add": lambda s, i, p: scatter_add(s, i[:, None].expand_as(s).contiguous(), 0, dim_size=5),
    "mean": lambda s, i, p: scatter_mean(s, i, 0, dim_size=5),
    "max": lambda s, i, p: scatter_max(s, i, 0, dim_size=5)[0],
    "min": lambda s, i, p: scatter_min(s, i[:, None].expand_as(s).contiguous(), 0, dim_size=5)[0],
    "mul": lambda s, i, p: scatter_mul(s, i, 0, dim_size=5),
    "csr sum": lambda s, i, p: segment_csr(s, p),
    "csr mean": lambda s, i, p: segment_csr(s, p, reduce="mean"),
    "csr max of a part": lambda s, i, p: segment_csr(s, p[1:], reduce="max"),
    "csr mean of a part": lambda s, i, p: segment_csr(s, p[:-1], reduce="mean"),
    "csr sum by rows": lambda s, i, p: segment_csr(s[None].expand(2, -1, -1) * 2, torch.stack([p, p.clamp(2, 5)])),
    "coo mean": lambda s, i, p: segment_coo(s, i.sort().values, reduce="mean"),
    "gather csr": lambda s, i, p: gather_csr(s[:3], torch.tensor([0, 2, 2, 6])),
    "gather coo": lambda s, i, p: gather_coo(s, i),
    "softmax": lambda s, i, p: scatter_softmax(s, i, 0),
    "log softmax": lambda s, i, p: scatter_log_softmax(s, i, 0),
    "logsumexp": lambda s, i, p: scatter_logsumexp(s, i, 0, dim_size=5),
    "std": lambda s, i, p: scatter_std(s, i, 0, dim_size=5),
    "std of all": lambda s, i, p: scatter_std(s, i, 0, unbiased=False),
}


@pytest.mark.parametrize("name", CALLS)
def test_both_derivatives(name):
    src = torch.randn(8, 2, dtype=torch.float64, requires_grad=True)
    index, indptr = torch.tensor([0, 3, 3, 1, 0, 3, 1, 0]), torch.tensor([0, 3, 3, 4, 8])
    assert torch.autograd.gradcheck(lambda s: CALLS[name](s, index, indptr), (src,))
    assert torch.autograd.gradgradcheck(lambda s: CALLS[name](s, index, indptr), (src,))


def test_the_gradient_of_a_product_with_a_zero_is_the_product_of_the_others():
    """0 in the original."""
    src = torch.tensor([0.0, 3, 5, 0, 0], requires_grad=True)
    scatter_mul(src, torch.tensor([0, 0, 0, 1, 1])).sum().backward()
    assert src.grad.tolist() == [15, 0, 0, 0, 0]


def test_the_gradient_of_a_deviation_of_zero_is_zero(default_place):
    """NaN in the original, for every group with one value."""
    src = torch.tensor([1.0, 2, 4, 7, 7], device=default_place.device, requires_grad=True)
    index = torch.tensor([0, 1, 1, 2, 2], device=default_place.device)
    scatter_std(src, index, dim_size=4).sum().backward()
    torch.testing.assert_close(src.grad.cpu(), torch.tensor([0, -(0.5**0.5), 0.5**0.5, 0, 0]), rtol=1e-5, atol=1e-6)


def test_ties_give_their_gradient_to_the_first(default_place):
    """On a GPU the original's goes to any of them."""
    src = torch.tensor([1.0, 4, 4, 4], device=default_place.device, requires_grad=True)
    scatter_max(src, torch.zeros(4, dtype=torch.int64, device=default_place.device))[0].sum().backward()
    assert src.grad.tolist() == [0, 1, 0, 0]


# -- composed ----------------------------------------------------------------------------------------------------------


def by_group(src, index, dim, function, size=None):
    """A torch function of each group's values along `dim`, back in their places or one for each group."""
    dim = dim % src.dim()
    shape = [*src.shape[:dim], size, *src.shape[dim + 1 :]] if size else src.shape
    out = torch.zeros(shape, dtype=torch.float64)
    for key, places in groups_by_hand(src, index, dim).items():
        spots = [(*key[:dim], place, *key[dim + 1 :]) for place in places]
        result = function(torch.stack([src[spot].detach().cpu().double() for spot in spots]))
        for spot, value in zip([key] if size else spots, result.reshape(-1), strict=True):
            out[spot] = value
    return out


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("shape", "index_shape", "dim"), LAYOUTS, ids=str)
def test_composed_functions_equal_torch_on_each_group(shape, index_shape, dim, dtype, default_place):
    src = (torch.randn(shape) * 5).to(default_place.device, dtype)
    index = torch.randint(0, 4, index_shape, device=default_place.device)
    # No worse than rounding the right result twice to that dtype.
    tolerance = {"rtol": 2 * max(torch.finfo(dtype).eps, 1e-6), "atol": 1e-6}

    def check(received, expected):
        assert received.dtype == dtype
        torch.testing.assert_close(received.cpu().double(), expected, **tolerance)

    check(scatter_softmax(src, index, dim), by_group(src, index, dim, lambda v: v.softmax(0)))
    check(scatter_log_softmax(src, index, dim), by_group(src, index, dim, lambda v: v.log_softmax(0)))
    logsumexp = by_group(src, index, dim, lambda v: v.logsumexp(0), 5)
    check(scatter_logsumexp(src, index, dim, dim_size=5), logsumexp)
    for unbiased in (False, True):

        def deviation(v, unbiased=unbiased):
            divisor = max(len(v) - unbiased, 1) + 1e-6
            return ((v - v.mean()).square().sum() / divisor).sqrt()

        check(scatter_std(src, index, dim, dim_size=5, unbiased=unbiased), by_group(src, index, dim, deviation, 5))


def test_softmax_of_large_values_and_masks(default_place):
    src = torch.tensor([1e4, 1e4, -inf, -inf, -inf, 3.0], device=default_place.device, requires_grad=True)
    index = torch.tensor([0, 0, 0, 1, 1, 3], device=default_place.device)
    received = scatter_softmax(src, index)
    assert received.tolist() == [0.5, 0.5, 0, 0, 0, 1]  # NaN in the original for the group of -inf
    (grad,) = torch.autograd.grad(received[0], src)
    assert grad.tolist() == [0.25, -0.25, 0, 0, 0, 0]
    assert scatter_log_softmax(src, index)[2:5].tolist() == [-inf] * 3


def test_logsumexp_of_infinities_is_as_in_torch(default_place):
    """The original gives 0 for a group of -inf, and for NaN."""
    src = torch.tensor([-inf, -inf, inf, 1, nan, 2, 5], device=default_place.device)
    index = torch.tensor([0, 0, 1, 1, 2, 2, 4], device=default_place.device)
    received = scatter_logsumexp(src, index)
    assert received[:2].tolist() == [-inf, inf]
    assert received[2].isnan()
    assert received[3:].tolist() == [0, 5]


def test_logsumexp_continues_out():
    """In the original a group that gets nothing loses its value, and one far above the new values becomes infinite."""
    src, index = torch.tensor([1.0, 2, -300]), torch.tensor([0, 0, 2])
    out = torch.tensor([0.5, 7, 100])
    assert scatter_logsumexp(src, index, out=out) is out
    torch.testing.assert_close(out, torch.tensor([torch.tensor([0.5, 1, 2]).logsumexp(0), 7, 100]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_composed_functions_keep_the_dtype_of_out(dtype):
    src, index, out = torch.rand(5).to(dtype), torch.tensor([0, 0, 1, 1, 0]), torch.zeros(2, dtype=dtype)
    assert scatter_logsumexp(src, index, out=out).dtype == dtype
    assert scatter_std(src, index, out=out).dtype == dtype


def test_std_adds_squares_into_out():
    src, index = torch.tensor([1.0, 3, 9]), torch.tensor([0, 0, 1])
    out = torch.tensor([7.0, 4])
    torch.testing.assert_close(scatter_std(src, index, out=out), torch.tensor([3.0, 2]))
    assert out.tolist() == [9, 4]


def test_std_of_integers():
    received = scatter_std(torch.tensor([1, 3, 9]), torch.tensor([0, 0, 1]), unbiased=False)
    torch.testing.assert_close(received, torch.tensor([1.0, 0]))


# -- all ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sum", "mean", "max", "csr sum", "csr max of a part", "coo mean", "logsumexp", "std"])
def test_compiles_whole(name):
    """Graph breaks and errors have been reported for the original."""

    def call(src, index, indptr):
        if name == "coo mean":
            return segment_coo(src, index, dim_size=5, reduce="mean")
        return CALLS[name](src, index, indptr)

    src = torch.randn(8, 2, dtype=torch.float64, requires_grad=True)
    index, indptr = torch.tensor([0, 0, 0, 1, 1, 3, 3, 3]), torch.tensor([0, 3, 3, 4, 8])
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    expected, received = call(src, index, indptr), compiled(src, index, indptr)
    torch.testing.assert_close(received, expected)
    grads = [torch.autograd.grad(out.square().sum(), src)[0] for out in (expected, received)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scatter(torch.rand(3), torch.zeros(4).long()), r"index must be \(3,\) or broadcastable to src \(3,\)"),
        (lambda: scatter(torch.rand(3, 2), torch.zeros(3, 3).long()), "index must be"),
        (lambda: scatter(torch.rand(3), torch.zeros(3, 1).long()), "index must be"),
        (lambda: scatter(torch.rand(3), torch.zeros(3).long(), 1), r"dim must be in \[-1, 1\), got 1"),
        (lambda: scatter(torch.rand(3), torch.zeros(3).long(), reduce="median"), "reduce must be .*, got 'median'"),
        (lambda: scatter(torch.rand(3), torch.zeros(3).long(), dim_size=-1), "dim_size must be at least 0, got -1"),
        (
            lambda: scatter(torch.rand(3, 2), torch.zeros(3).long(), 0, torch.zeros(2, 3)),
            r"out must be like src \(3, 2\), with any size in dimension 0, got \(2, 3\)",
        ),
        (
            lambda: segment_csr(torch.rand(3, 2), torch.tensor([0, 3]), torch.zeros(2, 2)),
            r"out must be like src \(3, 2\), with size 1 in dimension 0, got \(2, 2\)",
        ),
        (lambda: segment_csr(torch.rand(3), torch.tensor([[0, 3]])), r"indptr must be \(n,\), or"),
        (lambda: segment_csr(torch.rand(3), torch.tensor([0, 3]), reduce="mul"), "reduce must be .*, got 'mul'"),
        (lambda: segment_coo(torch.rand(3), torch.zeros(3).long(), reduce="mul"), "reduce must be .*, got 'mul'"),
        (
            lambda: gather_csr(torch.rand(3), torch.tensor([0, 3])),
            r"src must be of size 1, the number of ranges, in dimension 0",
        ),
        (lambda: gather_coo(torch.rand(3), torch.tensor([0, 3])), r"index must be .* in \[0, 3\), got 3"),
        (
            lambda: scatter_softmax(torch.arange(3), torch.zeros(3).long()),
            "src must have a floating-point dtype for scatter_softmax",
        ),
    ],
)
def test_bad_values_get_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scatter([1.0], torch.zeros(1).long()), "src must be a torch.Tensor, got list"),
        (lambda: scatter(torch.rand(3), torch.zeros(3)), "index must be int64 or int32, got float32"),
        (lambda: scatter(torch.rand(3) + 0j, torch.zeros(3).long()), "src must be .*, got complex64"),
        (lambda: scatter(torch.rand(3), torch.zeros(3).long(), 0, torch.zeros(2).long()), "out must have the dtype of"),
        (lambda: segment_csr(torch.rand(3), torch.tensor([0.0, 3])), "indptr must be int64 or int32, got float32"),
        (lambda: segment_csr(torch.rand(3) + 0j, torch.tensor([0, 3])), "src must be .*, got complex64"),
    ],
)
def test_bad_types_get_one_sentence(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_arguments_and_defaults():
    by_index = "src, index, dim=-1, out=None, dim_size=None"
    csr, coo = "src, indptr, out=None", "src, index, out=None, dim_size=None"
    expected = {f"scatter_{name}": by_index for name in ("sum", "add", "mul", "mean", "min", "max")}
    expected |= {f"segment_{name}_csr": csr for name in ("sum", "add", "mean", "min", "max")}
    expected |= {
        f"segment_{n}_coo": "src, index, out=None, dim_size=None" for n in ("sum", "add", "mean", "min", "max")
    }
    expected |= {
        "scatter": f"{by_index}, reduce='sum'",
        "segment_csr": f"{csr}, reduce='sum'",
        "segment_coo": f"{coo}, reduce='sum'",
        "gather_csr": csr,
        "gather_coo": "src, index, out=None",
        "scatter_softmax": "src, index, dim=-1, dim_size=None",
        "scatter_log_softmax": "src, index, dim=-1, eps=1e-12, dim_size=None",
        "scatter_logsumexp": f"{by_index}, eps=1e-12",
        "scatter_std": f"{by_index}, unbiased=True",
    }
    assert set(expected) | {"__version__"} == set(torch_scatter.__all__)
    for name, arguments in expected.items():
        parameters = inspect.signature(getattr(torch_scatter, name)).parameters.values()
        assert ", ".join(str(p.replace(annotation=p.empty)) for p in parameters) == arguments


def test_documented_examples_run():
    import doctest

    for name in ("scatter", "segment_csr", "segment_coo", "utils", "composite.softmax", "composite.logsumexp"):
        module = importlib.import_module(f"pointgrad.compat.torch_scatter.{name}")
        result = doctest.testmod(module, extraglobs={"torch": torch})
        assert result.failed == 0
        assert result.attempted > 0


# -- the original ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def original():
    return pytest.importorskip("torch_scatter", exc_type=ImportError)


def test_names_and_signatures_are_the_originals(original):
    names = set(original.__all__) - {"torch_scatter"}  # which it promises, and has not
    assert names == set(torch_scatter.__all__)
    for name in names - {"__version__"}:
        ours = inspect.signature(getattr(torch_scatter, name)).parameters
        theirs = inspect.signature(getattr(original, name)).parameters
        assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in theirs.values()]
    for module in ("scatter", "segment_csr", "segment_coo", "utils", "composite", "composite.softmax"):
        theirs = importlib.import_module(f"torch_scatter.{module}")
        ours = importlib.import_module(f"pointgrad.compat.torch_scatter.{module}")
        public = {key for key, value in vars(theirs).items() if inspect.isfunction(value)}
        assert public <= set(vars(ours)) | {"scatter_sum", "scatter_max", "broadcast"}


@pytest.mark.parametrize("with_out", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize(("shape", "index_shape", "dim"), LAYOUTS, ids=str)
def test_the_original_scatters_the_same(shape, index_shape, dim, dtype, with_out, original):
    src, index = values_like(dtype, shape), torch.randint(0, 5, index_shape)
    size = list(shape)
    size[dim] = 6
    start = values_like(dtype, size)
    for reduce in REDUCTIONS:
        name = f"scatter_{reduce}"
        arguments = [{"out": start.clone()} if with_out else {"dim_size": 6} for _ in range(2)]
        expected = getattr(original, name)(src, index, dim, **arguments[0])
        received = getattr(torch_scatter, name)(src, index, dim, **arguments[1])
        torch.testing.assert_close(received, expected)
    if dtype.is_floating_point and not with_out:
        for name in ("scatter_softmax", "scatter_log_softmax", "scatter_logsumexp", "scatter_std"):
            for function in ({}, {"dim_size": 6}):
                expected = getattr(original, name)(src, index, dim, **function)
                torch.testing.assert_close(getattr(torch_scatter, name)(src, index, dim, **function), expected)
    if dtype == torch.float64:
        src.requires_grad_()
        for reduce in REDUCTIONS:
            results = [p.scatter(src + 0.01, index, dim, reduce=reduce) for p in (original, torch_scatter)]
            upstream = torch.randn_like(results[0])
            torch.testing.assert_close(*(torch.autograd.grad(result, src, upstream) for result in results))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64], ids=str)
def test_the_original_segments_the_same(dtype, original):
    src = values_like(dtype, (2, 7, 3))
    indptr = torch.tensor([[0, 3, 3, 7], [1, 2, 4, 6]])
    index = torch.tensor([[0, 0, 1, 1, 1, 3, 3], [0, 1, 2, 2, 2, 2, 4]])
    for reduce in ("sum", "mean", "min", "max"):
        for pointers in (indptr, indptr[:1]):
            expected = getattr(original, f"segment_{reduce}_csr")(src, pointers)
            torch.testing.assert_close(getattr(torch_scatter, f"segment_{reduce}_csr")(src, pointers), expected)
        expected = getattr(original, f"segment_{reduce}_coo")(src, index)
        torch.testing.assert_close(getattr(torch_scatter, f"segment_{reduce}_coo")(src, index), expected)
    assert torch.equal(gather_coo(src, index.clamp(max=6)), original.gather_coo(src, index.clamp(max=6)))
    pointers = torch.tensor([[0, 3, 3, 7], [0, 2, 4, 7]])
    assert torch.equal(gather_csr(src[:, :3], pointers), original.gather_csr(src[:, :3], pointers))


def test_a_tensor_may_say_how_many_groups():
    """As in `dim_size=index.max() + 1`."""
    src, index = torch.rand(4, 3), torch.tensor([0, 1, 1, 0])
    for reduce in REDUCTIONS:
        received = scatter(src, index, 0, dim_size=index.max() + 1, reduce=reduce)
        assert torch.equal(received, scatter(src, index, 0, dim_size=2, reduce=reduce))

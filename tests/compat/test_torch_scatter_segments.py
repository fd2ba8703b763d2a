"""Segment reductions of pointgrad.compat.torch_scatter against plain loops."""

import itertools

import pytest
import torch

from pointgrad.compat.torch_scatter import (
    gather_coo,
    gather_csr,
    segment_coo,
    segment_csr,
    segment_max_coo,
    segment_max_csr,
    segment_min_csr,
)
from tests.compat.torch_scatter_loops import FLOATS, INTEGERS, close, reduce_by_loop, values_like

POINTERS = [[0, 3, 3, 7], [0, 7], [0, 0, 7, 7], [2, 3, 5], [0], [4]]


def csr_by_loop(src, indptr, reduce):
    """Reduction by an index of the rows that are in a range."""
    dim = indptr.dim() - 1
    wanted = indptr.expand(*src.shape[:dim], indptr.shape[-1])
    index = torch.full((*src.shape[:dim], src.shape[dim]), -1)
    for place in itertools.product(*map(range, src.shape[:dim])):
        for segment, (begin, end) in enumerate(itertools.pairwise(wanted[place].tolist())):
            index[(*place, slice(begin, end))] = segment
    groups = indptr.shape[-1]
    values, arg = reduce_by_loop(src, torch.where(index < 0, groups, index), dim, groups + 1, reduce)
    return values.narrow(dim, 0, groups - 1), arg.narrow(dim, 0, groups - 1)


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
@pytest.mark.parametrize("indptr", POINTERS, ids=str)
@pytest.mark.parametrize(("shape", "lead"), [((7,), 0), ((7, 3), 0), ((2, 7, 3), 1), ((2, 2, 7), 2), ((1, 7, 3), 1)])
def test_segment_csr_equals_a_plain_loop(shape, lead, indptr, reduce, default_place):
    src = values_like(torch.float32, shape, default_place.device)
    indptr = torch.tensor(indptr, device=default_place.device).reshape((1,) * lead + (-1,))
    received = segment_csr(src, indptr, reduce=reduce)
    expected, arg = csr_by_loop(src, indptr.cpu(), reduce)
    close(received, expected, torch.float32)
    assert received.is_contiguous()
    if reduce in ("min", "max"):
        best, places = (segment_max_csr if reduce == "max" else segment_min_csr)(src, indptr)
        assert torch.equal(best, received)
        assert torch.equal(places.cpu(), arg)


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_segment_csr_with_pointers_per_row(dtype, reduce, default_place):
    src = values_like(dtype, (3, 7, 2), default_place.device)
    indptr = torch.tensor([[0, 3, 7], [0, 0, 7], [2, 5, 6]], device=default_place.device)
    expected, _ = csr_by_loop(src, indptr.cpu(), reduce)
    if reduce == "mean" and not dtype.is_floating_point:  # rounded towards 0, unlike in the loop above
        total, _ = csr_by_loop(src, indptr.cpu(), "sum")
        expected = torch.div(total, indptr.cpu().diff().clamp(min=1).unsqueeze(-1), rounding_mode="trunc")
    close(segment_csr(src, indptr, reduce=reduce), expected, dtype)


def test_segment_csr_overwrites_out():
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
    expected, arg = reduce_by_loop(src, index, index.dim() - 1, 6, reduce)
    close(received, expected, torch.float32)
    if reduce == "max":
        assert torch.equal(segment_max_coo(src, index, dim_size=6)[1].cpu(), arg)


def test_segment_coo_with_an_unsorted_index():
    assert segment_coo(torch.tensor([1.0, 2, 4]), torch.tensor([1, 0, 1])).tolist() == [2, 5]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_gather_coo_and_gather_csr(dtype, default_place):
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


def test_gather_csr_keeps_the_rest_of_out():
    out = torch.full((6,), 9.0)
    assert gather_csr(torch.tensor([1.0, 2]), torch.tensor([1, 2, 4]), out) is out
    assert out.tolist() == [9, 1, 2, 2, 9, 9]
    assert gather_csr(torch.tensor([1.0, 2]), torch.tensor([1, 2, 4])).tolist() == [0, 1, 2, 2]
    assert gather_csr(torch.empty(0), torch.tensor([0])).shape == (0,)


@pytest.mark.parametrize("indptr", [[0, 3, 2, 4], [0, 5], [-1, 4], [0, 2, 9, 4]])
def test_invalid_pointers(indptr):
    """The original reads out of bounds."""
    with pytest.raises(ValueError, match="indptr must be"):
        segment_csr(torch.rand(4, 2), torch.tensor(indptr))


def test_segment_coo_updates_out():
    """In the original's CPU version the first group starts with row 0 of out, whatever its number."""
    src, index = torch.tensor([1.0, 2, 4]), torch.tensor([1, 1, 2])
    out = torch.tensor([100.0, 10, 20])
    assert segment_coo(src, index, out) is out
    assert out.tolist() == [100, 13, 24]

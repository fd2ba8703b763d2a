"""Tensors without elements in pointgrad.compat.torch_scatter."""

import pytest
import torch

from pointgrad.compat import torch_scatter
from pointgrad.compat.torch_scatter import gather_coo, gather_csr, scatter, segment_coo, segment_csr
from tests.compat.torch_scatter_loops import REDUCTIONS


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3), (0, 4, 3)])
def test_empty_input(shape, reduce):
    """Illegal accesses have been reported for the original."""
    for dim in range(len(shape)):
        index = torch.zeros(shape[dim], dtype=torch.int64)
        received = scatter(torch.empty(shape), index, dim, dim_size=4, reduce=reduce)
        assert received.shape == (*shape[:dim], 4, *shape[dim + 1 :])
        assert (received == 0).all()  # also products, as in the original
        if shape[dim] == 0:
            assert scatter(torch.empty(shape), index, dim, reduce=reduce).shape == shape
        received = scatter(torch.empty(shape), torch.zeros(shape, dtype=torch.int64), dim, dim_size=4, reduce=reduce)
        assert received.shape == (*shape[:dim], 4, *shape[dim + 1 :])


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_number_of_groups_without_values(reduce):
    """As in the original, where an index is expanded to `src` before its maximum is taken."""
    index = torch.tensor([0, 2, 1])
    assert scatter(torch.empty(3, 0), index, 0, reduce=reduce).shape == (0, 0)
    assert scatter(torch.empty(0, 3), index, 1, reduce=reduce).shape == (0, 0)
    assert scatter(torch.empty(3, 0), index, 0, dim_size=4, reduce=reduce).shape == (4, 0)
    if reduce != "mul":
        assert segment_coo(torch.empty(3, 0), index.sort().values, reduce=reduce).shape == (3, 0)
    out = torch.full((4, 3), 7.0)
    assert (scatter(torch.empty(0, 3), index[:0], 0, out, reduce=reduce) == 7).all()


@pytest.mark.parametrize("reduce", ["sum", "add", "mean", "min", "max"])
def test_empty_segments_of_empty_tensors(reduce):
    """As in the original's tests of tensors without elements, with gradients."""
    empty = torch.empty(0, dtype=torch.int64)
    src = torch.randn(0, 0, 0, 16, requires_grad=True)
    for received in (
        segment_csr(src, empty, reduce=reduce),
        getattr(torch_scatter, f"segment_{reduce}_csr")(src, empty),
        gather_csr(src, empty),
        gather_coo(src, empty),
        segment_coo(src, empty, dim_size=0, reduce=reduce),
    ):
        received = received[0] if isinstance(received, tuple) else received
        assert received.shape == (0, 0, 0, 16)
        (grad,) = torch.autograd.grad(received, src, torch.randn_like(received))
        assert grad.shape == src.shape


@pytest.mark.parametrize(
    ("src_shape", "pointers_shape", "segments"),
    [((5, 0), (4,), 3), ((0, 3), (4,), 3), ((0, 3), (0,), 0), ((2, 0, 3), (2, 4), 3), ((0, 5, 3), (0, 4), 3),
     ((0, 5, 3), (1, 4), 3), ((2, 5, 0), (1, 4), 3), ((5, 3), (0,), 0), ((2, 5, 3), (2, 0), 0), ((2, 5, 3), (2, 1), 0)],
)  # fmt: skip
def test_segments_without_elements(src_shape, pointers_shape, segments):
    dim = len(pointers_shape) - 1
    src, pointers = torch.rand(src_shape), torch.zeros(pointers_shape, dtype=torch.int64)
    shape = (*src_shape[:dim], segments, *src_shape[dim + 1 :])
    for reduce in ("sum", "mean", "min", "max"):
        received = segment_csr(src, pointers, reduce=reduce)
        assert received.shape == shape
        assert (received == 0).all()
    best, arg = torch_scatter.segment_max_csr(src, pointers)
    assert best.shape == arg.shape == shape
    assert (arg == src_shape[dim]).all()


def test_gather_of_nothing():
    pointers = torch.tensor([0, 1, 3])
    assert gather_csr(torch.empty(2, 0), pointers).shape == (0, 0)
    assert gather_csr(torch.empty(0, 4), pointers).shape == (0, 4)
    out = torch.ones(3, 4)
    assert gather_csr(torch.empty(0, 4), pointers, out) is out
    assert (out == 1).all()

"""Softmax, log-sum-exp and standard deviation of pointgrad.compat.torch_scatter."""

import pytest
import torch

from pointgrad.compat.torch_scatter import (
    scatter_log_softmax,
    scatter_logsumexp,
    scatter_softmax,
    scatter_std,
)
from tests.compat.torch_scatter_loops import FLOATS, LAYOUTS, groups_by_loop, inf, nan


def by_group(src, index, dim, function, size=None):
    """Apply a function of torch to the values of each group along `dim`; one result per value or per group."""
    dim = dim % src.dim()
    shape = [*src.shape[:dim], size, *src.shape[dim + 1 :]] if size else src.shape
    out = torch.zeros(shape, dtype=torch.float64)
    for key, places in groups_by_loop(src, index, dim).items():
        spots = [(*key[:dim], place, *key[dim + 1 :]) for place in places]
        result = function(torch.stack([src[spot].detach().cpu().double() for spot in spots]))
        for spot, value in zip([key] if size else spots, result.reshape(-1), strict=True):
            out[spot] = value
    return out


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("shape", "index_shape", "dim"), LAYOUTS, ids=str)
def test_composite_functions_equal_torch_on_each_group(shape, index_shape, dim, dtype, default_place):
    src = (torch.randn(shape) * 5).to(default_place.device, dtype)
    index = torch.randint(0, 4, index_shape, device=default_place.device)
    # At most two roundings of the exact result to this dtype.
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


def test_softmax_of_large_values_and_infinities(default_place):
    src = torch.tensor([1e4, 1e4, -inf, -inf, -inf, 3.0], device=default_place.device, requires_grad=True)
    index = torch.tensor([0, 0, 0, 1, 1, 3], device=default_place.device)
    received = scatter_softmax(src, index)
    assert received.tolist() == [0.5, 0.5, 0, 0, 0, 1]  # NaN in the original for the group of -inf
    (grad,) = torch.autograd.grad(received[0], src)
    assert grad.tolist() == [0.25, -0.25, 0, 0, 0, 0]
    assert scatter_log_softmax(src, index)[2:5].tolist() == [-inf] * 3


def test_logsumexp_of_infinities(default_place):
    """As in torch; the original returns 0 for a group of -inf and for NaN."""
    src = torch.tensor([-inf, -inf, inf, 1, nan, 2, 5], device=default_place.device)
    index = torch.tensor([0, 0, 1, 1, 2, 2, 4], device=default_place.device)
    received = scatter_logsumexp(src, index)
    assert received[:2].tolist() == [-inf, inf]
    assert received[2].isnan()
    assert received[3:].tolist() == [0, 5]


def test_logsumexp_updates_out():
    """In the original empty groups lose their value, and values far above the new ones become infinite."""
    src, index = torch.tensor([1.0, 2, -300]), torch.tensor([0, 0, 2])
    out = torch.tensor([0.5, 7, 100])
    assert scatter_logsumexp(src, index, out=out) is out
    torch.testing.assert_close(out, torch.tensor([torch.tensor([0.5, 1, 2]).logsumexp(0), 7, 100]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_composite_functions_keep_the_dtype_of_out(dtype):
    src, index, out = torch.rand(5).to(dtype), torch.tensor([0, 0, 1, 1, 0]), torch.zeros(2, dtype=dtype)
    assert scatter_logsumexp(src, index, out=out).dtype == dtype
    assert scatter_std(src, index, out=out).dtype == dtype


def test_std_adds_squares_to_out():
    src, index = torch.tensor([1.0, 3, 9]), torch.tensor([0, 0, 1])
    out = torch.tensor([7.0, 4])
    torch.testing.assert_close(scatter_std(src, index, out=out), torch.tensor([3.0, 2]))
    assert out.tolist() == [9, 4]


def test_std_of_integers():
    received = scatter_std(torch.tensor([1, 3, 9]), torch.tensor([0, 0, 1]), unbiased=False)
    torch.testing.assert_close(received, torch.tensor([1.0, 0]))


@pytest.mark.parametrize("unbiased", [False, True])
def test_standard_deviation_in_double_precision(unbiased):
    src, index = torch.rand(50, 2, dtype=torch.float64) * 9, torch.arange(50) % 3
    counts = torch.bincount(index).double()
    divisor = (counts - 1 if unbiased else counts) + 1e-6
    expected = torch.stack(
        [
            ((src[index == group] - src[index == group].mean(0)) ** 2).sum(0).div(divisor[group]).sqrt()
            for group in range(3)
        ]
    )
    received = scatter_std(src, index, 0, unbiased=unbiased)
    torch.testing.assert_close(received, expected, rtol=1e-14, atol=0)

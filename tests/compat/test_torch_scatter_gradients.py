"""Gradients and compilation of pointgrad.compat.torch_scatter."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import pointgrad
from pointgrad.compat.torch_scatter import (
    _small,
    gather_coo,
    gather_csr,
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
)

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
def test_gradcheck_and_gradgradcheck(name):
    src = torch.randn(8, 2, dtype=torch.float64, requires_grad=True)
    index, indptr = torch.tensor([0, 3, 3, 1, 0, 3, 1, 0]), torch.tensor([0, 3, 3, 4, 8])
    assert torch.autograd.gradcheck(lambda s: CALLS[name](s, index, indptr), (src,))
    assert torch.autograd.gradgradcheck(lambda s: CALLS[name](s, index, indptr), (src,))


def test_gradient_of_a_product_with_zeros():
    """The gradient of a factor is the product of the others; in the original it is 0."""
    src = torch.tensor([0.0, 3, 5, 0, 0], requires_grad=True)
    scatter_mul(src, torch.tensor([0, 0, 0, 1, 1])).sum().backward()
    assert src.grad.tolist() == [15, 0, 0, 0, 0]
    (grad,) = torch.autograd.grad(scatter_mul(src, torch.tensor([0, 0, 0, 1, 1])).sum(), src, create_graph=True)
    with pytest.raises(RuntimeError, match="Double backward is unsupported"):  # NaN in the original
        grad.sum().backward()


def test_gradient_of_zero_deviation(default_place):
    """In the original it is NaN for every group of one value."""
    src = torch.tensor([1.0, 2, 4, 7, 7], device=default_place.device, requires_grad=True)
    index = torch.tensor([0, 1, 1, 2, 2], device=default_place.device)
    scatter_std(src, index, dim_size=4).sum().backward()
    torch.testing.assert_close(src.grad.cpu(), torch.tensor([0, -(0.5**0.5), 0.5**0.5, 0, 0]), rtol=1e-5, atol=1e-6)


def test_gradient_of_ties_goes_to_the_first(default_place):
    """In the original it goes to an arbitrary one on a GPU."""
    src = torch.tensor([1.0, 4, 4, 4], device=default_place.device, requires_grad=True)
    scatter_max(src, torch.zeros(4, dtype=torch.int64, device=default_place.device))[0].sum().backward()
    assert src.grad.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("name", ["sum", "mean", "max", "csr sum", "csr max of a part", "coo mean", "logsumexp", "std"])
def test_compiles_without_graph_breaks(name):
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


SMALL_CALLS = {
    "sum of columns": lambda s, i, p: scatter_sum(s.T, i),
    "mean of columns": lambda s, i, p: scatter_mean(s.T, i, -1, dim_size=7),
    "mul of columns": lambda s, i, p: scatter_mul(s.T, i, 1),
    "vector": lambda s, i, p: scatter_max(s[:, 0], i)[0],
    "positions": lambda s, i, p: scatter_min(s, i, 0, dim_size=9)[1],
    "three dimensions": lambda s, i, p: scatter_max(s[:, :, None], i, 0)[0] + scatter_mean(s[:, :, None], i, 0),
    "middle": lambda s, i, p: scatter_sum(s[None], i, 1) + scatter_mean(s[None], i, -2),
    "csr max": lambda s, i, p: segment_csr(s, p, reduce="max"),
    "csr of a vector": lambda s, i, p: segment_csr(s[:, 0], p) + segment_csr(s[:, 0], p, reduce="min"),
    "integers": lambda s, i, p: scatter_sum(s.detach().mul(9).int(), i, 0),
    "out": lambda s, i, p: scatter_sum(s, i, 0, torch.ones(5, 2, dtype=s.dtype)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", [*CALLS, *SMALL_CALLS])
def test_small_tensors_give_the_same_bits(name, dtype, monkeypatch):
    """Small CPU tensors are reduced by other operators than large ones."""
    call = (CALLS | SMALL_CALLS)[name]
    src = torch.randn(8, 2, dtype=dtype, requires_grad=True)
    index, indptr = torch.tensor([0, 3, 3, 1, 0, 3, 1, 0]), torch.tensor([0, 3, 3, 4, 8])

    def results():
        value = call(src, index, indptr)
        with torch.no_grad():
            detached = call(src, index, indptr)
        if not value.requires_grad:
            return value, detached
        (grad,) = torch.autograd.grad((value**2).sum(), src, create_graph=True)
        return value, detached, grad, torch.autograd.grad((grad**2).sum(), src)[0]

    small = results()
    monkeypatch.setattr(_small, "_MAX_ELEMENTS", 0)
    for received, expected in zip(small, results(), strict=True):
        assert received.dtype == expected.dtype
        if received.is_floating_point() and "soft" not in name and "mul" not in name and "std" not in name:
            assert torch.equal(received, expected)
        else:  # products of derivatives are summed in another order
            torch.testing.assert_close(received, expected)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_small_tensors_while_tracing():
    """While a program is traced, or with another backend, the registered operators run, whatever the size."""
    src, index = torch.randn(8, 2), torch.tensor([0, 3, 3, 1, 0, 3, 1, 0])
    expected = scatter_sum(src, index, 0, dim_size=4)
    traced = make_fx(lambda s, i: scatter_sum(s, i, 0, dim_size=4))(src, index)
    assert any("pointgrad" in str(node.target) for node in traced.graph.nodes)
    assert torch.equal(traced(src, index), expected)
    traced = torch.jit.trace(lambda s, i: scatter_sum(s, i, 0, dim_size=4), (src, index))
    assert "pointgrad::" in str(traced.graph)
    assert torch.equal(traced(src[:5], index[:5]), scatter_sum(src[:5], index[:5], 0, dim_size=4))
    with pointgrad.backend("reference"):
        torch.testing.assert_close(scatter_sum(src, index, 0), expected)

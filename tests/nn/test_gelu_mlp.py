"""The MLP of a block computes what its three layers compute, and keeps less of it."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import functional_call, grad, vmap

from pointgrad.nn import gelu_mlp
from pointgrad.nn.gelu_mlp import GeluMLP


def plain(mlp):
    """The same layers without the class."""
    return nn.Sequential(*mlp)


@pytest.mark.parametrize("shape", [(7, 4), (2, 3, 4), (0, 4), (1, 4)])
def test_results_and_gradients_equal_those_of_the_layers(shape):
    mlp, rows = GeluMLP(4, 12).double(), torch.randn(shape, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(shape, dtype=torch.float64)
    inputs = [rows, *mlp.parameters()]
    received, expected = mlp(rows), plain(mlp)(rows)
    torch.testing.assert_close(received, expected, rtol=0, atol=0)
    for found, right in zip(
        torch.autograd.grad(received, inputs, upstream), torch.autograd.grad(expected, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(found, right)


def test_derivatives_match_finite_differences():
    mlp, rows = GeluMLP(3, 5).double(), torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    names, values = zip(*mlp.named_parameters(), strict=True)

    def call(rows, *values):
        return functional_call(mlp, dict(zip(names, values, strict=True)), rows)

    assert gradcheck(call, (rows, *values), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(call, (rows, *values))


def test_gradients_of_frozen_layers_are_left_out():
    mlp, rows = GeluMLP(4, 12), torch.randn(5, 4)
    mlp[2].weight.requires_grad_(False)
    mlp(rows).sum().backward()
    assert mlp[2].weight.grad is None
    assert all(value.grad is not None for name, value in mlp.named_parameters() if name != "2.weight")


def test_gradients_per_sample():
    mlp, rows = GeluMLP(4, 12).double(), torch.randn(6, 4, dtype=torch.float64)
    weights = dict(mlp.named_parameters())

    def loss(weights, row, module):
        return functional_call(module, weights, row).square().sum()

    received = vmap(grad(loss), in_dims=(None, 0, None))(weights, rows, mlp)
    expected = vmap(grad(loss), in_dims=(None, 0, None))(weights, rows, plain(mlp))
    torch.testing.assert_close(received, expected)


def test_forward_derivative_of_the_weights():
    mlp, rows = GeluMLP(4, 12).double(), torch.randn(5, 4, dtype=torch.float64)
    weights = {name: value.detach() for name, value in mlp.named_parameters()}
    change = {name: torch.randn_like(value) for name, value in weights.items()}

    def tangent(module):
        with forward_ad.dual_level():
            dual = {name: forward_ad.make_dual(value, change[name]) for name, value in weights.items()}
            return forward_ad.unpack_dual(functional_call(module, dual, rows)).tangent

    torch.testing.assert_close(tangent(mlp), tangent(plain(mlp)))


def test_autocast_has_the_dtypes_of_the_layers():
    mlp, rows = GeluMLP(16, 64), torch.randn(40, 16, requires_grad=True)
    upstream = torch.randn(40, 16)
    found = []
    for module in (mlp, plain(mlp)):
        with torch.autocast("cpu", torch.bfloat16):
            out = module(rows)
        assert out.dtype == torch.bfloat16
        found.append((out, *torch.autograd.grad(out, [rows, *mlp.parameters()], upstream.bfloat16())))
    for received, expected in zip(*found, strict=True):
        assert received.dtype == expected.dtype
        torch.testing.assert_close(received, expected, rtol=2e-2, atol=2e-2)


def test_the_output_of_gelu_is_not_kept():
    mlp, rows = GeluMLP(8, 64), torch.randn(100, 8)
    kept = {}

    def pack(tensor):
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    for module, hidden_tensors in ((mlp, 1), (plain(mlp), 2)):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = module(rows)
        assert sum(numel == 100 * 64 for numel in kept.values()) == hidden_tensors
        del out


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_inference_in_parts(monkeypatch, count):
    mlp, rows = GeluMLP(4, 12).double(), torch.randn(count, 4, dtype=torch.float64)
    monkeypatch.setattr(gelu_mlp, "PART", 24)  # two rows
    with torch.no_grad():
        torch.testing.assert_close(mlp(rows), plain(mlp)(rows))


@pytest.mark.parametrize("training", [True, False])
def test_hooks_and_replaced_layers_are_called(training):
    mlp, rows, seen = GeluMLP(4, 12), torch.randn(5, 4), []
    mlp[1] = nn.GELU("tanh")
    for layer in mlp:
        layer.register_forward_hook(lambda layer, args, out: seen.append(layer))
    with torch.set_grad_enabled(training):
        torch.testing.assert_close(mlp(rows), plain(mlp)(rows))
    assert seen == [*mlp, *mlp]


def test_another_activation():
    mlp, rows = GeluMLP(4, 12), torch.randn(5, 4)
    mlp[1] = nn.GELU("tanh")
    torch.testing.assert_close(mlp(rows), plain(mlp)(rows), rtol=0, atol=0)


def test_names_of_weights():
    assert list(GeluMLP(4, 12).state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]

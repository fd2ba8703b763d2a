"""Inference of convolution, norm and ReLU in one kernel, compared with the layers one after the other."""

import copy

import pytest
import torch
from torch import nn

from pointgrad import backend, models
from pointgrad.nn import InverseConv, SparseConv, SparseTensor, SubmanifoldConv, sparse_norm
from pointgrad.nn.sparse_norm import ConvNorm, LinearNorm, conv_norm, join
from pointgrad.ops.sparse import cpu
from pointgrad.ops.sums import sum_dtype


@pytest.fixture
def fused(monkeypatch):
    """The calls of the kernel that fuses layers."""
    calls = []

    def counted(*args, **options):
        calls.append(options)
        return kernel(*args, **options)

    kernel = cpu.finished_conv
    monkeypatch.setattr(cpu, "finished_conv", counted)
    return calls


def voxels(channels, dtype=torch.float32):
    occupied = (torch.rand(6, 6, 6) < 0.4).nonzero()
    return SparseTensor(occupied, torch.randn(len(occupied), channels).to(dtype))


def trained(norm):
    """A norm with statistics and parameters as after training, in evaluation mode."""
    for values in (norm.running_mean, norm.weight.data, norm.bias.data):
        values.normal_()
    norm.running_var.uniform_(0.5, 2)
    return norm.eval()


def separately(conv, norm, tensor, added=None):
    out = norm(conv(tensor).features)
    return torch.relu(out if added is None else out + added)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_convolutions(fused, dtype, residual, bias):
    tensor = voxels(20, dtype)
    down = SparseConv(20, 70, 2, stride=2, bias=bias)
    convs = SubmanifoldConv(20, 70, bias=bias), down, InverseConv(70, 1, 2, bias=bias), SubmanifoldConv(1, 1, bias=bias)
    for conv in convs:
        conv, norm = conv.to(dtype), trained(nn.BatchNorm1d(conv.out_channels)).to(dtype)
        with torch.no_grad():
            expected = conv(tensor)
            added = torch.randn_like(expected.features) if residual else None
            wide = copy.deepcopy(tensor.with_features(tensor.features.double()))
            exact = separately(conv.double(), norm.double(), wide, None if added is None else added.double())
            conv, norm = conv.to(dtype), norm.to(dtype)
            fused.clear()
            out = conv_norm(conv, norm, tensor, added)
            assert len(fused) == 1
            apart = separately(conv, norm, tensor, added)
        assert out.coordinates is expected.coordinates
        assert out.features.dtype == dtype
        error = (out.features.double() - exact).abs().max()
        few = 8 * torch.finfo(sum_dtype(dtype)).eps * exact.abs().max()  # roundings of scale, shift and their use
        assert error <= 2 * (apart.double() - exact).abs().max() + few
        tensor = tensor if conv is convs[0] else out


def test_modules(fused):
    tensor = voxels(20)
    block = ConvNorm(SubmanifoldConv(20, 50, bias=False), trained(nn.BatchNorm1d(50))).eval()
    linear = LinearNorm(20, 50, trained(nn.BatchNorm1d(50))).eval()
    with torch.no_grad():
        out, rows = block(tensor).features, linear(tensor.features)
        assert len(fused) == 2
        torch.testing.assert_close(out, separately(block[0], block[1][0], tensor))
        torch.testing.assert_close(rows, linear[1](linear[0](tensor.features)))
        torch.testing.assert_close(join(out, rows), torch.cat([out, rows], 1), rtol=0, atol=0)
        assert join(out[:0], rows[:0]).shape == (0, 100)
        tensor.features[3] = torch.nan
        assert torch.equal(block(tensor).features.isnan(), separately(block[0], block[1][0], tensor).isnan())
    assert list(block.state_dict()) == ["0.weight", *(f"1.0.{name}" for name in block[1][0].state_dict())]


def test_other_ways_use_the_layers(fused):
    """Training, gradients, hooks, other norms, autocast and other backends."""
    tensor = voxels(20)
    conv, norm = SubmanifoldConv(20, 50, bias=False), trained(nn.BatchNorm1d(50))
    block = ConvNorm(conv, norm)
    block(tensor).features.sum().backward()
    assert conv.weight.grad is not None
    with torch.no_grad():
        before = norm.running_mean.clone()
        block.train()(tensor)
        assert not torch.equal(norm.running_mean, before)
        block.eval()
        seen = []
        for module in (conv, norm, block[1], block[1][1]):
            hook = module.register_forward_hook(lambda module, *_: seen.append(module))
            block(tensor)
            hook.remove()
            assert seen.pop() is module
        assert not seen
        with torch.autocast("cpu", torch.bfloat16):
            assert block(tensor).features.dtype == torch.bfloat16
        with backend("reference"):
            block(tensor)
        assert not any("scale" in call for call in fused)
        ConvNorm(SubmanifoldConv(20, 50), nn.GroupNorm(5, 50)).eval()(tensor)
        ConvNorm(SubmanifoldConv(20, 50), nn.BatchNorm1d(50, affine=False)).eval()(tensor)
        ConvNorm(SubmanifoldConv(20, 50, groups=5), nn.BatchNorm1d(50)).eval()(tensor)
        assert not any("scale" in call for call in fused)
        with pytest.raises(ValueError, match=r"features must be \(N, 20\)"):
            block(voxels(19))
        with pytest.raises(ValueError, match="one row for each input of the map"):
            block(tensor.with_features(tensor.features[1:]))


def test_networks(monkeypatch):
    points = torch.rand(1, 400, 3) * 2
    for name in ("minkunet", "spunet"):
        model = models.build(name, task="segmentation", classes=5, width=0.5, voxel=0.1).double()
        model(points.double())  # statistics
        model.eval()
        with torch.no_grad():
            out = model(points.double())
            monkeypatch.setattr(sparse_norm, "_is_inference", lambda rows: False)
            expected = model(points.double())
            monkeypatch.undo()
        torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)

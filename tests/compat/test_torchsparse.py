"""Layers of pointgrad.compat.torchsparse compared with dense convolution, and its functions on voxels."""

import numpy as np
import pytest
import torch

from pointgrad.compat import torchsparse
from pointgrad.compat.torchsparse import nn as spnn
from pointgrad.compat.torchsparse.nn import functional as F
from pointgrad.compat.torchsparse.utils.quantize import sparse_quantize
from tests.compat.precision import assert_no_worse
from tests.compat.test_minkowski import cloud, dense, dense_weight


@pytest.mark.parametrize(("size", "stride", "padding"), [(3, 1, 1), (2, 2, 0), (3, 2, 1), (3, 2, 0)])
def test_convolution(size, stride, padding):
    coords, feats = cloud()
    layer = spnn.Conv3d(3, 4, size, stride, padding, bias=True).double()
    out = layer(torchsparse.SparseTensor(feats, coords, spatial_range=(2, 6, 6, 6)))
    order = (4, 3, 2, 1, 0) if size % 2 else (4, 3, 0, 1, 2)
    weight = layer.kernel.reshape(size, size, size, 3, 4).permute(order)
    expected = torch.nn.functional.conv3d(dense(coords, feats, 6), weight, layer.bias, stride=stride, padding=padding)
    b, x, y, z = out.C.long().unbind(1)
    torch.testing.assert_close(out.F, expected[b, :, x, y, z])
    assert out.s == (stride,) * 3


def test_transposed_convolution_returns_to_the_input():
    coords, feats = cloud(1)
    net = torch.nn.Sequential(spnn.Conv3d(3, 4, 2, 2), spnn.Conv3d(4, 3, 2, 2, transposed=True)).double()
    tensor = torchsparse.SparseTensor(feats, coords)
    out = net(tensor)
    assert torch.equal(out.C, coords)
    assert torchsparse.cat([out, tensor]).F.shape == (len(coords), 6)
    with pytest.raises(ValueError, match="must follow a convolution with kernel_size"):
        net[1](torchsparse.SparseTensor(torch.ones(1, 4).double(), coords[:1], 2))


def test_functions_of_points():
    coords, _ = cloud(3)
    keys = F.sphash(coords)
    assert torch.equal(F.sphashquery(keys, keys), torch.arange(len(keys)))
    assert F.sphashquery(F.sphash(coords + 100), keys).tolist() == [-1] * len(keys)
    index = torch.tensor([0, 2, 2, -1]).int()
    counts = F.spcount(index, 3)
    assert counts.tolist() == [1, 0, 2]
    assert F.spvoxelize(torch.tensor([[1.0], [2.0], [4.0], [8.0]]), index, counts).flatten().tolist() == [1, 0, 3]
    points = torch.tensor([[0.25, 0.0, 0.5]])
    weights = F.calc_ti_weights(points, torch.arange(8).unsqueeze(0))
    torch.testing.assert_close(weights[0], torch.tensor([0.375, 0.375, 0, 0, 0.125, 0.125, 0, 0]))


def test_quantize():
    points = np.array([[0.1, 2, 3], [4, 5, 6], [0.3, 2.5, 3.1], [-1, 0, 0]])
    voxels, index, inverse = sparse_quantize(points, 1.0, return_index=True, return_inverse=True)
    assert voxels.tolist() == [[-1, 0, 0], [0, 2, 3], [4, 5, 6]]
    assert index.tolist() == [3, 0, 1]
    assert inverse.tolist() == [1, 2, 1, 0]


def test_unchanged_program(device, run_program):
    """An SPVCNN trains, and its parameters have the published names and shapes."""
    packages = "torchsparse", "torch_scatter"
    variables, losses = run_program("torchsparse_model.py", packages, "--steps", "3", "--device", device)
    assert len(losses) == 3
    assert losses[-1] < losses[0] / 2
    shapes = {name: tuple(value.shape) for name, value in variables["trained"].state_dict().items()}
    assert len(shapes) == 49 * 6 + 2 + 3 * 7  # convolutions with norm, classifier, point transforms
    expected = {
        "stem.0.kernel": (27, 4, 4), "stem.1.running_mean": (4,), "stage1.0.net.0.kernel": (8, 4, 4),
        "stage2.1.net.3.kernel": (27, 8, 8), "stage4.1.downsample.0.kernel": (16, 32),
        "up1.0.net.0.kernel": (8, 32, 32),
        "up4.1.0.downsample.1.weight": (12,), "classifier.0.weight": (2, 12), "point_transforms.2.0.weight": (12, 16),
    }  # fmt: skip
    assert {name: shapes.get(name) for name in expected} == expected


def network():
    convs = spnn.Conv3d(3, 4, 3), spnn.Conv3d(4, 4, 2, 2, bias=True), spnn.Conv3d(4, 2, 2, 2, transposed=True)
    return torch.nn.Sequential(convs[0], spnn.BatchNorm(4).eval(), *convs[1:])


@pytest.mark.parametrize("count", [0, 1])
def test_tensors_without_voxels_and_with_one(count):
    coords = torch.tensor([[0, 5, 3, 2]]).int()[:count]
    tensor = torchsparse.SparseTensor(torch.ones(count, 3, requires_grad=True), coords, spatial_range=(1, 6, 4, 4))
    out = network()(tensor)
    assert out.F.shape == (count, 2)
    assert torch.equal(out.C, coords)
    out.F.sum().backward()
    assert spnn.GlobalMaxPool()(tensor).shape == (count, 3)
    assert tensor.dense().sum() == 3 * count
    keys = F.sphash(coords)
    assert F.sphashquery(F.sphash(torch.tensor([[0, 5, 3, 2]]).int()), keys).tolist() == [count - 1]
    assert F.spvoxelize(tensor.F, torch.zeros(count).int(), torch.ones(count).int()).shape == (count, 3)
    assert sparse_quantize(np.zeros((count, 3)), 0.5).shape == (count, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    coords, feats = cloud(4)
    layer = spnn.Conv3d(3, 4, 3, bias=True).to(dtype)
    torch.nn.init.normal_(layer.bias)
    tensor = torchsparse.SparseTensor(feats.to(dtype), coords)
    b, x, y, z = coords.long().unbind(1)
    plain, exact = (
        torch.nn.functional.conv3d(
            dense(coords, tensor.F.to(t), 6), dense_weight(layer.kernel, 3).to(t), padding=1
        )[b, :, x, y, z] + layer.bias.to(t)
        for t in (dtype, torch.float64)
    )  # fmt: skip
    assert_no_worse(layer(tensor).F, plain, exact)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda x, c: network()(torchsparse.SparseTensor(x, c.float())), TypeError, "coords must be int64 or int32"),
        (lambda x, c: network()(torchsparse.SparseTensor(x.int(), c)), TypeError, "features must be float32.*got int3"),
        (lambda x, c: network()(torchsparse.SparseTensor(x.double(), c)), TypeError, "weight must have the dtype of"),
        (lambda x, c: network()(torchsparse.SparseTensor(x[:1], c)), ValueError, r"features must be \(2, C\)"),
        (lambda x, c: torchsparse.SparseTensor(x, c) + torchsparse.SparseTensor(x[:1], c[:1]), ValueError,
         "other must have 2 voxels, got 1"),
        (lambda x, c: sparse_quantize(x.numpy() * np.nan), ValueError, "voxel_size must be finite.*got nan"),
        (lambda x, c: sparse_quantize(x.numpy(), 0), ValueError, "voxel_size must be positive, got 0"),
    ],
)  # fmt: skip
def test_bad_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make(torch.ones(2, 3), torch.tensor([[0, 1, 2, 3], [0, 2, 2, 3]]).int())

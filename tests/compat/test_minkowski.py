"""Layers of pointgrad.compat.MinkowskiEngine compared with dense convolution, and a network in its style."""

import pytest
import torch

from pointgrad import models
from pointgrad.compat import MinkowskiEngine as ME
from tests.compat.precision import assert_no_worse


def cloud(seed=0, batch=2, size=6):
    generator = torch.Generator().manual_seed(seed)
    grid = torch.rand(batch, size, size, size, generator=generator) < 0.3
    coordinates = grid.nonzero().int()
    coordinates = coordinates[torch.randperm(len(coordinates), generator=generator)]
    return coordinates, torch.randn(len(coordinates), 3, generator=generator, dtype=torch.float64)


def dense(coordinates, features, size):
    grid = features.new_zeros(int(coordinates[:, 0].max()) + 1, size, size, size, features.shape[1])
    return grid.index_put(tuple(coordinates.long().unbind(1)), features).movedim(-1, 1)


def dense_weight(kernel, size):
    """(K, C, D) with x fastest as a weight of conv3d."""
    return kernel.reshape(size, size, size, *kernel.shape[1:]).permute(4, 3, 2, 1, 0)


@pytest.mark.parametrize(("size", "stride", "padding"), [(3, 1, 1), (5, 1, 2), (3, 2, 1), (2, 2, 0)])
def test_convolution(size, stride, padding):
    coordinates, features = cloud()
    layer = ME.MinkowskiConvolution(3, 4, size, stride, bias=True, dimension=3).double()
    features.requires_grad_()
    out = layer(ME.SparseTensor(features, coordinates))
    assert out.tensor_stride == [stride] * 3
    weight = dense_weight(layer.kernel, size)
    expected = torch.nn.functional.conv3d(
        dense(coordinates, features, 6), weight, layer.bias[0], stride=stride, padding=padding
    )
    b, x, y, z = out.C.long().unbind(1)
    expected = expected[b, :, x // stride, y // stride, z // stride]
    torch.testing.assert_close(out.F, expected)
    grad = torch.randn_like(expected)
    got = torch.autograd.grad(out.F, [features, layer.kernel, layer.bias], grad)
    want = torch.autograd.grad(expected, [features, layer.kernel, layer.bias], grad)
    torch.testing.assert_close(got, want)


def test_transposed_convolution_returns_to_known_voxels():
    coordinates, features = cloud(1)
    down = ME.MinkowskiConvolution(3, 4, 2, 2, dimension=3).double()
    up = ME.MinkowskiConvolutionTranspose(4, 5, 2, 2, dimension=3).double()
    tensor = ME.SparseTensor(features, coordinates)
    coarse = down(tensor)
    out = up(coarse)
    assert out.coordinate_map_key == tensor.coordinate_map_key
    assert torch.equal(out.C, coordinates)
    grid = dense(coarse.C // torch.tensor([1, 2, 2, 2]), coarse.F, 3)
    weight = up.kernel.reshape(2, 2, 2, 4, 5).permute(3, 4, 2, 1, 0)
    expected = torch.nn.functional.conv_transpose3d(grid, weight, stride=2)
    b, x, y, z = coordinates.long().unbind(1)
    torch.testing.assert_close(out.F, expected[b, :, x, y, z])


@pytest.mark.parametrize(("layer", "reduce"), [("MinkowskiMaxPooling", "amax"), ("MinkowskiAvgPooling", "mean")])
def test_pooling_of_windows(layer, reduce):
    coordinates, features = cloud(2)
    out = getattr(ME, layer)(3, 3, dimension=3)(ME.SparseTensor(features, coordinates))
    for voxel, row in zip(out.C, out.F, strict=True):
        inside = ((coordinates[:, 1:] // 3 * 3 == voxel[1:]).all(1)) & (coordinates[:, 0] == voxel[0])
        torch.testing.assert_close(row, getattr(features[inside], reduce)(0))


def test_duplicates_fields_and_slices():
    coordinates = torch.tensor([[1, 3, 0, 0], [0, 5, 1, 2], [0, 1, 1, 1], [0, 5, 1, 2], [0, -3, 4, 1]]).int()
    features = torch.arange(5.0).unsqueeze(1)
    tensor = ME.SparseTensor(features, coordinates)
    assert tensor.unique_index.tolist() == [0, 1, 2, 4]
    assert tensor.inverse_mapping.tolist() == [0, 1, 2, 1, 3]
    field = ME.TensorField(features, coordinates + torch.tensor([0, 0.3, 0.6, 0.2]))
    sparse = field.sparse()
    assert sparse.F.flatten().tolist() == [0, 2, 2, 4]
    assert sparse.slice(field).F.flatten().tolist() == [0, 2, 2, 2, 4]
    coarse = ME.MinkowskiSumPooling(2, 2, dimension=3)(sparse)
    assert len(coarse.slice(field)) == 5
    assert [len(part) for part in tensor.decomposed_features] == [3, 1]


def test_missing_names_are_reported():
    with pytest.raises(AttributeError, match="does not provide MinkowskiEngine"):
        _ = ME.MinkowskiSPMMFunction
    with pytest.raises(NotImplementedError, match="1, 2 or 3 axes, got D = 4"):
        ME.SparseTensor(torch.ones(1, 1), torch.zeros(1, 5).int())


def test_unchanged_program(device, run_program):
    """A MinkUNet trains, and `models.minkunet` with its weights computes the same."""
    variables, losses = run_program("minkowski_model.py", ("MinkowskiEngine",), "--steps", "3", "--device", device)
    assert len(losses) == 3
    assert losses[-1] < losses[0] / 2
    net = variables["trained"].eval()
    coordinates, features = variables["coords"].to(device), variables["feats"].to(device)
    ours = models.minkunet("segmentation", 2, channels=3, width=0.25, voxel=1.0, coordinates=False).eval().to(device)
    models.load_published(ours, net.state_dict())
    counts = coordinates[:, 0].long().bincount()
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    with torch.no_grad():
        expected = net(ME.SparseTensor(features, coordinates)).F
        torch.testing.assert_close(ours(coordinates[:, 1:] + 0.5, features, offsets=offsets), expected)


def network():
    return torch.nn.Sequential(
        ME.MinkowskiConvolution(3, 4, 3, dimension=3),
        ME.MinkowskiBatchNorm(4).eval(),
        ME.MinkowskiConvolution(4, 4, 2, 2, bias=True, dimension=3),
        ME.MinkowskiConvolutionTranspose(4, 2, 2, 2, dimension=3),
    )


@pytest.mark.parametrize("count", [0, 1])
def test_tensors_without_voxels_and_with_one(count):
    coordinates = torch.tensor([[0, 5, -3, 2]]).int()[:count]
    tensor = ME.SparseTensor(torch.ones(count, 3, requires_grad=True), coordinates)
    out = network()(tensor)
    assert out.F.shape == (count, 2)
    assert torch.equal(out.C, coordinates)
    out.F.sum().backward()
    assert ME.MinkowskiGlobalMaxPooling()(tensor).F.shape == (count, 3)
    assert ME.TensorField(tensor.F, coordinates.float()).sparse().F.shape == (count, 3)
    lowest = torch.tensor([0, -3, 0]).int()
    assert tensor.dense(torch.Size([1, 3, 6, 1, 3]), lowest)[0].sum() == 3 * count
    if count == 0:
        with pytest.raises(ValueError, match="shape must be given for a tensor without voxels"):
            tensor.dense()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    coordinates, features = cloud(4)
    layer = ME.MinkowskiConvolution(3, 4, 3, bias=True, dimension=3).to(dtype)
    tensor = ME.SparseTensor(features.to(dtype), coordinates)
    b, x, y, z = coordinates.long().unbind(1)
    plain, exact = (
        torch.nn.functional.conv3d(
            dense(coordinates, tensor.F.to(t), 6), dense_weight(layer.kernel, 3).to(t), padding=1
        )[b, :, x, y, z] + layer.bias.to(t)
        for t in (dtype, torch.float64)
    )  # fmt: skip
    assert_no_worse(layer(tensor).F, plain, exact)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda x, c: ME.SparseTensor(x.numpy(), c), TypeError, "features must be a torch.Tensor"),
        (lambda x, c: ME.SparseTensor(x, c[:, 0]), ValueError, r"coordinates must be \(N, D \+ 1\) with N = 2, got"),
        (lambda x, c: ME.SparseTensor(x, c[:1]), ValueError, r"with N = 2, got \(1, 4\)"),
        (lambda x, c: ME.SparseTensor(x, c + torch.tensor([0, 2**31, 0, 0])), ValueError, "int32, got 2147483649"),
        (lambda x, c: ME.SparseTensor(x, c * torch.nan), ValueError, "finite and in the range of int32, got nan"),
        (lambda x, c: ME.TensorField(x, c * torch.nan).sparse(), ValueError, "coordinates must be finite.*got nan"),
        (lambda x, c: ME.utils.sparse_quantize(x * torch.inf), ValueError, "quantization_size must be finite.*got inf"),
        (lambda x, c: network()(ME.SparseTensor(x.int(), c)), TypeError, "features must be float32.*got int32"),
        (lambda x, c: network()(ME.SparseTensor(x.double(), c)), TypeError, "weight must have the dtype of features"),
        (lambda x, c: network()(ME.SparseTensor(x, c - 1)), ValueError, r"coordinates\[:, 0\] must be at least 0"),
        (lambda x, c: ME.MinkowskiConvolution(3, 4, 3, 0, dimension=3), ValueError, "kernel_stride must be at least 1"),
    ],
)
@pytest.mark.filterwarnings("ignore:coordinates are converted")
def test_bad_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make(torch.ones(2, 3), torch.tensor([[0, 1, 2, 3], [0, 2, 2, 3]]).int())

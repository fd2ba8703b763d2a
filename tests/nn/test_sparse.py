"""Sparse layers: comparison with dense layers of torch, maps that are built once, and use like other torch modules."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import pointgrad
from pointgrad.nn import InverseConv, OnFeatures, SparseConv, SparsePool, SparseTensor, SubmanifoldConv, sparse_tensor

GRID = 6


def voxels(channels=4, dtype=torch.float64, clouds=2):
    """Random voxels of a grid, a third of it occupied; and where (B, GRID, GRID, GRID) they are."""
    occupied = torch.rand(clouds, GRID, GRID, GRID) < 0.35
    where = occupied.nonzero()
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), occupied.flatten(1).sum(1).cumsum(0)])
    return SparseTensor(where[:, 1:], torch.randn(len(where), channels, dtype=dtype), offsets), occupied


def dense(tensor, shape=(GRID,) * 3):
    """Features as (B, C, X, Y, Z), zero where there is no voxel; without voxels outside of the grid."""
    batch = len(tensor.offsets) - 1
    out = tensor.features.new_zeros(batch, *shape, tensor.features.shape[1])
    x, y, z = tensor.coordinates.t()
    inside = ((tensor.coordinates >= 0) & (tensor.coordinates < torch.tensor(shape))).all(1)
    cloud = torch.repeat_interleave(torch.arange(batch), tensor.offsets.diff())
    out[cloud[inside], x[inside], y[inside], z[inside]] = tensor.features[inside]
    return out.permute(0, 4, 1, 2, 3)


def dense_weight(layer):
    """The weight of a layer as (Cout, Cin / groups, kx, ky, kz)."""
    return layer.weight.unflatten(0, layer.kernel_size).permute(4, 3, 0, 1, 2)


@pytest.mark.parametrize("numbers", [{}, {"kernel_size": (5, 3, 1)}, {"dilation": (1, 2, 1)}, {"groups": 2}], ids=str)
def test_submanifold_conv_is_a_dense_convolution_at_the_voxels(numbers):
    tensor, occupied = voxels()
    layer = SubmanifoldConv(4, 6, **numbers).double()
    out = layer(tensor)
    padding = [size // 2 * step for size, step in zip(layer.kernel_size, layer.dilation, strict=True)]
    whole = nn.functional.conv3d(
        dense(tensor), dense_weight(layer), layer.bias, 1, padding, layer.dilation, layer.groups
    )
    torch.testing.assert_close(dense(out), whole * occupied[:, None])
    assert out.coordinates is tensor.coordinates


@pytest.mark.parametrize(("size", "stride", "padding"), [(2, 2, 0), (3, 2, 1), ((3, 1, 2), (2, 1, 2), (1, 0, 0))])
def test_strided_conv_is_a_dense_convolution_and_inverse_conv_its_adjoint(size, stride, padding):
    tensor, _ = voxels()
    down, up = SparseConv(4, 6, size, stride=stride, padding=padding, bias=False), InverseConv(6, 4, size, bias=False)
    down.double(), up.double()
    coarse = down(tensor)
    whole = nn.functional.conv3d(dense(tensor), dense_weight(down), None, stride, padding)
    torch.testing.assert_close(dense(coarse, whole.shape[2:]), whole)

    with torch.no_grad():
        up.weight.copy_(down.weight.transpose(1, 2))
    other = torch.randn_like(coarse.features)
    fine = up(coarse.with_features(other))
    torch.testing.assert_close((coarse.features * other).sum(), (tensor.features * fine.features).sum())
    assert fine.coordinates is tensor.coordinates
    assert (fine.level, fine.maps) == ((), tensor.maps)


def test_transposed_conv_generates_voxels():
    tensor, _ = voxels()
    layer = SparseConv(4, 6, 3, stride=2, padding=1, transposed=True, groups=2).double()
    out = layer(tensor)
    weight = layer.weight.unflatten(0, (3, 3, 3)).unflatten(-1, (2, 3)).permute(4, 3, 5, 0, 1, 2).flatten(0, 1)
    expected = nn.functional.conv_transpose3d(dense(tensor), weight, layer.bias, 2, 1, 0, 2)
    reached = nn.functional.conv_transpose3d(
        dense(tensor.with_features(torch.ones_like(tensor.features[:, :1]))),
        torch.ones(1, 1, 3, 3, 3).double(),
        None,
        2,
        1,
    )
    torch.testing.assert_close(dense(out, expected.shape[2:]), expected * (reached > 0))
    inside = ((out.coordinates >= 0) & (out.coordinates < 2 * GRID - 1)).all(1)
    assert int(inside.sum()) == int((reached > 0).sum())


@pytest.mark.parametrize("reduce", ["max", "mean", "sum"])
def test_pool(reduce):
    tensor, occupied = voxels()
    out = SparsePool(2, reduce=reduce)(tensor)
    reductions = {"max": torch.amax, "mean": torch.mean, "sum": torch.sum, "first": lambda rows, _: rows[0]}
    window = 0
    cloud = torch.repeat_interleave(torch.arange(2), tensor.offsets.diff())
    for own, place in zip(torch.repeat_interleave(torch.arange(2), out.offsets.diff()), out.coordinates, strict=True):
        inside = (cloud == own) & (tensor.coordinates // 2 == place).all(1)
        torch.testing.assert_close(out.features[window], reductions[reduce](tensor.features[inside], 0))
        window += 1
    blocks = occupied.unfold(1, 2, 2).unfold(2, 2, 2).unfold(3, 2, 2).flatten(-3).any(-1)
    assert window == int(blocks.sum())


class UNet(nn.Module):
    """Two levels with several layers each, and a pool with the window of the strided layer."""

    def __init__(self, channels=4):
        super().__init__()
        self.first = nn.Sequential(SubmanifoldConv(channels, 8), OnFeatures(nn.GroupNorm(2, 8), nn.ReLU()))
        self.second = SubmanifoldConv(8, 8, bias=False)
        self.down, self.pool = SparseConv(8, 8, 2, stride=2), SparsePool(2)
        self.coarse = nn.Sequential(SubmanifoldConv(8, 8), OnFeatures(nn.ReLU()), SubmanifoldConv(8, 8))
        self.up, self.last = InverseConv(8, 8, 2), SubmanifoldConv(16, 3, groups=1)

    def forward(self, tensor):
        fine = self.second(self.first(tensor))
        coarse = self.down(fine)
        coarse = self.coarse(coarse.with_features(coarse.features + self.pool(fine).features))
        up = self.up(coarse)
        return self.last(up.with_features(torch.cat([up.features, fine.features], 1)))


def test_each_map_is_built_once(monkeypatch):
    built = []
    for name in ("submanifold_map", "strided_map"):
        build = getattr(sparse_tensor, name)
        counted = lambda *args, name=name, build=build, **numbers: (built.append(name), build(*args, **numbers))[1]  # noqa: E731
        monkeypatch.setattr(sparse_tensor, name, counted)
    tensor, _ = voxels()
    network = UNet().double()
    out = network(tensor)
    assert sorted(built) == ["strided_map", "submanifold_map", "submanifold_map"]
    assert len(tensor.maps) == 3
    assert out.maps is tensor.maps
    network(tensor)
    assert len(built) == 3
    network(SparseTensor(tensor.coordinates, tensor.features, tensor.offsets))  # no cache beyond a tensor
    assert len(built) == 6


def test_maps_are_freed_with_the_tensors():
    tensor, _ = voxels()
    out = UNet().double()(tensor)
    maps = [weakref.ref(map.sources) for map in tensor.maps.values()]
    out.features.sum().backward()
    del out, tensor
    gc.collect()
    assert len(maps) == 3
    assert not any(map() is not None for map in maps)


def test_clouds_are_independent():
    """Also with an empty cloud in the batch, and with negative coordinates."""
    network = UNet().double()
    parts = [voxels(clouds=1)[0] for _ in range(2)]
    parts = [SparseTensor(part.coordinates - 3, part.features) for part in parts]
    sizes = torch.tensor([0, len(parts[0].features), 0, len(parts[1].features)]).cumsum(0)
    rows = [torch.cat([getattr(part, name) for part in parts]) for name in ("coordinates", "features")]
    together = network(SparseTensor(*rows, sizes))
    torch.testing.assert_close(together.features, torch.cat([network(part).features for part in parts]))
    empty = network(SparseTensor(rows[0][:0], rows[1][:0]))
    assert empty.features.shape == (0, 3)


def test_gradients():
    tensor, _ = voxels(clouds=1)
    tensor = SparseTensor(tensor.coordinates[:6], tensor.features[:6])
    layers = nn.Sequential(SparseConv(4, 2, 2, stride=2), OnFeatures(nn.Tanh()), InverseConv(2, 3, 2)).double()
    names = list(dict(layers.named_parameters()))

    def call(features, *parameters):
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layers, given, (tensor.with_features(features),)).features

    inputs = (
        tensor.features.requires_grad_(),
        *(parameter.detach().requires_grad_() for parameter in layers.parameters()),
    )
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


def test_compiled_with_given_maps():
    """One graph, with gradients, for a tensor that carries its maps."""
    tensor, _ = voxels(dtype=torch.float32)
    network = nn.Sequential(SubmanifoldConv(4, 8), SparseConv(8, 8, 2, stride=2), InverseConv(8, 3, 2))
    expected = network(tensor).features
    torch._dynamo.reset()
    received = torch.compile(network, fullgraph=True, backend="aot_eager")(tensor).features
    torch.testing.assert_close(received, expected)
    parameters = list(network.parameters())
    gradients = [torch.autograd.grad(out.square().sum(), parameters) for out in (received, expected)]
    torch.testing.assert_close(*gradients)


def test_autocast():
    tensor, _ = voxels(dtype=torch.float32)
    network = UNet()
    expected = network(tensor).features
    with torch.autocast("cpu", torch.bfloat16):
        low = network(tensor).features
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), expected, rtol=0.05, atol=0.05)


def test_copies_and_state():
    tensor, _ = voxels()
    network = UNet().double()
    again = copy.deepcopy(network)
    torch.testing.assert_close(again(tensor).features, network(tensor).features, rtol=0, atol=0)
    other = UNet().double()
    other.load_state_dict(network.state_dict())
    torch.testing.assert_close(other(tensor).features, network(tensor).features, rtol=0, atol=0)
    assert network.state_dict()["down.weight"].shape == (8, 8, 8)
    assert network.second.bias is None


def test_initial_parameters_and_description():
    layer, like = SparseConv(8, 64, 3, stride=2, groups=2), nn.Conv3d(8, 64, 3, groups=2)
    for ours, theirs in ((layer.weight, like.weight), (layer.bias, like.bias)):
        bound = 1 / (27 * 4) ** 0.5
        assert bound * 0.8 < ours.abs().max() <= bound
        torch.testing.assert_close(ours.std(), theirs.std(), rtol=0.2, atol=0)
    assert repr(layer) == "SparseConv(8, 64, kernel_size=(3, 3, 3), stride=(2, 2, 2), groups=2)"
    assert repr(SubmanifoldConv(1, 2, bias=False)) == "SubmanifoldConv(1, 2, kernel_size=(3, 3, 3), bias=False)"
    assert repr(SparsePool(2)) == "SparsePool(kernel_size=(2, 2, 2), stride=(2, 2, 2), reduce='max')"


@pytest.mark.parametrize("reduce", ["mean", "sum", "max", "first"])
def test_from_points_and_back(reduce):
    points = torch.cat([torch.rand(20, 3) - 0.5, torch.full((1, 3), torch.nan)])
    features, offsets = torch.randn(21, 2, requires_grad=True), torch.tensor([0, 8, 8, 21])
    tensor, voxel = SparseTensor.from_points(points, features, 0.3, offsets=offsets, reduce=reduce)
    cloud = torch.repeat_interleave(torch.arange(3), offsets.diff())
    back = pointgrad.gather(tensor.features, voxel)
    reductions = {"max": torch.amax, "mean": torch.mean, "sum": torch.sum, "first": lambda rows, _: rows[0]}
    place = torch.floor(points / 0.3)
    for row in range(20):
        same = (cloud == cloud[row]) & (place == place[row]).all(1)
        torch.testing.assert_close(back[row], reductions[reduce](features[same], 0))
    assert voxel[20] == -1
    assert not back[20].any()
    assert tensor.offsets.tolist() == [0, tensor.offsets[1], tensor.offsets[1], len(tensor.features)]
    tensor.features.square().sum().backward()
    assert features.grad[:20].any()


def test_bad_calls():
    tensor, _ = voxels()
    with pytest.raises(ValueError, match=r"features must be \(N, 5\), got \(\d+, 4\)"):
        SubmanifoldConv(5, 2)(tensor)
    with pytest.raises(
        ValueError, match="tensor must be the output of a strided or transposed layer, got the voxels of"
    ):
        InverseConv(4, 4, 2).double()(tensor)
    with pytest.raises(
        ValueError, match=r"kernel_size must be that of the strided layer, \(2, 2, 2\), got \(3, 3, 3\)"
    ):
        nn.Sequential(SparsePool(2), InverseConv(4, 4, 3)).double()(tensor)
    with pytest.raises(ValueError, match="kernel_size must be one int or three, got 2 ints"):
        SubmanifoldConv(4, 4, (3, 3))
    with pytest.raises(TypeError, match="kernel_size must be an int or three ints, got str '3'"):
        SubmanifoldConv(4, 4, "3")
    with pytest.raises(ValueError, match=r"stride must be in \[1, 32767\], got 0"):
        SparseConv(4, 4, 2, stride=0)
    with pytest.raises(ValueError, match="out_channels must be a multiple of groups = 2, got 3"):
        SubmanifoldConv(4, 3, groups=2)
    with pytest.raises(TypeError, match=r"in_channels must be an int, got float 4\.0"):
        SubmanifoldConv(4.0, 3)
    with pytest.raises(ValueError, match="reduce must be 'max', 'mean' or 'sum', got 'median'"):
        SparsePool(2, reduce="median")
    with pytest.raises(ValueError, match=r"points must be \(N, 3\), got \(2, 5, 3\)"):
        SparseTensor.from_points(torch.rand(2, 5, 3), torch.rand(2, 5, 1), 0.1)
    with pytest.raises(ValueError, match=r"features must be \(N, C\) with points \(N, 3\).*got \(2, 1\)"):
        SparseTensor.from_points(torch.rand(5, 3), torch.rand(2, 1), 0.1)
    for layer in (SubmanifoldConv(4, 4), SparseConv(4, 4, 2), InverseConv(4, 4, 2), SparsePool(2), OnFeatures()):
        with pytest.raises(TypeError, match=r"tensor must be a SparseTensor, got torch\.Tensor"):
            layer(tensor.features)
    with pytest.raises(TypeError, match="coordinates must be int64 or int32, got float32"):
        SubmanifoldConv(4, 4)(SparseTensor(torch.rand(3, 3), torch.rand(3, 4)))
    with pytest.raises(ValueError, match=r"features must be \(3, C\), one row for each input of the map, got \(2, 4\)"):
        SubmanifoldConv(4, 4)(SparseTensor(torch.eye(3, dtype=torch.int64), torch.rand(2, 4)))

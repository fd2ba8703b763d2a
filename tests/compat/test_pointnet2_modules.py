"""The layers of pointgrad.compat.pointnet2_ops."""

import copy
import io

import pytest
import torch
from torch import nn

from pointgrad.compat.pointnet2_ops import pointnet2_modules as modules
from pointgrad.compat.pointnet2_ops import pointnet2_utils as utils
from tests.compat.pointnet2_ops_loops import clouds


def test_state_dict_names():
    """A shared MLP is a Sequential of Conv2d (without bias), BatchNorm2d and ReLU, so that checkpoints load."""
    norm = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]

    def network(prefix, layers):
        return [
            f"{prefix}.{3 * i}.weight" if n is None else f"{prefix}.{3 * i + 1}.{n}"
            for i in range(layers)
            for n in [None, *norm]
        ]

    layer = modules.PointnetSAModuleMSG(8, [0.1, 0.2], [4, 8], [[6, 16, 32], [6, 8]], use_xyz=True)
    assert list(layer.state_dict()) == network("mlps.0", 2) + network("mlps.1", 1)
    assert layer.state_dict()["mlps.0.0.weight"].shape == (16, 9, 1, 1)
    assert list(modules.PointnetFPModule([6, 4, 2]).state_dict()) == network("mlp", 2)
    without = modules.PointnetFPModule([6, 4], bn=False)
    assert list(without.state_dict()) == ["mlp.0.weight", "mlp.0.bias"]


def test_mlp_list_is_modified():
    """The original modifies its argument, and programs reuse the list."""
    widths = [6, 16]
    modules.PointnetSAModule(mlp=widths, npoint=4, radius=0.1, nsample=4)
    assert widths == [9, 16]
    modules.PointnetSAModule(mlp=widths, npoint=4, radius=0.1, nsample=4, use_xyz=False)
    assert widths == [9, 16]


@pytest.mark.parametrize("features", [True, False])
def test_set_abstraction(features, default_place):
    """Equals sampling, grouping, MLP and maximum, step by step."""
    device = default_place.device
    layer = modules.PointnetSAModuleMSG(
        8, [0.3, 0.5], [4, 8], [[5, 6] if features else [0, 6], [5, 7] if features else [0, 7]]
    )
    layer = layer.to(device).eval()
    points = clouds(default_place)
    values = torch.randn(2, 5, 40, device=device) if features else None
    centers, out = layer(points, values)
    index = utils.furthest_point_sample(points, 8).long()
    assert torch.equal(centers, points.gather(1, index[..., None].expand(-1, -1, 3)))
    scales = []
    for radius, nsample, network in zip([0.3, 0.5], [4, 8], layer.mlps, strict=True):
        grouped = utils.QueryAndGroup(radius, nsample)(points, centers, values)
        convolution, norm, relu = network
        assert isinstance(relu, nn.ReLU)
        scales.append(relu(norm(nn.functional.conv2d(grouped, convolution.weight))).amax(3))
    torch.testing.assert_close(out, torch.cat(scales, dim=1))
    assert out.is_contiguous()


def test_set_abstraction_of_all_points(default_place):
    layer = modules.PointnetSAModule(mlp=[5, 6]).to(default_place.device).eval()
    points, values = clouds(default_place), torch.randn(2, 5, 40, device=default_place.device)
    centers, out = layer(points, values)
    assert centers is None
    expected = layer.mlps[0](torch.cat([points.mT, values], 1)[:, :, None]).amax(3)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("known_count", [1, 2, 9])
def test_feature_propagation(known_count, default_place):
    layer = modules.PointnetFPModule([6, 4]).to(default_place.device).eval()
    unknown, known = clouds(default_place, count=12), clouds(default_place, count=known_count)
    own = torch.randn(2, 2, 12, device=default_place.device)
    values = torch.randn(2, 4, known_count, device=default_place.device)
    pairs = torch.cdist(unknown.double(), known.double())
    nearest = pairs.argsort(dim=-1)[..., :3]
    weight = 1 / (pairs.gather(-1, nearest) + 1e-8)
    weight = (weight / weight.sum(-1, keepdim=True)).float()
    mixed = torch.einsum(
        "bnk,bcnk->bcn",
        weight,
        values[:, :, None].expand(-1, -1, 12, -1).gather(3, nearest[:, None].expand(-1, 4, -1, -1)),
    )
    torch.testing.assert_close(
        layer(unknown, known, own, values), layer.mlp(torch.cat([mixed, own], 1)[..., None])[..., 0]
    )


def test_feature_propagation_without_known_points(default_place):
    """The original raises a TypeError without `known`."""
    layer = modules.PointnetFPModule([4, 3]).to(default_place.device).eval()
    unknown, values = clouds(default_place, count=12), torch.randn(2, 4, 1, device=default_place.device)
    out = layer(unknown, None, None, values)
    torch.testing.assert_close(out, layer.mlp(values[..., None])[..., 0].expand(-1, -1, 12))


def test_layers_can_be_saved_copied_and_compiled(default_place):
    layer = modules.PointnetSAModule(mlp=[4, 8], npoint=8, radius=0.4, nsample=8).to(default_place.device).eval()
    points, values = clouds(default_place), torch.randn(2, 4, 40, device=default_place.device)
    expected = layer(points, values)[1]
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(points, values)[1], expected)
    assert torch.equal(copy.deepcopy(layer)(points, values)[1], expected)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(points, values)[1], expected)


def test_autocast(default_place):
    """Layers run in bfloat16, positions stay in float32."""
    down = modules.PointnetSAModule(mlp=[4, 8], npoint=8, radius=0.4, nsample=8).to(default_place.device)
    up = modules.PointnetFPModule([12, 4]).to(default_place.device)
    points, values = clouds(default_place), torch.randn(2, 4, 40, device=default_place.device)
    with torch.autocast(default_place.device, torch.bfloat16):
        centers, deep = down(points, values)
        out = up(points, centers, values, deep)
    assert centers.dtype == torch.float32
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in [*down.parameters(), *up.parameters()])

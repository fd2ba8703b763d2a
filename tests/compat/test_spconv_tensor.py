"""Tensors, modules and voxelization of compat.spconv."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional

from pointgrad.compat.cumm.tensorview.gemm import Activation
from pointgrad.compat.spconv import pytorch as spconv
from pointgrad.compat.spconv.pytorch import functional as Fsp
from pointgrad.compat.spconv.pytorch.conv import SparseConvolution
from pointgrad.compat.spconv.pytorch.modules import SparseSyncBatchNorm, is_sparse_conv, is_spconv_module
from pointgrad.compat.spconv.pytorch.tables import AddTableMisaligned
from pointgrad.compat.spconv.pytorch.utils import PointToVoxel, gather_features_by_pc_voxel_id
from tests.compat.test_spconv import SIZE, random_input


class TestTensor:
    def test_dense_and_back(self):
        x = random_input(shuffle=False)
        again = spconv.SparseConvTensor.from_dense(x.dense(channels_first=False))
        assert torch.equal(again.indices, x.indices)
        assert torch.equal(again.features, x.features)
        assert again.spatial_shape == [SIZE] * 3
        assert x.spatial_size == SIZE**3
        assert x.sparity == len(x.indices) / SIZE**3 / 2

    def test_features_are_replaced_not_assigned(self):
        x = random_input()
        with pytest.raises(ValueError, match="replace_feature"):
            x.features = x.features
        other = x.replace_feature(x.features * 2)
        assert other.indice_dict is x.indice_dict
        assert torch.equal((x + x).features, other.features)
        assert torch.equal((x + x.features).features, other.features)
        assert torch.equal(x.minus().features, -x.features)
        summed = x
        summed += x
        assert torch.equal(summed.features, other.features)
        assert repr(x) == f"SparseConvTensor[shape={x.features.shape}]"

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"indices": torch.zeros(2, 4)}, TypeError, "indices must be int32, got float32"),
            ({"indices": torch.zeros(2, 4, dtype=torch.int64)}, TypeError, "indices must be int32, got int64"),
            ({"features": torch.zeros(2)}, ValueError, r"features must be \(N, C\), got \(2,\)"),
            ({"spatial_shape": [4, 4]}, ValueError, "spatial_shape must be 3 sizes"),
            ({"batch_size": 0}, ValueError, "batch_size must be positive, got 0"),
        ],
    )
    def test_bad_arguments(self, change, error, message):
        good = {"features": torch.zeros(2, 3), "indices": torch.zeros(2, 4, dtype=torch.int32)}
        with pytest.raises(error, match=message):
            spconv.SparseConvTensor(**{**good, "spatial_shape": [4, 4, 4], "batch_size": 1, **change})

    @pytest.mark.parametrize("add", [Fsp.sparse_add, Fsp.sparse_add_hash_based, lambda *t: AddTableMisaligned()(t)])
    def test_sparse_add(self, add):
        parts = [random_input(count=20), random_input(count=10), random_input(count=5)]
        out = add(*parts)
        torch.testing.assert_close(out.dense(), sum(part.dense() for part in parts))
        assert out.indice_dict == {}

    def test_sparse_add_keeps_the_rows_of_an_operand_with_all_voxels(self):
        x = spconv.SubMConv3d(3, 3, 3, indice_key="s").double()(random_input())
        out = Fsp.sparse_add(x.select_by_index(torch.arange(5)), x)
        assert out.indices is x.indices
        assert out.indice_dict is x.indice_dict
        expected = x.features.clone()
        expected[:5] *= 2
        torch.testing.assert_close(out.features, expected)

    def test_sparse_add_of_different_grids(self):
        with pytest.raises(ValueError, match="tens must have the batch size, grid and channels"):
            Fsp.sparse_add(random_input(), random_input(channels=2))


class TestModules:
    def test_sequential(self):
        x = random_input(dtype=torch.float32)
        conv = spconv.SubMConv3d(3, 4, 3)
        network = spconv.SparseSequential(OrderedDict(conv=conv, norm=nn.BatchNorm1d(4)), relu=spconv.SparseReLU())
        network.add(spconv.ToDense())
        assert list(network._modules) == ["conv", "norm", "relu", "3"]
        assert network[0] is conv
        assert network[-1] is network[3]
        assert network(x).shape == (2, 4, SIZE, SIZE, SIZE)
        with pytest.raises(IndexError, match=r"in \[-4, 4\), got 4"):
            network[4]
        with pytest.raises(ValueError, match="'0' twice"):
            spconv.SparseSequential(conv, **{"0": conv})
        spconv.assign_name_for_sparse_modules(network)
        assert conv._sparse_unique_name == "conv"
        assert is_sparse_conv(conv)
        assert not is_sparse_conv(network)

    @pytest.mark.parametrize("module", [spconv.SparseBatchNorm(3), spconv.SparseReLU(), spconv.SparseIdentity()])
    def test_layers_of_torch(self, module):
        x = random_input(dtype=torch.float32)
        module.eval()
        assert is_spconv_module(module)
        assert torch.equal(module(x).features, module(x.features))
        assert is_spconv_module(SparseSyncBatchNorm(3))
        assert not is_spconv_module(nn.ReLU())

    def test_tables(self):
        x = random_input()
        parts = spconv.ConcatTable().add(spconv.SparseIdentity()).add(spconv.Identity())(x)
        assert torch.equal(spconv.JoinTable()(parts).features, torch.cat([x.features, x.features], 1))
        assert torch.equal(spconv.AddTable()(parts).features, 2 * x.features)
        with pytest.raises(ValueError, match="input must have the batch size, grid and number of voxels"):
            spconv.AddTable()([x, x.select_by_index(torch.arange(3))])
        assert spconv.RemoveGrid()(x).grid is None

    def test_activation_and_added_input(self):
        x = random_input()
        for name, function in (("ReLU", torch.relu), ("Sigmoid", torch.sigmoid)):
            layer = SparseConvolution(3, 3, 3, subm=True, act_type=Activation[name]).double()
            plain = SparseConvolution(3, 3, 3, subm=True).double()
            plain.load_state_dict(layer.state_dict())
            torch.testing.assert_close(layer(x, x).features, function(plain(x).features + x.features))
        layer.act_type, layer.act_alpha = Activation.LeakyReLU, 0.2
        torch.testing.assert_close(layer(x).features, functional.leaky_relu(
            torch.func.functional_call(plain, dict(layer.named_parameters()), (x,)).features, 0.2))  # fmt: skip

    @pytest.mark.parametrize("kind", ["SubMConv4d", "SparseConv4d", "SparseConvTranspose4d", "SparseInverseConv4d"])
    def test_four_axes_are_refused(self, kind):
        with pytest.raises(NotImplementedError, match="supports 1 to 3 axes, got 4"):
            getattr(spconv, kind)(3, 4, 3, indice_key="a")
        with pytest.raises(NotImplementedError, match="supports 1 to 3 axes, got 4"):
            spconv.SparseMaxPool4d(3)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: spconv.SubMConv3d(4, 4, 3, groups=2), "groups must be 1, got 2"),
            (lambda: spconv.SubMConv3d(4, 4, (3, 3)), "one int or 3, got 2 ints"),
            (lambda: spconv.SparseConv3d(4, 4, 1, padding=1), "padding must be 0 if"),
            (lambda: spconv.SubMConv3d(4, 4, 3).double()(random_input()), r"\(N, 4\), got \(\d+, 3\)"),
            (lambda: spconv.SparseConv3d(3, 4, 9).double()(random_input()), "spatial_shape must be large enough"),
        ],
    )
    def test_bad_arguments(self, make, message):
        with pytest.raises(ValueError, match=message):
            make()


class TestPointToVoxel:
    @pytest.mark.parametrize("mean", [False, True])
    def test_against_a_loop(self, mean, device):
        points = torch.rand(120, 4) * 5 - 0.5
        points[7, 1] = torch.nan
        limits = ([1.0, 0.5, 0.7], [0.0, 0.0, 0.0, 4.0, 4.0, 4.2])
        make = PointToVoxel(*limits, 4, 50, 2, torch.device(device))
        voxels, indices, count, number = (
            part.cpu() for part in make.generate_voxel_with_id(points.to(device), empty_mean=mean)
        )
        assert make.grid_size == [6, 8, 4]
        members, expected = OrderedDict(), []
        for point in points:
            place = tuple(int((v / s).floor()) if v == v else -1 for v, s in zip(point[:3], limits[0], strict=True))[
                ::-1
            ]
            inside = all(0 <= p < size for p, size in zip(place, (6, 8, 4), strict=True))
            if inside and (place in members or len(members) < 50):
                members.setdefault(place, []).append(point)
                expected.append(list(members).index(place))
            else:
                expected.append(-1)
        assert number.tolist() == expected
        assert indices.tolist() == [list(place) for place in members]
        for voxel, points_inside, size in zip(voxels, members.values(), count, strict=True):
            kept = torch.stack(points_inside[:2])
            assert size == len(kept)
            assert torch.equal(voxel[:size], kept)
            fill = kept.mean(0) if mean else torch.zeros(4)
            torch.testing.assert_close(voxel[size:], fill.expand(2 - size, 4))

    def test_empty_and_bad_points(self):
        make = PointToVoxel([1, 1], [0, 0, 4, 4], 3, 10, 2)
        assert [tuple(part.shape) for part in make(torch.zeros(0, 3))] == [(0, 2, 3), (0, 2), (0,)]
        with pytest.raises(ValueError, match=r"pc must be \(N, num_point_features\) = \(N, 3\), got \(1, 4\)"):
            make(torch.zeros(1, 4))
        with pytest.raises(TypeError, match="pc must be float32 or float64"):
            make(torch.zeros(1, 3).half())
        with pytest.raises(ValueError, match="coors_range_xyz must be 4 numbers"):
            PointToVoxel([1, 1], [0, 0, 4], 3, 10, 2)

    def test_gather(self):
        values, number = torch.rand(3, 2), torch.tensor([2, -1, 0])
        out = gather_features_by_pc_voxel_id(values, number, invalid_value=7)
        assert torch.equal(out, torch.stack([values[2], torch.full((2,), 7.0), values[0]]))
        assert gather_features_by_pc_voxel_id(values[:0], number).shape == (3, 2)

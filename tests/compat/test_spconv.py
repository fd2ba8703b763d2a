"""compat.spconv against dense convolutions, loops over points, and finite differences."""

import doctest
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

import pointgrad.compat
from pointgrad.compat.spconv import constants
from pointgrad.compat.spconv import pytorch as spconv
from tests.compat.precision import assert_no_worse

SIZE = 6


def random_input(axes=3, channels=3, batch=2, count=40, shuffle=True, device="cpu", dtype=torch.float64):
    places = torch.cat([torch.randint(0, batch, (count, 1)), torch.randint(0, SIZE, (count, axes))], 1)
    indices = torch.unique(places, dim=0).int()
    if shuffle:
        indices = indices[torch.randperm(len(indices))]
    features = torch.randn(len(indices), channels, dtype=dtype)
    return spconv.SparseConvTensor(features.to(device), indices.to(device), [SIZE] * axes, batch)


def dense_weight(layer):
    """The weight (Cout, kz, ky, kx, Cin) as torch's (Cout, Cin, kz, ky, kx)."""
    return layer.weight.movedim(-1, 1)


def same_where_active(sparse, dense):
    """Compare features with a dense result at the sparse voxels."""
    batch, *places = sparse.indices.long().unbind(1)
    torch.testing.assert_close(sparse.features, dense.movedim(1, -1)[(batch, *places)])


CASES = list(itertools.product((1, 2, 3), ((3, 2, 1, 1), (2, 2, 0, 1), (3, 1, 0, 2), (1, 2, 0, 1), (4, 3, 2, 1))))


class TestAgainstDense:
    @pytest.mark.parametrize("axes", [1, 2, 3])
    @pytest.mark.parametrize(("size", "dilation"), [(3, 1), (3, 2), (5, 1), (2, 1), (4, 1)])
    def test_submanifold(self, axes, size, dilation, device):
        x = random_input(axes, device=device)
        layer = getattr(spconv, f"SubMConv{axes}d")(3, 4, size, dilation=dilation, padding=7).double().to(device)
        out = layer(x)
        assert out.indices is x.indices
        dense = functional.pad(x.dense(), [size // 2 * dilation] * 2 * axes)
        conv = getattr(functional, f"conv{axes}d")
        same_where_active(out, conv(dense, dense_weight(layer), layer.bias, dilation=dilation))

    @pytest.mark.parametrize(("axes", "case"), CASES)
    def test_strided(self, axes, case, device):
        size, stride, padding, dilation = case
        x = random_input(axes, device=device)
        layer = getattr(spconv, f"SparseConv{axes}d")(3, 4, size, stride, padding, dilation, bias=False)
        layer = layer.double().to(device)
        out = layer(x)
        conv = getattr(functional, f"conv{axes}d")
        expected = conv(x.dense(), dense_weight(layer), None, stride, padding, dilation)
        torch.testing.assert_close(out.dense(), expected)
        assert out.spatial_shape == list(expected.shape[2:])
        assert torch.equal(out.indices, torch.unique(out.indices, dim=0))

    @pytest.mark.parametrize(("axes", "case"), CASES)
    def test_transposed(self, axes, case, device):
        size, stride, padding, dilation = case
        x = random_input(axes, device=device)
        layer = getattr(spconv, f"SparseConvTranspose{axes}d")(3, 4, size, stride, padding, dilation, bias=False)
        layer = layer.double().to(device)
        conv = getattr(functional, f"conv_transpose{axes}d")
        kernel = dense_weight(layer).transpose(0, 1)
        expected = conv(x.dense(), kernel, None, stride, padding, 0, 1, dilation)
        torch.testing.assert_close(layer(x).dense(), expected)

    def test_output_padding(self):
        x = random_input()
        layer = spconv.SparseConvTranspose3d(3, 4, 3, 3, 1, bias=False, output_padding=2).double()
        kernel = dense_weight(layer).transpose(0, 1)
        torch.testing.assert_close(layer(x).dense(), functional.conv_transpose3d(x.dense(), kernel, None, 3, 1, 2))

    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_inverse(self, size, device):
        """The transposed convolution, at the voxels of the first layer's input."""
        x = random_input(device=device)
        down = spconv.SparseConv3d(3, 5, size, 2, indice_key="down").double().to(device)
        up = spconv.SparseInverseConv3d(5, 4, size, indice_key="down").double().to(device)
        middle = down(x)
        out = up(middle)
        assert out.indices is x.indices
        assert out.spatial_shape == x.spatial_shape
        kernel = dense_weight(up).transpose(0, 1)
        dense = functional.conv_transpose3d(middle.dense(), kernel, up.bias, 2)
        padding = [part for end in dense.shape[:1:-1] for part in (0, SIZE - end)]
        expected = functional.pad(dense - up.bias[:, None, None, None], padding) + up.bias[:, None, None, None]
        same_where_active(out, expected)

    @pytest.mark.parametrize("axes", [1, 2, 3])
    def test_pools(self, axes, device):
        x = random_input(axes, device=device)
        dense = x.dense()
        empty = x.replace_feature(torch.ones_like(x.features[:, :1])).dense() == 0
        pool = getattr(functional, f"max_pool{axes}d")
        expected = pool(dense.masked_fill(empty, -torch.inf), 3, 2, 1)
        same_where_active(getattr(spconv, f"SparseMaxPool{axes}d")(3, 2, 1)(x), expected)
        weight = dense.new_ones((3, 1, *[2] * axes))
        conv = getattr(functional, f"conv{axes}d")
        total, count = conv(dense, weight, None, 2, groups=3), conv((~empty).double(), weight[:1], None, 2)
        same_where_active(getattr(spconv, f"SparseAvgPool{axes}d")(2)(x), total / count.clamp(min=1))

    def test_global_pools(self, device):
        x = random_input(batch=3, device=device)
        x = x.select_by_index(x.indices[:, 0] != 1)
        parts = [x.features[x.indices[:, 0] == number] for number in (0, 2)]
        highest, mean = spconv.SparseGlobalMaxPool()(x), spconv.SparseGlobalAvgPool()(x)
        torch.testing.assert_close(highest[[0, 2]], torch.stack([part.amax(0) for part in parts]))
        torch.testing.assert_close(mean[[0, 2]], torch.stack([part.mean(0) for part in parts]))
        assert not highest[1].any()
        assert not mean[1].any()

    def test_submanifold_pool(self):
        x = random_input()
        out = spconv.pool.SparseMaxPool(3, 3, subm=True)(x)
        empty = x.replace_feature(torch.ones_like(x.features[:, :1])).dense() == 0
        same_where_active(out, functional.max_pool3d(x.dense().masked_fill(empty, -torch.inf), 3, 1, 1))


class TestGradients:
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_layers_twice(self, shuffle):
        """Through all kinds of layers, with sorted and unsorted batch indices."""
        x = random_input(channels=2, count=4, shuffle=shuffle)
        layers = nn.ModuleList(
            [
                spconv.SubMConv3d(2, 2, 3, indice_key="a"),
                spconv.SparseConv3d(2, 2, 2, 2, indice_key="b"),
                spconv.SparseInverseConv3d(2, 2, 2, indice_key="b"),
                spconv.SparseAvgPool3d(2, 2),
            ]
        ).double()

        def run(features):
            out = x.replace_feature(features)
            for layer in layers:
                out = layer(out)
            return out.features

        features = x.features.clone().requires_grad_()
        assert torch.autograd.gradcheck(run, features)
        assert torch.autograd.gradgradcheck(lambda f: run(f) ** 2, features)

    @pytest.mark.parametrize("kind", ["SubMConv3d", "SparseConv3d", "SparseConvTranspose3d"])
    def test_parameters(self, kind):
        x = random_input(channels=2, count=4)
        layer = getattr(spconv, kind)(2, 2, 2, stride=2).double()

        def run(features, weight, bias):
            state = {"weight": weight, "bias": bias}
            return torch.func.functional_call(layer, state, (x.replace_feature(features),)).features

        inputs = [part.detach().clone().requires_grad_() for part in (x.features, layer.weight, layer.bias)]
        assert torch.autograd.gradcheck(run, inputs)


class TestRows:
    def test_order_of_rows_does_not_matter(self, device):
        """Rows keep their places, whether or not the batch indices are sorted."""
        x = random_input(shuffle=False, batch=3, device=device)
        order = torch.randperm(len(x.indices), device=device)
        mixed = spconv.SparseConvTensor(x.features[order], x.indices[order], x.spatial_shape, 3)
        network = spconv.SparseSequential(
            spconv.SubMConv3d(3, 4, 3, indice_key="s"),
            spconv.SparseMaxPool3d(2, indice_key="p"),
            spconv.SparseInverseConv3d(4, 4, 2, indice_key="p"),
            spconv.SubMConv3d(4, 4, 3, indice_key="s"),
        )
        network = network.double().to(device)
        first, second = network(x), network(mixed)
        torch.testing.assert_close(first.features[order], second.features)
        assert second.indices is mixed.indices

    def test_empty(self):
        x = random_input()
        x = x.select_by_index(torch.zeros(len(x.indices), dtype=torch.bool))
        down, up = spconv.SparseConv3d(3, 4, 3, 2, indice_key="d"), spconv.SparseInverseConv3d(4, 5, 3, indice_key="d")
        middle = down.double()(x)
        assert middle.features.shape == (0, 4)
        assert middle.spatial_shape == [2, 2, 2]
        assert up.double()(middle).features.shape == (0, 5)
        assert spconv.SparseSequential(nn.BatchNorm1d(3).double())(x).features.shape == (0, 3)

    def test_empty_grid_in_the_batch(self):
        x = random_input(batch=2)
        x.batch_size = 4
        assert spconv.SparseConv3d(3, 4, 3, 2).double()(x).dense().shape == (4, 4, 2, 2, 2)

    @pytest.mark.parametrize("worst", [-1, 2])
    def test_batch_index_out_of_range(self, worst):
        x = random_input()
        x.indices[3, 0] = worst
        with pytest.raises(ValueError, match=rf"indices\[:, 0\] must be in \[0, batch_size = 2\), got {worst}"):
            spconv.SubMConv3d(3, 4, 3).double()(x)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_and_autocast(self, dtype, device):
        x = random_input(dtype=torch.float32, device=device)
        layer = spconv.SubMConv3d(3, 4, 3).to(device)
        with torch.autocast(device, dtype=dtype):
            out = spconv.SparseSequential(layer, spconv.SubMConv3d(4, 4, 1).to(device))(x).features
        assert out.dtype == dtype
        layer, x = layer.to(dtype), x.replace_feature(x.features.to(dtype))
        batch, *places = x.indices.long().unbind(1)
        plain, exact = (
            functional.conv3d(x.dense().to(t), dense_weight(layer).to(t), padding=1).movedim(1, -1)[(batch, *places)]
            + layer.bias.to(t)
            for t in (dtype, torch.float64)
        )
        assert_no_worse(layer(x).features, plain, exact)


class TestKeys:
    def test_maps_are_shared_and_inherited(self):
        x = random_input()
        first, second = (spconv.SubMConv3d(3, 3, 3, indice_key="s").double() for _ in range(2))
        middle = first(x)
        assert x.indice_dict == {}  # the input is not changed
        data = middle.find_indice_pair("s")
        assert data.is_subm
        assert second(middle).find_indice_pair("s") is data
        assert middle.find_indice_pair(None) is None

    @pytest.mark.parametrize(
        ("layer", "message"),
        [
            (lambda: spconv.SubMConv3d(3, 3, 5, indice_key="s"), r"kernel_size must equal \[3, 3, 3\].*'s', got \[5, "),
            (lambda: spconv.SubMConv3d(3, 3, 3, dilation=2, indice_key="s"), r"dilation must equal \[1, 1, 1\]"),
            (lambda: spconv.SparseConv3d(3, 3, 3, indice_key="s"), "indice_key 's' already exists"),
            (lambda: spconv.SubMConv3d(3, 3, 3, indice_key="d"), "indice_key 'd' already exists"),
            (lambda: spconv.SparseMaxPool3d(3, indice_key="d"), "indice_key 'd' already exists"),
            (lambda: spconv.SparseInverseConv3d(3, 3, 3, indice_key="s"), "must belong to a strided convolution"),
            (lambda: spconv.SparseInverseConv3d(3, 3, 2, indice_key="d"), r"kernel_size must equal \[3, 3, 3\]"),
            (lambda: spconv.SparseInverseConv3d(3, 3, 3, indice_key="x"), r"must be in \['d', 's'\], got 'x'"),
        ],
    )
    def test_maps_that_do_not_fit(self, layer, message):
        x = random_input()
        x = spconv.SubMConv3d(3, 3, 3, indice_key="s").double()(x)
        x.indice_dict.update(spconv.SparseConv3d(3, 3, 3, 2, indice_key="d").double()(x).indice_dict)
        with pytest.raises(ValueError, match=message):
            layer().double()(x)

    def test_other_voxels(self):
        x = random_input()
        layer = spconv.SubMConv3d(3, 3, 3, indice_key="s").double()
        x = layer(x)
        for indices, message in ((x.indices[1:], "indices must have the"), (x.indices.flip(0), "in the same order")):
            other = spconv.SparseConvTensor(x.features[: len(indices)], indices, x.spatial_shape, 2)
            other.indice_dict = x.indice_dict
            with pytest.raises(ValueError, match=message):
                layer(other)
        x.spatial_shape = [9, 9, 9]
        with pytest.raises(ValueError, match=r"spatial_shape must equal \[6, 6, 6\].*got \[9, 9, 9\]"):
            layer(x)


class TestState:
    def test_layout(self):
        layer = spconv.SparseConv3d(3, 4, (1, 2, 5), record_voxel_count=True)
        assert {name: tuple(value.shape) for name, value in layer.state_dict().items()} == {
            "weight": (4, 1, 2, 5, 3), "bias": (4,), "max_num_voxels_during_training": (1,),
        }  # fmt: skip
        assert layer.bias.abs().max() <= 1 / 30**0.5
        without = {name: value for name, value in layer.state_dict().items() if name in ("weight", "bias")}
        layer.load_state_dict(without)

    def test_single_position_reads_the_memory_of_the_weight(self):
        """Checkpoints of spconv rely on this."""
        x = random_input()
        layer = spconv.SubMConv3d(3, 4, 1).double()
        torch.testing.assert_close(layer(x).features, x.features @ layer.weight.view(3, 4) + layer.bias)

    @pytest.mark.parametrize(("layout", "axes"), [("RSKC", (1, 2, 3, 0, 4)), ("RSCK", (1, 2, 3, 4, 0))])
    def test_other_layouts(self, layout, axes, monkeypatch):
        layer, other = (spconv.SubMConv3d(3, 4, (1, 2, 3), bias=False) for _ in range(2))
        monkeypatch.setattr(constants, "SAVED_WEIGHT_LAYOUT", layout)
        other.load_state_dict({"weight": layer.weight.detach().permute(axes)})
        assert torch.equal(other.weight, layer.weight)

    def test_single_position_of_version_1(self, monkeypatch):
        x, layer = random_input(), spconv.SubMConv3d(3, 4, 1, bias=False).double()
        matrix = torch.randn(3, 4, dtype=torch.float64)
        monkeypatch.setattr(constants, "SAVED_WEIGHT_LAYOUT", "RSCK")
        layer.load_state_dict({"weight": matrix.reshape(1, 1, 1, 3, 4)})
        torch.testing.assert_close(layer(x).features, x.features @ matrix)

    def test_unknown_layout(self, monkeypatch):
        monkeypatch.setattr(constants, "SAVED_WEIGHT_LAYOUT", "CRSK")
        layer = spconv.SubMConv3d(3, 4, 3)
        with pytest.raises(ValueError, match="SAVED_WEIGHT_LAYOUT must be"):
            layer.load_state_dict(layer.state_dict())

    def test_voxel_count(self):
        pool = spconv.SparseMaxPool3d(2, record_voxel_count=True)
        counts = [len(pool(random_input(count=count)).indices) for count in (40, 4)]
        assert pool.get_max_num_voxels().tolist() == [max(counts)]
        assert spconv.SparseMaxPool3d(2).get_max_num_voxels() is None


@pytest.mark.parametrize("module", pointgrad.compat.modules("spconv"), ids=lambda module: module.__name__)
def test_docstring_examples(module):
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0


@pytest.mark.parametrize("model", ["detector", "unet", "decoder"])
def test_unchanged_program(model, device, run_program):
    arguments = ["--model", model, "--steps", "4", "--device", device]
    losses = run_program("spconv_model.py", ("spconv", "cumm"), *arguments)[1]
    assert len(losses) == 4
    assert losses[-1] < losses[0] / 2

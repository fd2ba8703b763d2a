"""Sparse convolution against dense convolution on grids."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import pointgrad
from pointgrad import KernelMap, sparse_conv, sparse_pool, strided_map, submanifold_map, transposed_map

SIDE = 4


def occupied(count=20, batch=2, side=SIDE):
    """Different voxels of each cloud, packed in random order, with their offsets."""
    clouds = [torch.randperm(side**3)[: count - 5 * b] for b in range(batch)]
    places = torch.cat(clouds)
    offsets = torch.tensor([0, *itertools.accumulate(map(len, clouds))])
    return torch.stack([places // side**2, places // side % side, places % side], 1), offsets


def batch_of(offsets):
    return torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())


def dense(features, coordinates, offsets, side=SIDE, fill=0.0):
    """(B, C, side, side, side) with the features of occupied voxels."""
    grid = features.new_full((len(offsets) - 1, side, side, side, features.shape[1]), fill)
    return grid.index_put((batch_of(offsets), *coordinates.T), features).permute(0, 4, 1, 2, 3)


def at_outputs(grid, found):
    """Values of a dense result at the outputs of a map."""
    return grid.permute(0, 2, 3, 4, 1)[(batch_of(found.offsets), *found.coordinates.T)]


def matrices(kernel):
    """A dense kernel (D, C / groups, kx, ky, kz) as (K, C / groups, D)."""
    return kernel.permute(2, 3, 4, 1, 0).flatten(0, 2)


def assert_same_derivatives(ours, expected, values):
    """Equal values, first and second derivatives under the same random upstream gradients."""
    results = []
    for call in (ours, expected):
        torch.manual_seed(5)
        output = call(*values)
        # Not randn_like, which fills memory in the order of the strides.
        upstream = torch.randn(output.shape, dtype=output.dtype)
        first = torch.autograd.grad(output, values, upstream, create_graph=True)
        live = [grad for grad in first if grad.requires_grad]
        upstream = [torch.randn(grad.shape, dtype=grad.dtype) for grad in live]
        second = torch.autograd.grad(live, values, upstream, allow_unused=True)
        results.append([output, *first, *(grad for grad in second if grad is not None)])
    assert len(results[0]) == len(results[1])
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-10)


def leaves(*shapes):
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "groups"),
    [
        (3, 1, 1, 1, 1),
        (2, 2, 0, 1, 1),
        (3, 2, 1, 1, 2),
        ((3, 1, 2), (1, 2, 1), (1, 0, 0), 1, 4),
        ((1, 2, 3), 1, (0, 1, 2), (1, 2, 1), 1),
    ],
)
def test_strided_is_conv3d(kernel, stride, padding, dilation, groups):
    coordinates, offsets = occupied()
    sizes = kernel if isinstance(kernel, tuple) else (kernel,) * 3
    settings = {"stride": stride, "padding": padding, "dilation": dilation}
    features, weight = leaves((len(coordinates), 4), (4, 4 // groups, *sizes))
    whole = F.conv3d(dense(features, coordinates, offsets), weight, groups=groups, **settings)
    found = strided_map(coordinates, kernel, shape=whole.shape[2:], offsets=offsets, **settings)
    assert_same_derivatives(
        lambda x, w: sparse_conv(x, matrices(w), found, groups=groups),
        lambda x, w: at_outputs(F.conv3d(dense(x, coordinates, offsets), w, groups=groups, **settings), found),
        [features, weight],
    )
    # Dense outputs without an input in their window are not outputs of the map.
    ones = F.conv3d(dense(torch.ones(len(coordinates), 1), coordinates, offsets), torch.ones(1, 1, *sizes), **settings)
    assert len(found.coordinates) == int((ones > 0).sum())


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "groups"),
    [(2, 2, 0, 1, 1), (3, 2, 1, 1, 2), ((3, 1, 2), (1, 2, 3), (1, 0, 0), (1, 1, 2), 1)],
)
def test_transposed_is_conv_transpose3d(kernel, stride, padding, dilation, groups):
    coordinates, offsets = occupied()
    sizes = kernel if isinstance(kernel, tuple) else (kernel,) * 3
    settings = {"stride": stride, "padding": padding, "dilation": dilation}
    features, weight = leaves((len(coordinates), 4), (4, 2 // groups, *sizes))

    def by_position(kernel):  # (C, D / groups, kx, ky, kz)
        parts = kernel.permute(2, 3, 4, 0, 1).flatten(0, 2).unflatten(1, (groups, -1))
        return parts.transpose(1, 2).flatten(2)

    whole = F.conv_transpose3d(dense(features, coordinates, offsets), weight, groups=groups, **settings)
    found = transposed_map(coordinates, kernel, shape=whole.shape[2:], offsets=offsets, **settings)
    assert_same_derivatives(
        lambda x, w: sparse_conv(x, by_position(w), found, groups=groups),
        lambda x, w: at_outputs(
            F.conv_transpose3d(dense(x, coordinates, offsets), w, groups=groups, **settings), found
        ),
        [features, weight],
    )


@pytest.mark.parametrize(("kernel", "dilation", "groups"), [(3, 1, 1), ((3, 1, 5), (1, 1, 2), 2), ((2, 4, 1), 1, 1)])
def test_submanifold_is_masked_conv3d(kernel, dilation, groups):
    """A dense convolution with the window around each voxel, read at the occupied voxels; with a bias."""
    coordinates, offsets = occupied()
    sizes = kernel if isinstance(kernel, tuple) else (kernel,) * 3
    steps = dilation if isinstance(dilation, tuple) else (dilation,) * 3
    # F.pad counts from the last axis.
    sides = [(k // 2 * d, (k - 1 - k // 2) * d) for k, d in zip(sizes, steps, strict=True)][::-1]
    borders = [size for pair in sides for size in pair]
    found = submanifold_map(coordinates, kernel, dilation=dilation, offsets=offsets)

    def expected(x, w, b):
        grid = F.pad(dense(x, coordinates, offsets), borders)
        return at_outputs(F.conv3d(grid, w, b, dilation=dilation, groups=groups), found)

    values = leaves((len(coordinates), 4), (2, 4 // groups, *sizes), (2,))
    ours = lambda x, w, b: sparse_conv(x, matrices(w), found, bias=b, groups=groups)  # noqa: E731
    assert_same_derivatives(ours, expected, values)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1), ((1, 3, 2), 1, (0, 1, 1))])
def test_pool_is_dense_pool(kernel, stride, padding):
    coordinates, offsets = occupied()
    (features,) = leaves((len(coordinates), 3))
    windows = {"kernel_size": kernel, "stride": stride, "padding": padding}
    size = F.avg_pool3d(torch.zeros(1, 1, SIDE, SIDE, SIDE), **windows).shape[2:]
    found = strided_map(coordinates, kernel, stride=stride, padding=padding, shape=size, offsets=offsets)

    def mean(x, divide):
        total = at_outputs(F.avg_pool3d(dense(x, coordinates, offsets), **windows, divisor_override=1), found)
        seen = F.avg_pool3d(dense(torch.ones_like(x), coordinates, offsets), **windows, divisor_override=1)
        return total / at_outputs(seen, found) if divide else total

    maximum = lambda x: at_outputs(F.max_pool3d(dense(x, coordinates, offsets, fill=-torch.inf), **windows), found)  # noqa: E731
    for reduce, expected in (("max", maximum), ("mean", lambda x: mean(x, True)), ("sum", lambda x: mean(x, False))):
        received, desired = sparse_pool(features, found, reduce), expected(features)
        torch.testing.assert_close(received, desired)
        upstream = torch.randn_like(desired)
        torch.testing.assert_close(
            torch.autograd.grad(received, features, upstream), torch.autograd.grad(desired, features, upstream)
        )


def test_mean_of_large_float16():
    """Their sum is beyond the largest float16."""
    found = strided_map(torch.tensor([[0, 0, 0], [0, 0, 1]]), 2, stride=2)
    assert sparse_pool(torch.full((2, 1), 60000.0, dtype=torch.float16), found, "mean").item() == 60000


@pytest.mark.parametrize("build", ["submanifold", "even", "strided", "transposed"])
def test_inverse_is_the_adjoint(build, place):
    """<conv(x), y> = <x, inverse conv(y)> with transposed matrices."""
    coordinates, offsets = occupied(12)
    coordinates, offsets = coordinates.to(place.device), offsets.to(place.device)
    found = {
        "submanifold": lambda: submanifold_map(coordinates, (1, 3, 3), offsets=offsets),
        "even": lambda: submanifold_map(coordinates, (2, 1, 2), offsets=offsets),
        "strided": lambda: strided_map(coordinates, 2, stride=2, offsets=offsets),
        "transposed": lambda: transposed_map(coordinates, (1, 2, 1), stride=(1, 2, 1), offsets=offsets),
    }[build]()
    weight = torch.randn(found.sources.shape[1], 3, 2, dtype=torch.float64).to(place.device)
    x = torch.randn(len(found.input_coordinates), 3, dtype=torch.float64).to(place.device)
    y = torch.randn(len(found.coordinates), 2, dtype=torch.float64).to(place.device)
    back = found.inverse()
    assert torch.equal(back.coordinates, found.input_coordinates)
    forward, backward = sparse_conv(x, weight, found), sparse_conv(y, weight.transpose(1, 2), back)
    torch.testing.assert_close((forward * y).sum(), (x * backward).sum())
    for received, desired in zip(back.inverse(), found, strict=True):
        assert torch.equal(received, desired) if isinstance(desired, torch.Tensor) else received == desired


def test_several_tiles(kernel_place):
    """More rows than a tile, channels that fill no block, groups; both kinds of map; with gradients."""
    coordinates = torch.randint(0, 7, (150, 3)).to(kernel_place.device)
    for found, groups in (
        (submanifold_map(coordinates, (1, 3, 3)), 1),
        (strided_map(coordinates, (1, 2, 3), stride=2, padding=1), 17),
    ):
        values = [
            value.to(kernel_place.device).requires_grad_()
            for value in (torch.randn(150, 17), torch.randn(found.sources.shape[1], 17 // groups, 34))
        ]
        results = []
        for name in (kernel_place.backend, "reference"):
            with pointgrad.backend(name):
                out = sparse_conv(*values, found, groups=groups)
                results.append([out, *torch.autograd.grad(out.sin().sum(), values)])
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_nan_reaches_exactly_its_readers(place):
    coordinates = torch.randint(0, 4, (30, 3))
    features = torch.randn(30, 3)
    found = submanifold_map(coordinates.to(place.device), (1, 3, 3))
    row = int(found.sources[:, 0].cpu().argmax())  # reads something, so it is not a duplicate
    features[row, 1] = torch.nan
    out = sparse_conv(features.to(place.device), torch.randn(9, 3, 5).to(place.device), found)
    reads = (found.sources == row).any(1)
    assert torch.equal(out.isnan().all(1), reads)
    assert torch.equal(out.isnan().any(1), reads)


def test_clouds_do_not_mix(place):
    """Equal coordinates in two clouds, one of them empty in between: each output reads its own cloud."""
    one = torch.tensor([[0, 0, 0], [0, 0, 1]])
    found = submanifold_map(
        one.repeat(2, 1).to(place.device), (1, 1, 3), offsets=torch.tensor([0, 2, 2, 4]).to(place.device)
    )
    assert found.sources.tolist() == [[-1, 0, 1], [0, 1, -1], [-1, 2, 3], [2, 3, -1]]


def test_unique():
    twice = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 0, 0]])
    for build in (submanifold_map, strided_map, transposed_map):
        with pytest.raises(
            ValueError, match="coordinates must be different within each cloud, got a voxel that occurs 2"
        ):
            build(twice, 3, unique=True)
        build(twice, 3, offsets=torch.tensor([0, 2, 3]), unique=True)


@pytest.mark.parametrize(("build", "edge"), [(strided_map, -(2**31)), (transposed_map, 2**31 - 1)])
def test_outputs_beyond_int32(build, edge):
    """The coordinates are allowed, but not the outputs that they have."""
    with pytest.raises(ValueError, match=r"outputs must be in the range of int32, got -?21474836"):
        build(torch.tensor([[edge, 0, 0]]), 3)


def test_a_map_is_used_again():
    """Several convolutions and pools use one map, without changing it."""
    coordinates, offsets = occupied()
    found = submanifold_map(coordinates, 3, offsets=offsets)
    before = [value.clone() for value in found if isinstance(value, torch.Tensor)]
    first = sparse_conv(torch.ones(len(coordinates), 2), torch.ones(27, 2, 3), found)
    assert torch.equal(sparse_pool(torch.ones(len(coordinates), 1), found, "sum"), first[:, :1] / 2)
    assert all(map(torch.equal, (value for value in found if isinstance(value, torch.Tensor)), before))


def test_wrong_maps():
    coordinates, _ = occupied()
    found = submanifold_map(coordinates, 3)
    features = torch.zeros(len(coordinates), 2)
    for wrong in (None, found.sources, tuple(found)):
        with pytest.raises(TypeError, match="map must be a KernelMap, got"):
            sparse_conv(features, torch.zeros(27, 2, 2), wrong)
    with pytest.raises(
        ValueError, match=r"features must be \(34, C\), one row for each input of the map, got \(35, 2\)"
    ):
        sparse_pool(features, submanifold_map(coordinates[1:], 3))
    corrupt = found._replace(sources=found.sources.clone().fill_(len(coordinates)))
    with pytest.raises(ValueError, match=r"sources must be in \[-1, 35\), got 35"):
        sparse_conv(features, torch.zeros(27, 2, 2), corrupt)


def test_fakes_without_values():
    """A padded map on the device meta has the right shapes, and so have its convolution and pools."""
    places = torch.zeros(2, 5, 3, dtype=torch.int64, device="meta")
    found = strided_map(places, 2, stride=2)
    assert isinstance(found, KernelMap)
    assert found.coordinates.shape == (2, 5, 3)
    features = torch.zeros(2, 5, 3, device="meta")
    assert sparse_conv(features, torch.zeros(8, 3, 4, device="meta"), found).shape == (2, 5, 4)
    for reduce in ("max", "mean", "sum"):
        assert sparse_pool(features, found, reduce).shape == (2, 5, 3)


def test_autocast_as_dense_convolution():
    coordinates, offsets = occupied()
    found = submanifold_map(coordinates, 3, offsets=offsets)
    features, weight = torch.randn(len(coordinates), 2, requires_grad=True), torch.randn(27, 2, 2, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = sparse_conv(features, weight, found, bias=torch.ones(2))
        pooled = sparse_pool(features, found, "sum")
        assert sparse_conv(features.double(), weight.double(), found).dtype == torch.float64
    assert out.dtype == torch.bfloat16
    assert pooled.dtype == torch.float32
    assert {grad.dtype for grad in torch.autograd.grad(out.sum(), [features, weight])} == {torch.float32}


@pytest.mark.parametrize(("hip", "available"), [(None, 99), (None, 227), ("6.4", 64)], ids=["sm_86", "sm_90", "HIP"])
def test_tiles_fit_in_shared_memory(monkeypatch, hip, available):
    """Triton keeps the operands of all stages but one: at most 64 KiB on AMD GPUs, and 99 KiB on all since sm_80."""
    pytest.importorskip("triton")
    from pointgrad.ops.sparse import conv_kernels, weight_kernels

    monkeypatch.setattr(torch.version, "hip", hip)
    for module in (conv_kernels, weight_kernels):
        monkeypatch.setattr(module, "shared_memory", lambda device: available << 10)
    sizes, dtypes = (1, 16, 48, 64, 96, 128, 192, 256, 512), (torch.float16, torch.float32, torch.float64)
    for inputs, outputs, dtype, tf32 in itertools.product(sizes, sizes, dtypes, (False, True)):
        tf32 = tf32 and dtype == torch.float32
        monkeypatch.setattr(conv_kernels, "precision_of", lambda dtype, tf32=tf32: "tf32" if tf32 else "ieee")
        features = torch.empty(0, dtype=dtype)
        tile = conv_kernels._tile(inputs, outputs, features)
        weight = weight_kernels._weight_tile(inputs, outputs, features)
        entries = tile["BLOCK_K"] * (tile["BLOCK_M"] + tile["BLOCK_N"]) * (tile["num_stages"] - 1)
        weight_entries = weight["BLOCK_R"] * (weight["BLOCK_I"] + weight["BLOCK_O"]) * (weight["num_stages"] - 1)
        assert max(entries, weight_entries) * dtype.itemsize <= available * 1024

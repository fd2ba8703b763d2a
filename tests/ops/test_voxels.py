"""Properties specific to voxelize and unique_voxels; test_contract.py tests the rest."""

import numpy as np
import pytest
import torch

import pointgrad
from pointgrad.ops.voxels import reference


def by_numpy(points, size):
    """Coordinates in lexicographic order, inverse and count of one cloud."""
    quotient = points.numpy() / np.asarray(size, dtype=points.numpy().dtype)
    coordinates, inverse, count = np.unique(
        np.floor(quotient).astype(np.int64), axis=0, return_inverse=True, return_counts=True
    )
    return torch.from_numpy(coordinates), torch.from_numpy(inverse.reshape(-1)), torch.from_numpy(count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [0.3, (0.05, 1.0, 30.0), 0.02, 1e-6, 1e-17])
def test_equals_numpy_unique(size, dtype, place):
    """A GPU uses a bitmap of several blocks, a small one, and sorts keys of 32, 64 and more bits."""
    points = torch.randn(700, 3, dtype=dtype) * 3
    coordinates, inverse, count = by_numpy(points, size)
    voxels = pointgrad.voxelize(points.to(place.device), size)
    assert torch.equal(voxels.coordinates.cpu(), coordinates)
    assert torch.equal(voxels.inverse.cpu(), inverse)
    assert torch.equal(voxels.count.cpu(), count)
    assert voxels.offsets.tolist() == [0, len(coordinates)]
    assert voxels.lengths is None
    edge = torch.tensor([size] * 3 if isinstance(size, float) else size, dtype=dtype)
    torch.testing.assert_close(voxels.centers.cpu(), (coordinates.to(dtype) + 0.5) * edge)


def test_packed_clouds_one_after_another(place):
    points = torch.randn(90, 3)
    offsets = torch.tensor([0, 40, 40, 90])
    voxels = pointgrad.voxelize(points.to(place.device), 0.6, offsets=offsets.to(place.device))
    numbers = voxels.offsets.tolist()
    assert numbers[0] == 0
    for cloud in range(3):
        begin, end = offsets[cloud], offsets[cloud + 1]
        own = slice(numbers[cloud], numbers[cloud + 1])
        coordinates, inverse, count = by_numpy(points[begin:end], 0.6)
        assert torch.equal(voxels.coordinates[own].cpu(), coordinates)
        assert torch.equal(voxels.count[own].cpu(), count)
        assert torch.equal(voxels.inverse[begin:end].cpu(), inverse + numbers[cloud])
    assert numbers[-1] == len(voxels.count)


def test_points_of_no_cloud_are_in_no_voxel():
    """On a GPU offsets are not checked; the reference then ignores such points."""
    inverse, coordinates, count, sizes = reference.voxel_groups(torch.rand(4, 3), torch.tensor([1]), 1, 1, 1)
    assert inverse.tolist() == [-1] * 4
    assert len(coordinates) == len(count) == 0
    assert sizes.tolist() == [0]


def test_padded_clouds(place):
    points = torch.randn(3, 30, 3)
    lengths = [30, 0, 11]
    voxels = pointgrad.voxelize(points.to(place.device), 1.5, lengths=torch.tensor(lengths, device=place.device))
    assert voxels.offsets is None
    for cloud, length in enumerate(lengths):
        coordinates, inverse, count = by_numpy(points[cloud, :length], 1.5)
        occupied = len(coordinates)
        assert voxels.lengths[cloud] == occupied
        assert torch.equal(voxels.inverse[cloud].cpu(), torch.cat([inverse, inverse.new_full((30 - length,), -1)]))
        assert torch.equal(voxels.coordinates[cloud, :occupied].cpu(), coordinates)
        assert torch.equal(voxels.count[cloud, :occupied].cpu(), count)
        for beyond in (voxels.coordinates, voxels.count, voxels.centers):
            assert not beyond[cloud, occupied:].any()


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_means_of_voxels(layout, place):
    """With scatter: the mean of the points of a voxel lies in it, and has the gradient 1 / count."""
    points = torch.randn(2, 40, 3, device=place.device, dtype=torch.float64)
    points = (points if layout == "padded" else points.reshape(80, 3)).requires_grad_()
    offsets = torch.tensor([0, 40, 80], device=place.device) if layout == "packed" else None
    voxels = pointgrad.voxelize(points, 1.0, offsets=offsets)
    size = voxels.count.shape[-1]
    means = pointgrad.scatter(points, voxels.inverse, size, "mean")
    used = voxels.count > 0
    assert torch.equal(means.floor().long()[used], voxels.coordinates[used])
    assert torch.equal(pointgrad.histogram(voxels.inverse, size), voxels.count)
    (grad,) = torch.autograd.grad(means.sum(), points)
    share = 1 / voxels.count.double()
    share = share[voxels.inverse] if layout == "packed" else share.gather(1, voxels.inverse)
    torch.testing.assert_close(grad, share.unsqueeze(-1).expand_as(grad))
    assert not voxels.centers.requires_grad


def test_borders_belong_to_the_upper_voxel(place):
    points = torch.tensor([[-1.0, 0, 0], [-0.5, 0, 0], [-0.0, 0, 0], [0.0, 0, 0], [1.0, 0, 0]], device=place.device)
    voxels = pointgrad.voxelize(points, 1.0)
    assert voxels.coordinates[:, 0].tolist() == [-1, 0, 1]
    assert voxels.inverse.tolist() == [0, 0, 1, 1, 2]


def test_denormal_quotients(place):
    """Numbers just below zero are in voxel -1, also where their quotient is denormal."""
    for dtype in (torch.float32, torch.float64):
        tiny = torch.finfo(dtype).tiny
        points = torch.zeros(4, 3, dtype=dtype, device=place.device)
        points[:, 1] = torch.tensor([-tiny, tiny, -2 * tiny, -0.0], dtype=dtype)
        voxels = pointgrad.voxelize(points, 8.0)
        assert voxels.inverse.tolist() == [0, 1, 0, 1]
        assert voxels.coordinates.tolist() == [[0, -1, 0], [0, 0, 0]]


def test_points_without_a_voxel(place):
    """NaN, infinity, and coordinates beyond 64 bits; the largest that fit are exact."""
    x = [float("nan"), float("inf"), -float("inf"), 1e30, 2.0**63, -(2.0**63), 2.0**62, 0.0, 3e38]
    points = torch.zeros(len(x), 3, dtype=torch.float64)
    points[:, 0] = torch.tensor(x, dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        voxels = pointgrad.voxelize(points.to(place.device, dtype), 1.0)
        assert voxels.inverse.tolist() == [-1, -1, -1, -1, -1, 0, 2, 1, -1]
        assert voxels.coordinates[:, 0].tolist() == [-(2**63), 0, 2**62]
        assert voxels.count.tolist() == [1, 1, 1]
    tiny = pointgrad.voxelize(torch.full((2, 3), 3e38, device=place.device), 1e-30)
    assert tiny.inverse.tolist() == [-1, -1]
    assert tiny.count.shape == (0,)


def test_the_grid_of_voxel_sampling(place):
    points = torch.randn(300, 3, device=place.device)
    kept = pointgrad.voxel_sampling(points, 0.7).index
    inverse = pointgrad.voxelize(points, 0.7).inverse
    assert inverse[kept].sort().values.tolist() == list(range(len(kept)))


def test_on_a_real_scan(scan):
    coordinates, inverse, count = by_numpy(scan, 0.1)
    voxels = pointgrad.voxelize(scan, 0.1)
    assert torch.equal(voxels.coordinates, coordinates)
    assert torch.equal(voxels.inverse, inverse)
    assert torch.equal(voxels.count, count)


def by_loop(rows, valid):
    """Distinct rows in order, the number of each row's voxel and counts, from Python's own sets and order of tuples."""
    keys = [tuple(row) if ok else None for row, ok in zip(rows.tolist(), valid.tolist(), strict=True)]
    distinct = sorted(set(keys) - {None})
    number = {None: -1, **{key: place for place, key in enumerate(distinct)}}
    return distinct, [number[key] for key in keys], [keys.count(key) for key in distinct]


@pytest.mark.parametrize("extent", [2, 3000, 2**31, 2**62], ids=["few", "int16", "int32", "int64"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_unique_voxels_equal_a_loop(dtype, extent, place):
    """Packed and padded clouds with rows that are not valid, an empty cloud and the least and greatest numbers."""
    limits = torch.iinfo(dtype)
    sizes, most = [23, 0, 17], 23
    rows = torch.randint(-extent, extent, (3, most, 3)).clamp(limits.min, limits.max).to(dtype)
    rows[0, 5], rows[2, 3], rows[2, 9] = limits.max, limits.min, rows[2, 3]
    valid = torch.rand(3, most) < 0.8
    lengths = torch.tensor(sizes)
    padded = pointgrad.unique_voxels(
        rows.to(place.device), lengths=lengths.to(place.device), valid=valid.to(place.device)
    )
    inside = torch.arange(most) < lengths[:, None]
    offsets = torch.tensor([0, 23, 23, 40])
    packed = pointgrad.unique_voxels(
        rows[inside].to(place.device), offsets=offsets.to(place.device), valid=valid[inside].to(place.device)
    )
    assert padded.offsets is None
    assert packed.lengths is None
    begin = 0
    for cloud, size in enumerate(sizes):
        coordinates, inverse, count = by_loop(rows[cloud, :size], valid[cloud, :size])
        end = begin + len(coordinates)
        assert padded.lengths[cloud] == len(coordinates)
        assert padded.inverse[cloud].tolist() == inverse + [-1] * (most - size)
        assert padded.coordinates[cloud].tolist() == [*map(list, coordinates), *[[0] * 3] * (most - len(coordinates))]
        assert padded.count[cloud].tolist() == count + [0] * (most - len(count))
        assert packed.offsets[cloud : cloud + 2].tolist() == [begin, end]
        assert packed.coordinates[begin:end].tolist() == [*map(list, coordinates)]
        assert packed.count[begin:end].tolist() == count
        expected = [number + begin if number >= 0 else -1 for number in inverse]
        assert packed.inverse[offsets[cloud] : offsets[cloud + 1]].tolist() == expected
        begin = end
    assert len(packed.count) == begin


@pytest.mark.parametrize("reduce", ["mean", "sum", "max", "first"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_features_equal_a_loop(dtype, reduce, place):
    """Padded clouds with points in no voxel; empty voxels are zero; features have their own dtype."""
    points, features = torch.randn(2, 25, 3), torch.randn(2, 25, 4).to(dtype)
    points[0, 3, 1] = torch.nan
    lengths = torch.tensor([25, 12])
    source = features.to(place.device).requires_grad_()
    voxels = pointgrad.voxelize(
        points.to(place.device), 1.3, features=source, reduce=reduce, lengths=lengths.to(place.device)
    )
    by_name = {
        "mean": lambda v: v.mean(0),
        "sum": lambda v: v.sum(0),
        "max": lambda v: v.amax(0),
        "first": lambda v: v[0],
    }
    expected, grad = torch.zeros(2, 25, 4, dtype=torch.float64), torch.zeros(2, 25, 4, dtype=torch.float64)
    for cloud in range(2):
        for number in range(int(voxels.lengths[cloud])):
            rows = (voxels.inverse[cloud].cpu() == number).nonzero().flatten()
            values = features[cloud, rows].double().requires_grad_()
            result = by_name[reduce](values)
            expected[cloud, number] = result.detach()
            (grad[cloud, rows],) = torch.autograd.grad(result.sum(), values)
    assert voxels.features.dtype == dtype
    torch.testing.assert_close(voxels.features.detach().cpu(), expected.to(dtype))
    (received,) = torch.autograd.grad(voxels.features.sum(), source)
    torch.testing.assert_close(received.cpu(), grad.to(dtype))
    assert pointgrad.voxelize(points.to(place.device), 1.3).features is None

"""Batches of clouds and volumes of pointgrad.compat.pytorch3d."""

import copy
import pickle

import pytest
import torch
from torch.nn import functional

from pointgrad.compat.pytorch3d.common import get_device, make_device
from pointgrad.compat.pytorch3d.structures import (
    Pointclouds,
    Volumes,
    join_pointclouds_as_batch,
    join_pointclouds_as_scene,
    utils,
)
from pointgrad.compat.pytorch3d.structures.volumes import VolumeLocator

SIZES = [4, 0, 3, 1, 0]


def rows(width, device="cpu", sizes=SIZES, **options):
    return [torch.randn(size, width, device=device, **options) for size in sizes]


def clouds(device="cpu", sizes=SIZES, **options):
    return Pointclouds(*(rows(width, device, sizes, **options) for width in (3, 3, 5)))


def padded(items, width):
    """Rows filled with zeros, by a loop."""
    result = torch.zeros(len(items), max(map(len, items)), width, dtype=items[0].dtype)
    for n, item in enumerate(items):
        for p, row in enumerate(item):
            result[n, p] = row
    return result


class TestLayouts:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
    def test_list_padded_packed(self, dtype, device):
        given = {
            name: rows(width, device, dtype=dtype) for name, width in (("points", 3), ("normals", 3), ("features", 5))
        }
        batch = Pointclouds(**given)
        for name, items in given.items():
            expected = padded(items, items[0].shape[1])
            assert getattr(batch, f"{name}_list")() == items  # the same objects
            assert torch.equal(getattr(batch, f"{name}_padded")().cpu(), expected)
            assert torch.equal(getattr(batch, f"{name}_packed")(), torch.cat(items))
        assert batch.num_points_per_cloud().tolist() == SIZES
        assert batch.cloud_to_packed_first_idx().tolist() == [0, 4, 4, 7, 8]
        assert batch.packed_to_cloud_idx().tolist() == [0] * 4 + [2] * 3 + [3]
        assert batch.valid.tolist() == [True, False, True, True, False]
        assert batch.device == batch.points_packed().device
        assert not batch.equisized
        flat = batch.features_padded().flatten(0, 1)
        assert torch.equal(flat[batch.padded_to_packed_idx()], batch.features_packed())
        assert (batch._N, batch._P, batch._C) == (5, 4, 5)

    def test_padded_tensors(self, device):
        points, features = torch.rand(2, 4, 3, device=device), torch.rand(2, 4, 1, device=device)
        batch = Pointclouds(points, features=features)
        assert batch.points_padded() is points
        assert batch.equisized
        assert batch.normals_list() is batch.normals_padded() is batch.normals_packed() is None
        assert torch.equal(batch.points_packed(), points.flatten(0, 1))
        assert torch.equal(batch.features_list()[1], features[1])

    def test_gradients_reach_the_given_tensors(self, device):
        given = rows(3, device, requires_grad=True)
        batch = Pointclouds(given)
        weights = torch.rand(5, 4, 3, device=device)
        (batch.points_padded() * weights).sum().backward()
        for n, item in enumerate(given):
            assert torch.equal(item.grad, weights[n, : len(item)])
        points = torch.rand(2, 4, 3, device=device, requires_grad=True)
        Pointclouds(points).points_packed().sum().backward()
        assert torch.equal(points.grad, torch.ones_like(points))

    def test_empty_clouds(self, device):
        """Empty clouds may have tensors of any shape, or None for normals and features."""
        none = torch.tensor([], device=device)
        batch = Pointclouds(
            [none, torch.ones(2, 3, device=device)],
            [None, torch.ones(2, 3, device=device)],
            [none, torch.ones(2, 4, device=device)],
        )
        assert [tuple(item.shape) for item in batch.points_list()] == [(0, 3), (2, 3)]
        assert batch.normals_padded().shape == (2, 2, 3)
        assert batch.features_packed().shape == (2, 4)
        nothing = Pointclouds([])
        assert nothing.isempty()
        assert len(nothing) == 0
        assert nothing.points_padded().shape == (0, 0, 3)
        assert nothing.points_packed().shape == (0, 3)
        assert nothing.points_list() == []
        assert nothing.padded_to_packed_idx().shape == (0,)
        hollow = Pointclouds([none, none])
        assert hollow.isempty()
        assert hollow.points_packed().shape == (0, 3)
        assert hollow.points_padded().shape == (2, 0, 3)
        assert hollow.clone().offset_(torch.ones(3, device=device)).isempty()


class TestOperations:
    @pytest.mark.parametrize(
        "index",
        [2, -1, [3, 0], slice(1, 4), torch.tensor([4, 2]), torch.tensor([True, False, True, False, False])],
        ids=str,
    )
    def test_indexing(self, index):
        batch = clouds()
        numbers = torch.arange(5)[index if not isinstance(index, int) else [index]].tolist()
        selected = batch[index]
        assert selected.points_list() == [batch.points_list()[n] for n in numbers]
        assert selected.normals_list() == [batch.normals_list()[n] for n in numbers]
        assert selected.features_list() == [batch.features_list()[n] for n in numbers]

    def test_invalid_index(self):
        for index in (1.5, "a", torch.tensor([0.0]), torch.tensor(1), torch.tensor([True])):
            with pytest.raises(IndexError):
                clouds()[index]

    @pytest.mark.parametrize("computed", [False, True])
    def test_offset_and_scale(self, computed, device):
        """The given tensors do not change; the original overwrites a padded tensor."""
        points = torch.rand(2, 4, 3, device=device)
        before = points.clone()
        batch = Pointclouds(points)
        if computed:
            batch.points_packed(), batch.points_list()
        offsets = torch.rand(8, 3, device=device)
        moved = batch.offset(offsets)
        torch.testing.assert_close(moved.points_padded(), before + offsets.reshape(2, 4, 3))
        torch.testing.assert_close(moved.points_list()[1], before[1] + offsets[4:])
        assert torch.equal(batch.points_padded(), before)
        assert batch.offset_(offsets[0]) is batch
        assert torch.equal(points, before)
        torch.testing.assert_close(batch.points_packed(), before.flatten(0, 1) + offsets[0])
        factors = torch.tensor([2.0, -3.0])
        scaled = Pointclouds(points).scale(factors)
        torch.testing.assert_close(scaled.points_padded(), before * factors[:, None, None].to(device))
        torch.testing.assert_close(Pointclouds(points).scale_(0.5).points_padded(), before / 2)

    def test_copies(self, device):
        batch = clouds(device, requires_grad=True)
        batch.points_packed(), batch.features_padded()
        copied = batch.clone()
        for name in ("points_list", "points_padded", "points_packed", "features_padded"):
            pair = getattr(batch, name)(), getattr(copied, name)()
            for a, b in zip(*pair, strict=True):
                assert torch.equal(a, b)
                assert a.numel() == 0 or a.data_ptr() != b.data_ptr()
        detached = batch.detach()
        assert not any(item.requires_grad for item in [*detached.points_list(), detached.points_packed()])
        assert detached.points_list()[0].data_ptr() == batch.points_list()[0].data_ptr()
        assert batch.to(device) is batch
        moved = batch.to("meta")
        assert (
            moved.device == moved.points_padded().device == moved.num_points_per_cloud().device == torch.device("meta")
        )
        assert batch.device.type == torch.device(device).type
        again = pickle.loads(pickle.dumps(detached))
        assert torch.equal(again.points_packed(), batch.points_packed())
        assert torch.equal(copy.deepcopy(detached).features_padded(), batch.features_padded())

    def test_subsample(self, device):
        batch = clouds(device)
        assert batch.subsample(4) is batch
        few = batch.subsample([2, 5, 1, 1, 0])
        assert few.num_points_per_cloud().tolist() == [2, 0, 1, 1, 0]
        for n, (points, features) in enumerate(zip(few.points_list(), few.features_list(), strict=True)):
            for point, feature in zip(points, features, strict=True):
                match = (batch.points_list()[n] == point).all(1)
                assert match.sum() == 1
                assert torch.equal(batch.features_list()[n][match][0], feature)
        torch.manual_seed(0)
        drawn = {
            int(Pointclouds([torch.arange(12.0).reshape(4, 3)]).subsample(1).points_packed()[0, 0]) for _ in range(50)
        }
        assert drawn == {0, 3, 6, 9}

    def test_split_extend_and_join(self):
        batch = clouds()
        parts = batch.split([2, 3])
        assert [len(part) for part in parts] == [2, 3]
        joined = join_pointclouds_as_batch(parts)
        assert joined.points_list() == batch.points_list()
        assert joined.features_list() == batch.features_list()
        repeated = batch.extend(2)
        assert repeated.num_points_per_cloud().tolist() == [4, 4, 0, 0, 3, 3, 1, 1, 0, 0]
        assert torch.equal(repeated.normals_list()[5], batch.normals_list()[2])
        scene = join_pointclouds_as_scene([batch, batch])
        assert len(scene) == 1
        assert torch.equal(scene.points_packed(), batch.points_packed().repeat(2, 1))
        assert torch.equal(scene.features_packed(), batch.features_packed().repeat(2, 1))
        assert join_pointclouds_as_scene(scene) is scene

    def test_update_padded(self):
        batch = clouds()
        points, features = torch.rand(5, 4, 3), torch.rand(5, 4, 5)
        updated = batch.update_padded(points, new_features_padded=features)
        assert updated.points_padded() is points
        assert updated.num_points_per_cloud().tolist() == SIZES
        assert torch.equal(updated.features_list()[2], features[2, :3])
        assert updated.normals_padded() is batch.normals_padded()
        assert torch.equal(updated.points_packed(), torch.cat([points[n, :size] for n, size in enumerate(SIZES)]))

    def test_boxes(self):
        batch = clouds(sizes=[4, 3])
        boxes = batch.get_bounding_boxes()
        for n, points in enumerate(batch.points_list()):
            assert boxes[n].tolist() == [[min(axis), max(axis)] for axis in points.T.tolist()]
        inside = batch.inside_box(boxes.mT)
        assert inside.all()
        box = torch.tensor([[-0.5, -0.5, -0.5], [0.5, 1.0, 2.0]])
        expected = [
            all(low <= x <= high for low, x, high in zip(box[0], p, box[1], strict=True)) for p in batch.points_packed()
        ]
        assert batch.inside_box(box).tolist() == batch.inside_box(box[None]).tolist() == expected

    def test_get_cloud(self):
        batch = clouds()
        points, normals, features = batch.get_cloud(2)
        assert (points is batch.points_list()[2], normals.shape, features.shape) == (True, (3, 3), (3, 5))
        assert Pointclouds(torch.rand(1, 2, 3)).get_cloud(0)[1:] == (None, None)

    def test_subclass(self):
        class Named(Pointclouds):
            pass

        batch = Named(torch.rand(2, 4, 3))
        for result in (
            batch[0],
            batch.clone(),
            batch.extend(2),
            batch.subsample(2),
            batch.update_padded(torch.rand(2, 4, 3)),
        ):
            assert type(result) is Named


class TestConversions:
    def test_padding(self, device):
        items = [torch.rand(2, 3, device=device), torch.rand(0, device=device), torch.rand(1, 4, device=device)]
        filled = utils.list_to_padded(items, pad_value=-1)
        assert filled.shape == (3, 2, 4)
        for n, item in enumerate(items):
            for i in range(2):
                for j in range(4):
                    given = item.dim() == 2 and i < item.shape[0] and j < item.shape[1]
                    assert filled[n, i, j] == (item[i, j] if given else -1)
        assert utils.list_to_padded(items, (5, 6)).shape == (3, 5, 6)
        same = [torch.rand(2, device=device)] * 2
        assert torch.equal(utils.list_to_padded(same, equisized=True), torch.stack(same))
        back = utils.padded_to_list(filled, [[2, 3], [0, 0], [1, 4]])
        assert all(torch.equal(a, b) for a, b in zip(back[::2], items[::2], strict=True))
        assert [len(item) for item in utils.padded_to_list(filled, [2, 0, 1])] == [2, 0, 1]
        assert torch.equal(utils.padded_to_list(filled)[2], filled[2])

    def test_padding_is_differentiable(self):
        items = [torch.rand(2, 3, requires_grad=True), torch.rand(1, 2, requires_grad=True)]
        weights = torch.rand(2, 2, 3)
        (utils.list_to_padded(items) * weights).sum().backward()
        assert torch.equal(items[1].grad, weights[1, :1, :2])

    def test_packing(self, device):
        items = rows(2, device)
        packed, count, first, number = utils.list_to_packed(items)
        assert torch.equal(packed, torch.cat(items))
        assert (count.tolist(), first.tolist()) == (SIZES, [0, 4, 4, 7, 8])
        assert number.tolist() == [0] * 4 + [2] * 3 + [3]
        assert all(torch.equal(a, b) for a, b in zip(utils.packed_to_list(packed, SIZES), items, strict=True))
        filled = utils.list_to_padded(items, (4, 2))
        assert torch.equal(utils.padded_to_packed(filled, SIZES), packed)
        assert torch.equal(utils.padded_to_packed(filled, pad_value=0), packed)
        assert torch.equal(utils.padded_to_packed(filled), filled.flatten(0, 1))

    def test_devices(self):
        assert make_device("cpu") == make_device(torch.device("cpu")) == get_device(None) == torch.device("cpu")
        assert get_device(torch.zeros(1, device="meta")) == torch.device("meta")
        assert get_device(torch.zeros(1, device="meta"), "cpu") == torch.device("cpu")


class TestVolumes:
    @pytest.mark.parametrize("align_corners", [True, False])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    def test_sampling_at_the_grid_gives_the_volume(self, align_corners, dtype, device):
        densities = torch.rand(2, 1, 3, 4, 5, dtype=dtype, device=device)
        volumes = Volumes(densities, align_corners=align_corners)
        grid = volumes.get_coord_grid(world_coordinates=False)
        assert grid.dtype == dtype
        torch.testing.assert_close(functional.grid_sample(densities, grid, align_corners=align_corners), densities)

    def test_world_coordinates(self, device):
        shift, edges = torch.randn(2, 3), torch.rand(2, 3) + 0.5
        volumes = Volumes(torch.rand(2, 1, 3, 4, 5, device=device), voxel_size=edges, volume_translation=shift)
        grid = volumes.get_coord_grid().cpu()
        for n, z, y, x in ((0, 0, 0, 0), (1, 2, 3, 4), (0, 1, 2, 3)):
            center = torch.tensor([x - 2.0, y - 1.5, z - 1.0])
            torch.testing.assert_close(grid[n, z, y, x], center * edges[n] - shift[n])
        local = volumes.get_coord_grid(world_coordinates=False)
        torch.testing.assert_close(volumes.world_to_local_coords(volumes.get_coord_grid()), local, atol=1e-6, rtol=1e-5)

    def test_different_sizes(self, device):
        items = [torch.rand(2, 3, 4, 5, device=device), torch.rand(2, 2, 2, 2, device=device)]
        features = [torch.rand(1, *item.shape[1:], device=device) for item in items]
        volumes = Volumes(items, features, align_corners=False)
        assert volumes.get_grid_sizes().tolist() == [[3, 4, 5], [2, 2, 2]]
        assert all(torch.equal(a, b) for a, b in zip(volumes.densities_list(), items, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(volumes.features_list(), features, strict=True))
        grid = volumes.get_coord_grid(world_coordinates=False)[1, :2, :2, :2]
        torch.testing.assert_close(
            functional.grid_sample(items[1][None], grid[None], align_corners=False), items[1][None]
        )
        second = volumes[1]
        assert second.get_grid_sizes().tolist() == [[2, 2, 2]]
        assert not second.get_align_corners()
        updated = volumes.update_padded(volumes.densities() + 1)
        assert updated.features() is None
        assert torch.equal(updated.densities_list()[1], items[1] + 1)
        for index in ([1, 0], slice(0, 1), torch.tensor([True, False])):
            assert torch.equal(volumes[index].densities(), volumes.densities()[index])

    def test_copies(self, device):
        volumes = Volumes(torch.rand(1, 1, 2, 2, 2, device=device), torch.rand(1, 3, 2, 2, 2, device=device))
        assert volumes.to(device) is volumes
        copied = volumes.clone()
        copied.densities().zero_()
        assert volumes.densities().any()
        moved = volumes.to("meta")
        assert moved.features().device == moved.get_grid_sizes().device == moved.locator.device == torch.device("meta")
        for index in (1.5, torch.tensor([0.0])):
            with pytest.raises(IndexError):
                volumes[index]


P, V, CPU = torch.rand(2, 4, 3), torch.rand(2, 1, 3, 3, 3), torch.device("cpu")
WIDE = Pointclouds(P, features=P.repeat(1, 1, 2))
BAD = [
    (lambda: Pointclouds(P[0]), r"points must be \(N, P, 3\), got \(4, 3\)"),
    (lambda: Pointclouds("abc"), r"points must be a list or a tensor \(N, P, 3\), got str"),
    (lambda: Pointclouds([[1, 2, 3]]), "points must be a list of tensors, got list"),
    (lambda: Pointclouds([P[0, :, :2]]), r"points must be a list of tensors \(P, 3\) .* got \(4, 2\)"),
    (lambda: Pointclouds([P[0], P[1].to("meta")]), "points must all be on the same device, got cpu and meta"),
    (lambda: Pointclouds(P, P[:1]), r"normals must be \(N, P, C\) with \(N, P\) = \(2, 4\), got \(1, 4, 3\)"),
    (lambda: Pointclouds(P, P[..., :2]), "normals must have 3 channels, got 2"),
    (lambda: Pointclouds(P, features="a"), r"features must be a list or a tensor \(N, P, C\), got str"),
    (lambda: Pointclouds(P, features=P.to("meta")), "features must be on the same device as points, cpu, got meta"),
    (lambda: Pointclouds(P, features=[P[0]]), "features must be a list of 2 tensors, like points, got 1"),
    (lambda: Pointclouds(P, features=[P[0], P[1, :2]]), r"features must have .* \[4, 4\], got \[4, 2\]"),
    (lambda: Pointclouds(P, features=[P[0], P[1, :, :2]]), "features must be tensors .* same number of channels C"),
    (lambda: Pointclouds(P, features=[P[0], None]), "features must be tensors .* same number of channels C"),
    (lambda: clouds().get_cloud(5), r"index must be an int in \[0, 5\), got 5"),
    (lambda: clouds().split([1, 0.5]), r"split_sizes must be a list of ints, got \[1, 0.5\]"),
    (lambda: clouds().offset(torch.ones(2)), r"offsets_packed must be \(3,\) or \(8, 3\), got \(2,\)"),
    (lambda: clouds().scale(torch.ones(2)), r"scale must be a number or \(N,\) = \(5,\), got \(2,\)"),
    (lambda: clouds().subsample([1]), "max_points must be an int or one int for each of 5 clouds, got 1"),
    (lambda: clouds().extend(0), "N must be an int of at least 1, got 0"),
    (lambda: clouds().get_bounding_boxes(), "requires clouds with at least one point"),
    (lambda: clouds().update_padded(P), r"new_points_padded must be \(N, P, C\) with \(N, P\) = \(5, 4\)"),
    (lambda: clouds().inside_box(torch.ones(3)), r"Input box must be of shape \(2, 3\) or \(N, 2, 3\), got \(3,\)"),
    (lambda: clouds().inside_box(torch.ones(2, 2, 3)), "Input box dimension is incompatible with N = 5 clouds, got 2"),
    (lambda: clouds().inside_box(torch.tensor([[1.0] * 3, [0.0] * 3])), "Input box is invalid"),
    (lambda: join_pointclouds_as_batch(clouds()), "Wrong first argument: .* got Pointclouds"),
    (lambda: join_pointclouds_as_batch([]), "Wrong first argument: .* got list"),
    (lambda: join_pointclouds_as_batch([clouds(), Pointclouds(P)]), "normals must be given .* got some set to None"),
    (lambda: join_pointclouds_as_batch([Pointclouds(P), Pointclouds(P.to("meta"))]), "same device, got cpu, meta"),
    (lambda: join_pointclouds_as_batch([Pointclouds(P, features=P), WIDE]), "same number of features, got .3, 6."),
    (lambda: utils.list_to_padded([1]), "x must be a list of tensors, got other objects"),
    (lambda: utils.list_to_padded([]), "x must be a list of at least one tensor, got an empty list"),
    (lambda: utils.list_to_padded([P, P[0]]), r"x must be tensors with the same number of dimensions, got \[3, 2\]"),
    (lambda: utils.list_to_padded([P], (4,)), r"Pad size must contain a number for each of 3 dimensions, got \(4,\)"),
    (lambda: utils.list_to_padded([P], (1, 4, 3)), r"Pad size must be at least the size .* got \(1, 4, 3\)"),
    (lambda: utils.list_to_packed([]), "x must be a list of at least one tensor, got an empty list"),
    (lambda: utils.padded_to_list(P, [1]), "split_size must be of the same length .* N = 2, got 1"),
    (lambda: utils.padded_to_packed(P[0]), r"Supports only x of shape \(N, M, K\), got \(4, 3\)"),
    (lambda: utils.padded_to_packed(P, [1, 2], 0), "Only one of split_size and pad_value can be given, got both"),
    (lambda: utils.padded_to_packed(P, [1, [2]]), "split_size must be a 1-dimensional list of ints"),
    (lambda: Volumes(P), r"densities must be \(N, C, D, H, W\), got \(2, 4, 3\)"),
    (lambda: Volumes([V[0], V[0, 0]]), r"densities must be tensors \(C, D, H, W\) with the same number of channels C"),
    (lambda: Volumes("a"), r"densities must be a tensor \(N, C, D, H, W\) or a list of tensors, got str"),
    (lambda: Volumes(V, V[..., :2]), r"features must have grids of sizes \[\[3, 3, 3\], \[3, 3, 3\]\]"),
    (lambda: Volumes(V, V.to("meta")), "features must be on the device of the volumes, cpu, got meta"),
    (lambda: Volumes(V, voxel_size=[1, 2]), r"voxel_size must be a number, .* with N = 2, got \[1, 2\]"),
    (lambda: Volumes(V, volume_translation=1.0), r"volume_translation must be three numbers or \(N, 3\) with N = 2"),
    (lambda: VolumeLocator(2, [(1, 2, 3)], CPU), r"grid_sizes must be \(N, 3\) = \(2, 3\), got \(1, 3\)"),
    (lambda: VolumeLocator(2, 3, CPU), r"grid_sizes must be \(D, H, W\), .* got int"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()

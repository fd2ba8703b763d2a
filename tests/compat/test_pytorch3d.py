"""Sampling, layouts, signatures and errors of pointgrad.compat.pytorch3d."""

import doctest
import inspect
import pickle
import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import pointgrad.compat
from pointgrad.compat import pytorch3d
from pointgrad.compat.pytorch3d import ops, transforms
from pointgrad.compat.pytorch3d.loss import chamfer_distance
from pointgrad.compat.pytorch3d.ops import (
    ball_query,
    knn_gather,
    knn_points,
    packed_to_padded,
    padded_to_packed,
    sample_farthest_points,
)
from pointgrad.compat.pytorch3d.ops.utils import masked_gather
from pointgrad.compat.pytorch3d.structures import utils as structures
from tests.compat.pytorch3d_loops import DTYPES, distances


def expected_farthest(points, length, k, start=0):
    """Farthest point sampling of one cloud by definition."""
    picked = [start][: min(k, length)]
    while len(picked) < min(k, length):
        nearest = distances(points[:length], points[picked], 2).min(dim=1).values
        nearest[picked] = -1
        picked.append(int(nearest.argmax()))
    return picked


class TestSampleFarthestPoints:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("k", [1, 7, 40, [3, 0, 30], torch.tensor([12, 1, 2])], ids=str)
    def test_samples(self, dtype, k, device):
        points, sizes = torch.rand(3, 25, 3).to(dtype), [25, 6, 13]
        picked, idx = sample_farthest_points(points.to(device), torch.tensor(sizes, device=device), K=k)
        counts = k.tolist() if isinstance(k, torch.Tensor) else [k] * 3 if isinstance(k, int) else k
        assert idx.shape == (3, max(counts))
        assert idx.dtype == torch.int64
        assert picked.dtype == dtype
        for n in range(3):
            expected = expected_farthest(points[n], sizes[n], counts[n])
            assert idx[n].tolist() == expected + [-1] * (max(counts) - len(expected))
            assert torch.equal(picked[n, : len(expected)].cpu(), points[n, expected])
            assert not picked[n, len(expected) :].any()

    @pytest.mark.parametrize("size", range(1, 9))
    def test_clouds_of_fewer_than_8_points(self, size, device):
        """The original launches the wrong number of threads on a GPU."""
        points = torch.rand(2, size, 3)
        _, idx = sample_farthest_points(points.to(device), K=8)
        for n in range(2):
            assert idx[n].tolist() == expected_farthest(points[n], size, 8) + [-1] * (8 - size)

    def test_float64_precision_is_kept(self, device):
        """In float32, which the original uses, the last two points would be equally far."""
        points = torch.tensor([[0.0], [1.0], [1.0 + 1e-12]], dtype=torch.float64)[None]
        picked, idx = sample_farthest_points(points.to(device), K=2)
        assert idx.tolist() == [[0, 2]]
        assert picked.dtype == torch.float64

    @pytest.mark.parametrize("dims", [1, 2, 12])
    def test_any_dimension(self, dims, device):
        points = torch.rand(1, 20, dims)
        _, idx = sample_farthest_points(points.to(device), K=6)
        assert idx[0].tolist() == expected_farthest(points[0], 20, 6)

    def test_random_start(self, device):
        points, lengths = torch.rand(64, 9, 3), torch.tensor([9, 4] * 32)
        starts = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            _, idx = sample_farthest_points(points.to(device), lengths.to(device), 3, random_start_point=True)
            starts.append(idx[:, 0].cpu())
            for n in range(4):
                assert idx[n].tolist() == expected_farthest(points[n], int(lengths[n]), 3, int(idx[n, 0]))
        assert torch.equal(starts[0], starts[1])
        assert not torch.equal(starts[0], starts[2])
        assert (starts[0] < lengths).all()

    def test_gradient(self, device):
        points = torch.rand(1, 9, 3, device=device, requires_grad=True)
        picked, idx = sample_farthest_points(points, K=3)
        assert not idx.requires_grad
        picked.sum().backward()
        expected = torch.zeros(9)
        expected[idx[0].cpu()] = 1
        assert torch.equal(points.grad[0, :, 0].cpu(), expected)

    def test_default_number_of_samples(self):
        assert sample_farthest_points(torch.rand(1, 60, 3))[1].shape == (1, 50)


class TestPackedToPadded:
    @pytest.mark.parametrize("rest", [(), (3,), (1,), (2, 4), (0,)], ids=str)
    @pytest.mark.parametrize("dtype", [*DTYPES, torch.int64], ids=str)
    def test_round_trip(self, rest, dtype, device):
        sizes = [4, 0, 3, 1, 0]
        packed = torch.randint(1, 9, (8, *rest)).to(dtype)
        first = torch.tensor([0, 4, 4, 7, 8], device=device)
        padded = packed_to_padded(packed.to(device), first, 6)
        assert padded.shape == (5, 6, *rest)
        assert padded.dtype == dtype
        begin = 0
        for n, size in enumerate(sizes):
            assert torch.equal(padded[n, :size].cpu(), packed[begin : begin + size])
            assert not padded[n, size:].any()
            begin += size
        assert torch.equal(padded_to_packed(padded, first, 8).cpu(), packed)

    def test_max_size_dim(self, device):
        padded = torch.rand(2, 3, 5, 4, device=device)
        first = torch.tensor([0, 5], device=device)
        packed = padded_to_packed(padded, first, 8, max_size_dim=2)
        assert torch.equal(packed, padded.transpose(1, 2).flatten(0, 1)[:8])
        assert torch.equal(packed, padded_to_packed(padded, first, 8, max_size_dim=-2))

    def test_too_small_max_size(self, device):
        """Rows that do not fit are dropped; the original writes them out of bounds."""
        packed, first = torch.arange(1.0, 8.0, device=device), torch.tensor([0, 5], device=device)
        padded = packed_to_padded(packed, first, 3)
        assert padded.tolist() == [[1, 2, 3], [6, 7, 0]]
        assert padded_to_packed(padded, first, 7).tolist() == [1, 2, 3, 0, 0, 6, 7]

    def test_derivatives(self, device):
        first = torch.tensor([0, 2, 2], device=device)
        packed = torch.rand(5, 2, dtype=torch.float64, device=device, requires_grad=True)
        padded = torch.rand(3, 4, 2, dtype=torch.float64, device=device, requires_grad=True)
        assert gradcheck(lambda x: packed_to_padded(x, first, 4), packed)
        assert gradcheck(lambda x: padded_to_packed(x, first, 5), padded)
        assert gradgradcheck(lambda x: packed_to_padded(x, first, 4).square(), packed)

    def test_empty(self, device):
        none = torch.zeros(0, dtype=torch.int64, device=device)
        assert packed_to_padded(torch.zeros(0, 3, device=device), none, 4).shape == (0, 4, 3)
        assert padded_to_packed(torch.zeros(0, 4, 3, device=device), none, 0).shape == (0, 3)
        one = torch.zeros(1, dtype=torch.int64, device=device)
        assert not packed_to_padded(torch.zeros(0, 3, device=device), one, 4).any()
        assert packed_to_padded(torch.ones(2, 3, device=device), one, 0).shape == (1, 0, 3)


P = torch.rand(2, 5, 3)
BAD = [
    (lambda: knn_points(P, P, norm=3), ValueError, "norm must be 1 or 2, got 3"),
    (lambda: knn_points(P, P, K=0), ValueError, "K must be at least 1, got 0"),
    (lambda: knn_points(P, P, K=1.0), TypeError, "K must be an int, got float 1.0"),
    (lambda: knn_points(P[0], P), ValueError, r"p1 must be \(N, P, D\), got \(5, 3\)"),
    (lambda: knn_points(P, P[:1]), ValueError, r"p2 must be .* N = 2 and D = 3, like p1, got \(1, 5, 3\)"),
    (lambda: knn_points(P, P.double()), TypeError, "p2 must have the dtype of p1, float32, got float64"),
    (lambda: knn_points(P, P, torch.tensor([6, 1])), ValueError, r"lengths1\[0\] must be .* got 6"),
    (lambda: knn_points(P, P, None, torch.tensor([1])), ValueError, r"lengths2 must be \(N,\) = \(2,\)"),
    (lambda: knn_points(P.long(), P), TypeError, "p1 must be float32, .* got int64"),
    (lambda: knn_gather(P, torch.zeros(2, 3)), ValueError, r"idx must be \(N, L, K\) with N = 2, got \(2, 3\)"),
    (lambda: knn_gather(P, torch.full((2, 3, 1), 5)), ValueError, r"index must be .* in \[0, 5\), got 5"),
    (lambda: masked_gather(P, torch.zeros(3, 3).long()), ValueError, "idx must have .* N = 2, got"),
    (lambda: masked_gather(P, torch.zeros(2, 1, 1, 1).long()), ValueError, "idx must be .* another format"),
    (lambda: sample_farthest_points(P, torch.ones(3).long()), ValueError, r"same batch .* got \(2, 5, 3\) and \(3,\)"),
    (lambda: ball_query(P, P, radius=0.0), ValueError, "radius must be positive, got 0.0"),
    (lambda: ball_query(P, P, radius=-1.0), ValueError, "radius must be positive, got -1.0"),
    (lambda: ball_query(P, P, radius=float("nan")), ValueError, "radius must be positive, got nan"),
    (lambda: ball_query(P, P, radius="1"), TypeError, "radius must be a number, got str '1'"),
    (lambda: sample_farthest_points(P, K=[1]), ValueError, "K and points must have .* got 1 and 2"),
    (lambda: sample_farthest_points(P, K="2"), TypeError, "K must be an int, or a list or tensor of ints, got str '2'"),
    (lambda: sample_farthest_points(P, K=torch.tensor([[2]])), ValueError, r"K must be an int or \(N,\), got \(1, 1\)"),
    (lambda: sample_farthest_points(P, K=0), ValueError, "K must be at least 1, got 0"),
    (lambda: sample_farthest_points(P, torch.tensor([6, 6])), ValueError, r"lengths\[0\] must be .* got 6"),
    (lambda: packed_to_padded(P, torch.zeros(1), 2), TypeError, "first_idxs must be int64 or int32, got float32"),
    (lambda: packed_to_padded(P, torch.tensor([0]), -1), ValueError, "max_size must be at least 0, got -1"),
    (lambda: packed_to_padded(P, torch.tensor([0]), 1.5), TypeError, "max_size must be an int, got float 1.5"),
    (lambda: padded_to_packed(P, torch.tensor([0]), 2), ValueError, r"first_idxs must be \(N,\) = \(2,\), got \(1,\)"),
    (lambda: chamfer_distance(P, P, point_reduction="min"), ValueError, "point_reduction must be .* got 'min'"),
    (lambda: chamfer_distance(P, P, batch_reduction="max"), ValueError, "batch_reduction must be .* got 'max'"),
    (lambda: chamfer_distance(P, P, point_reduction=None), ValueError, "batch_reduction must be None if"),
    (lambda: chamfer_distance(P, P, norm=0), ValueError, "norm must be 1 or 2, got 0"),
    (lambda: chamfer_distance(P, [1]), ValueError, "y must be Pointclouds objects or torch.Tensor .* got list"),
    (lambda: chamfer_distance(P, P[:, :, :2]), ValueError, r"y must be .* D = 3, like x, got \(2, 5, 2\)"),
    (lambda: chamfer_distance(P, P, x_normals=P[:, :2]), ValueError, r"x_normals must be .* \(2, 5\), got"),
    (lambda: chamfer_distance(P, P, weights=torch.tensor([1.0, -1.0])), ValueError, "weights must be at least 0"),
    (lambda: chamfer_distance(P, P, weights=torch.ones(3)), ValueError, r"weights must be \(N,\) = \(2,\)"),
    (lambda: chamfer_distance(P, P, x_normals=P, point_reduction="max"), ValueError, "None if point_red"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), BAD, ids=[message for _, _, message in BAD])
def test_bad_input(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


SIGNATURES = {
    knn_points: "p1, p2, lengths1=None, lengths2=None, norm=2, K=1, version=-1, return_nn=False, return_sorted=True",
    knn_gather: "x, idx, lengths=None",
    ball_query: "p1, p2, lengths1=None, lengths2=None, K=500, radius=0.2, return_nn=True, "
    "skip_points_outside_cube=False",
    sample_farthest_points: "points, lengths=None, K=50, random_start_point=False",
    packed_to_padded: "inputs, first_idxs, max_size",
    padded_to_packed: "inputs, first_idxs, num_inputs, max_size_dim=1",
    masked_gather: "points, idx",
    ops.wmean: "x, weight=None, dim=-2, keepdim=True, eps=1e-09",
    ops.get_point_covariances: "points_padded, num_points_per_cloud, neighborhood_size",
    ops.estimate_pointcloud_normals: "pointclouds, neighborhood_size=50, disambiguate_directions=True, "
    "use_symeig_workaround=True",
    ops.corresponding_points_alignment: "X, Y, weights=None, estimate_scale=False, allow_reflection=False, eps=1e-09",
    ops.iterative_closest_point: "X, Y, init_transform=None, max_iterations=100, relative_rmse_thr=1e-06, "
    "estimate_scale=False, allow_reflection=False, verbose=False",
    ops.add_pointclouds_to_volumes: "pointclouds, initial_volumes, mode='trilinear', min_weight=0.0001, "
    "rescale_features=True, _python=False",
    ops.add_points_features_to_volume_densities_features: "points_3d, points_features, volume_densities, "
    "volume_features, mode='trilinear', min_weight=0.0001, mask=None, grid_sizes=None, rescale_features=True, "
    "_python=False, align_corners=True",
    structures.list_to_padded: "x, pad_size=None, pad_value=0.0, equisized=False",
    structures.padded_to_packed: "x, split_size=None, pad_value=None",
    transforms.axis_angle_to_matrix: "axis_angle, fast=False",
    transforms.random_quaternions: "n, dtype=None, device=None",
    transforms.so3_relative_angle: "R1, R2, cos_angle=False, cos_bound=0.0001, eps=0.0001",
    transforms.so3_rotation_angle: "R, eps=0.0001, cos_angle=False, cos_bound=0.0001",
    transforms.se3_log_map: "transform, eps=0.0001, cos_bound=0.0001",
    chamfer_distance: "x, y, x_lengths=None, y_lengths=None, x_normals=None, y_normals=None, weights=None, "
    "batch_reduction='mean', point_reduction='mean', norm=2, single_directional=False, abs_cosine=True",
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__name__)
def test_signature(function):
    parameters = inspect.signature(function).parameters.values()
    plain = [f"{p.name}={p.default!r}" if p.default is not p.empty else p.name for p in parameters]
    assert ", ".join(plain) == SIGNATURES[function]
    assert pickle.loads(pickle.dumps(function)) is function


def test_missing_attributes():
    for module, name in (
        (pytorch3d, "renderer"),
        (pytorch3d.ops, "cubify"),
        (pytorch3d.loss, "point_mesh_face_distance"),
    ):
        original = module.__name__.removeprefix("pointgrad.compat.")
        expected = f"provides only the point operators of pytorch3d, not {original}.{name}"
        with pytest.raises(AttributeError, match=expected):
            getattr(module, name)
        assert not hasattr(module, name)


def test_module_names():
    from pointgrad.compat.pytorch3d.loss import chamfer
    from pointgrad.compat.pytorch3d.ops.ball_query import ball_query as ball
    from pointgrad.compat.pytorch3d.ops.knn import _KNN
    from pointgrad.compat.pytorch3d.ops.packed_to_padded import packed_to_padded as pad
    from pointgrad.compat.pytorch3d.ops.sample_farthest_points import sample_farthest_points as sample

    assert (ball, pad, sample) == (ball_query, packed_to_padded, sample_farthest_points)
    assert chamfer.chamfer_distance is chamfer_distance
    assert isinstance(knn_points(P, P), _KNN)


@pytest.mark.parametrize("module", pointgrad.compat.modules("pytorch3d"), ids=lambda module: module.__name__)
def test_docstring_examples(module):
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0
    for name in getattr(module, "__all__", ()):
        assert ">>>" in getattr(module, name).__doc__


def test_unchanged_program(device, monkeypatch, capsys):
    def imported():
        return [name for name in sys.modules if name.partition(".")[0] == "pytorch3d"]

    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "argv", ["pytorch3d_model.py", "--steps", "8", "--device", device])
    for name in imported():
        monkeypatch.delitem(sys.modules, name)  # restored by monkeypatch
    try:
        pointgrad.compat.install("pytorch3d")
        runpy.run_path(str(Path(__file__).parent / "foreign" / "pytorch3d_model.py"), run_name="__main__")
    finally:
        for name in imported():
            del sys.modules[name]
    losses = [float(line) for line in capsys.readouterr().out.split()]
    assert len(losses) == 8
    assert losses[-1] < losses[0] / 2


def test_scalar_arguments_as_tensors():
    points = torch.rand(2, 9, 3)
    assert torch.equal(knn_points(points, points, K=torch.tensor(3)).idx, knn_points(points, points, K=3).idx)
    received = ball_query(points, points, K=torch.tensor(3), radius=torch.tensor(0.5)).idx
    assert torch.equal(received, ball_query(points, points, K=3, radius=0.5).idx)
    picks = sample_farthest_points(points, K=torch.tensor(4))[1]
    assert torch.equal(picks, sample_farthest_points(points, K=4)[1])

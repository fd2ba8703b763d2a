"""Properties specific to the sampling operators; test_contract.py tests the rest."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pointgrad
from pointgrad import farthest_point_sampling as fps


def naive(points: np.ndarray, count: int) -> list[int]:
    """The textbook loop, in the arithmetic of the contract."""
    nearest = np.full(len(points), np.inf, points.dtype)
    picks = [0]
    while len(picks) < count:
        dx, dy, dz = (points - points[picks[-1]]).T
        nearest = np.minimum(nearest, dx * dx + dy * dy + dz * dz)
        nearest[picks] = -1
        picks.append(int(nearest.argmax()))
    return picks


def test_textbook_loop(place):
    points = torch.randn(300, 3)
    assert fps(points.to(place.device), 80).tolist() == naive(points.numpy(), 80)


@pytest.mark.parametrize(
    ("dtype", "spread"), [(torch.float16, 1000.0), (torch.float32, 10_000.0)], ids=["float16", "float32"]
)
def test_wide_clouds(dtype, spread, place):
    """float16 squares overflow at 181 units; other libraries start from a distance of 5e4 and fail beyond 224."""
    points = ((torch.rand(400, 3) - 0.5) * spread).to(dtype)
    picks = fps(points.to(place.device), 100).tolist()
    assert picks == naive(points.float().numpy(), 100)


def test_float64_is_compared_in_float64(place):
    points = torch.tensor([[0, 0, 0], [1, 0, 0], [1 + 1e-12, 0, 0]], dtype=torch.float64, device=place.device)
    assert fps(points, 2).tolist() == [0, 2]
    assert fps(points.float(), 2).tolist() == [0, 1]


def test_layouts_agree(place):
    clouds = [torch.randn(n, 3) for n in (30, 12, 25)]
    packed = torch.cat(clouds).to(place.device)
    offsets = torch.tensor([0, 30, 42, 67], device=place.device)
    padded = torch.nn.utils.rnn.pad_sequence(clouds, batch_first=True).to(place.device)
    lengths = torch.tensor([30, 12, 25], device=place.device)
    local = fps(packed, 10, offsets=offsets).reshape(3, 10) - offsets[:-1, None]
    assert torch.equal(local, fps(padded, 10, lengths=lengths))
    for cloud, picks in zip(clouds, local, strict=True):
        assert torch.equal(fps(cloud.to(place.device), 10), picks)


def test_padding_values_do_not_matter(place):
    points = torch.randn(2, 20, 3, device=place.device)
    lengths = torch.tensor([20, 9], device=place.device)
    poisoned = points.clone()
    poisoned[1, 9:] = float("nan")
    assert torch.equal(fps(points, 9, lengths=lengths), fps(poisoned, 9, lengths=lengths))


def test_all_points_is_a_permutation(place):
    points = torch.randint(0, 2, (30, 3), device=place.device).float()
    points[4] = float("nan")
    picks = fps(points, 30)
    assert picks.sort().values.tolist() == list(range(30))
    assert picks[-1] == 4  # non-finite points come last


def test_covering_radius(place):
    points = torch.randn(60, 3, dtype=torch.float64, device=place.device)
    index, radius = fps(points, 20, return_radius=True)
    for count in (1, 7, 20):
        nearest = torch.cdist(points, points[index[:count]]).amin(1)
        torch.testing.assert_close(radius[count - 1], nearest.max())
    assert (radius.diff() <= 0).all()
    assert fps(points, 60, return_radius=True).radius[-1] == 0


def test_start_set_comes_first(place):
    points = torch.randn(2, 30, 3, device=place.device)
    start = torch.tensor([[5, 17, 3], [9, -1, -1]], device=place.device)
    picks = fps(points, 8, start=start)
    assert picks[0, :3].tolist() == [5, 17, 3]
    assert picks[1, 0] == 9
    # Continuing from earlier picks equals one uninterrupted run.
    longer = fps(points, 8, start=9)
    assert torch.equal(fps(points, 8, start=longer[:, :5]), longer)


def test_start_forms_agree(place):
    points = torch.randn(3, 15, 3, device=place.device)
    expected = fps(points, 4, start=2)
    for start in ([2, 2, 2], (2, 2, 2), torch.tensor([2, 2, 2], device=place.device)):
        assert torch.equal(fps(points, 4, start=start), expected)
    assert torch.equal(fps(points, 4, start=torch.full((3,), 2, dtype=torch.int32, device=place.device)), expected)


def test_random_start_follows_the_seed(place):
    points = torch.randn(50, 40, 3, device=place.device)
    torch.manual_seed(7)
    first = fps(points, 1, start="random")
    torch.manual_seed(7)
    assert torch.equal(fps(points, 1, start="random"), first)
    assert len(first.unique()) > 10
    torch.manual_seed(7)
    with pointgrad.backend("reference"):
        assert torch.equal(fps(points.cpu(), 1, start="random"), first.cpu())


def test_counts_may_be_a_tensor(place):
    points = torch.randn(2, 9, 3, device=place.device)
    counts = torch.tensor([2, 5], device=place.device)
    assert torch.equal(fps(points, counts), fps(points, [2, 5]))


def test_numpy_numbers(place):
    points = torch.randn(2, 9, 3, device=place.device)
    assert torch.equal(fps(points, np.int64(3), start=np.int32(1)), fps(points, 3, start=1))
    assert torch.equal(fps(points, [np.int64(1), 2]), fps(points, [1, 2]))
    half = pointgrad.voxel_sampling(points, np.float32(0.5))
    assert torch.equal(half.index, pointgrad.voxel_sampling(points, 0.5).index)


def test_gradient_stops_at_the_index(place):
    """The index has no gradient; what is gathered with it has."""
    points = torch.randn(20, 3, device=place.device, requires_grad=True)
    features = torch.randn(20, 4, device=place.device, requires_grad=True)
    index, radius = fps(points, 5, return_radius=True)
    assert index.dtype == torch.int64
    assert not index.requires_grad
    assert not radius.requires_grad
    pointgrad.gather(features, index).sum().backward()
    assert points.grad is None
    assert features.grad.sum(1).nonzero().flatten().tolist() == index.sort().values.tolist()
    pointgrad.gather(points, index).sum().backward()
    assert points.grad.sum(1).nonzero().flatten().tolist() == index.sort().values.tolist()


def test_random_sampling(place):
    points = torch.zeros(60, 3, device=place.device)
    offsets = torch.tensor([0, 10, 60], device=place.device)
    picks = pointgrad.random_sampling(points, 10, offsets=offsets)
    assert picks[:10].sort().values.tolist() == list(range(10))  # all of the first cloud
    assert len(picks[10:].unique()) == 10
    assert ((picks[10:] >= 10) & (picks[10:] < 60)).all()
    assert not torch.equal(pointgrad.random_sampling(points, 10, offsets=offsets), picks)


def test_random_sampling_is_uniform():
    """Each of 20 points is in a sample of 5 with probability 1/4: 4000 draws, five standard deviations."""
    points = torch.zeros(4000, 20, 3)
    hits = pointgrad.random_sampling(points, 5).flatten().bincount(minlength=20)
    assert (hits - 1000).abs().max() < 5 * math.sqrt(4000 * 0.25 * 0.75)
    first = pointgrad.random_sampling(points, 5)[:, 0].bincount(minlength=20)
    assert (first - 200).abs().max() < 5 * math.sqrt(4000 * 0.05 * 0.95)


def test_voxel_sampling(place):
    points = torch.tensor([[0.1, 0.1, 0.1], [0.4, 0.5, 0.5], [0.5, 0.5, 0.6], [-0.1, 0.5, 0.5], [0.5, 0.5, 0.4]])
    points = torch.cat([points, torch.tensor([[float("nan"), 0, 0], [float("inf"), 0, 0]])]).to(place.device)
    index, count = pointgrad.voxel_sampling(points, 1.0)
    # 1, 2 and 4 are 0.1 from the center up to rounding; 3 is alone in its voxel.
    dx = (points[:, :3] - 0.5).double()
    best = min((1, 2, 4), key=lambda i: (dx[i].float() ** 2).sum().item())
    assert index.tolist() == sorted([best, 3])
    assert count.tolist() == [2]


def test_voxel_sampling_keeps_one_point_per_voxel(place):
    points = torch.randn(500, 3, device=place.device)
    offsets = torch.tensor([0, 200, 500], device=place.device)
    index, count = pointgrad.voxel_sampling(points, 0.5, offsets=offsets)
    for cloud, kept in zip(points.split([200, 300]), points[index].split(count.tolist()), strict=True):
        voxels, kept_voxels = (p.div(0.5).floor() for p in (cloud, kept))
        assert torch.equal(kept_voxels.unique(dim=0), voxels.unique(dim=0))
        assert len(kept_voxels.unique(dim=0)) == len(kept)


def test_real_scan(scan, place):
    """Uneven density of a real sensor; the interpreter gets a small part."""
    points = scan[:: 300 if place.interpreted else 30].contiguous()
    picks = fps(points.to(place.device), len(points) // 8)
    assert picks.tolist() == naive(points.numpy(), len(points) // 8)


def test_falls_back_when_the_grid_cannot_be_resident(place, monkeypatch):
    """If the driver refuses a cooperative grid that does not fit, one program per cloud does the work."""
    if place.backend != "triton":
        pytest.skip("only the Triton kernel launches cooperatively")
    from pointgrad.ops.sampling import kernels

    launch, tried = kernels._launch, []

    def refuse(plan, *arguments):
        tried.append(plan.programs)
        if plan.programs > 1:
            raise RuntimeError("Triton Error [CUDA]: too many blocks in cooperative launch")
        launch(plan, *arguments)

    monkeypatch.setattr(kernels, "_launch", refuse)
    monkeypatch.setattr(kernels, "plan", lambda *_: kernels.Plan(4, 32, 1))
    points = torch.randn(100, 3)
    assert fps(points.to(place.device), 20).tolist() == naive(points.numpy(), 20)
    assert tried == [4, 1]


coordinate = st.sampled_from([0.0, -0.0, 1.0, 2.0, 1e-30, 1e30, -3.5, float("nan"), float("inf"), -float("inf")])


@settings(max_examples=300, deadline=None)
@given(
    values=st.lists(st.tuples(coordinate, coordinate, coordinate), min_size=1, max_size=40),
    double=st.booleans(),
    data=st.data(),
)
def test_degenerate_clouds(values, double, data):
    """The C++ kernel against the reference on ties, overflow, denormals and non-finite values."""
    points = torch.tensor(values, dtype=torch.float64 if double else torch.float32)
    count = data.draw(st.integers(1, len(values)))
    start = data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=count))
    arguments = (points, count)
    options = {"start": torch.tensor([start]), "return_radius": True}
    with pointgrad.backend("reference"):
        expected = fps(*arguments, **options)
    received = fps(*arguments, **options)
    assert received.index.tolist() == expected.index.tolist()
    assert received.radius.tolist() == expected.radius.tolist()


@pytest.mark.parametrize("size", [700, 2000, 9000])
@pytest.mark.parametrize("kind", ["uniform", "grid", "clustered", "line", "twice"])
def test_larger_clouds_on_the_cpu(kind, size):
    """Beyond the size from which a kd-tree is used."""
    points = {
        "uniform": lambda: torch.rand(size, 3),
        "grid": lambda: torch.randint(0, 12, (size, 3)).float(),
        "clustered": lambda: torch.randn(size, 3) * 0.001 + torch.randint(0, 5, (size, 1)) * 1000.0,
        "line": lambda: torch.rand(size, 1) * torch.tensor([[1.0, 0, 0]]),
        "twice": lambda: torch.rand(size // 2, 3).repeat(2, 1),
    }[kind]()
    count = size // 4
    with pointgrad.backend("reference"):
        expected = fps(points, count)
    assert torch.equal(fps(points, count), expected)

"""chamfer_distance against the nearest neighbors of SciPy and scikit-learn."""

import pytest
import torch
from scipy.spatial import cKDTree
from sklearn.neighbors import NearestNeighbors

import pointgrad
from pointgrad import chamfer_distance


def by_scipy(points, targets):
    to_targets = cKDTree(targets.numpy()).query(points.numpy())[0] ** 2
    to_points = cKDTree(points.numpy()).query(targets.numpy())[0] ** 2
    return to_targets, to_points


def test_agrees_with_scipy_and_sklearn(place):
    points, targets = torch.randn(300, 3, dtype=torch.float64), torch.randn(200, 3, dtype=torch.float64) + 0.5
    to_targets, to_points = by_scipy(points, targets)
    a, b = points.to(place.device), targets.to(place.device)
    assert chamfer_distance(a, b).item() == pytest.approx(to_targets.mean() + to_points.mean())
    assert chamfer_distance(a, b, reduction="sum").item() == pytest.approx(to_targets.sum() + to_points.sum())
    assert chamfer_distance(a, b, direction="to_targets").item() == pytest.approx(to_targets.mean())
    assert chamfer_distance(a, b, direction="to_points").item() == pytest.approx(to_points.mean())
    nearest = chamfer_distance(a, b, reduction="none")
    skl = NearestNeighbors(n_neighbors=1).fit(targets.numpy()).kneighbors(points.numpy())[0][:, 0] ** 2
    torch.testing.assert_close(nearest.to_targets.cpu(), torch.from_numpy(skl))
    torch.testing.assert_close(nearest.to_points.cpu(), torch.from_numpy(to_points))


def test_layouts_agree(place):
    """Padded with lengths, packed with offsets, and one cloud at a time."""
    sizes, target_sizes = [40, 7, 25], [30, 11, 1]
    points = [torch.rand(n, 3, device=place.device) for n in sizes]
    targets = [torch.rand(n, 3, device=place.device) for n in target_sizes]
    alone = torch.stack([chamfer_distance(p, t) for p, t in zip(points, targets, strict=True)])

    def bounds(sizes):
        return torch.tensor([0, *sizes], device=place.device).cumsum(0)

    packed = chamfer_distance(
        torch.cat(points), torch.cat(targets), offsets=bounds(sizes), target_offsets=bounds(target_sizes),
        batch_reduction="none",
    )  # fmt: skip
    padded = chamfer_distance(
        torch.nn.utils.rnn.pad_sequence(points, batch_first=True),
        torch.nn.utils.rnn.pad_sequence(targets, batch_first=True),
        lengths=torch.tensor(sizes, device=place.device),
        target_lengths=torch.tensor(target_sizes, device=place.device),
        batch_reduction="none",
    )
    torch.testing.assert_close(packed, alone)
    torch.testing.assert_close(padded, alone)


def test_gradient_descent_moves_one_cloud_onto_the_other():
    torch.manual_seed(0)
    target = torch.rand(60, 3)
    cloud = (target + 0.01 * torch.randn(60, 3)).requires_grad_()
    before = chamfer_distance(cloud, target).item()
    for _ in range(50):
        (grad,) = torch.autograd.grad(chamfer_distance(cloud, target, reduction="sum"), cloud)
        cloud = (cloud - 0.1 * grad).detach().requires_grad_()
    assert chamfer_distance(cloud, target).item() < before / 100


def test_an_empty_side_adds_nothing(place):
    points = torch.rand(5, 3, device=place.device, requires_grad=True)
    distance = chamfer_distance(points, points[:0].detach())
    assert distance.item() == 0
    (grad,) = torch.autograd.grad(distance, points)
    assert (grad == 0).all()


def test_non_finite_points_are_not_counted(place):
    points = torch.zeros(4, 3, device=place.device)
    points[1] = torch.nan
    targets = torch.ones(2, 3, device=place.device)
    assert chamfer_distance(points, targets).item() == 6
    assert pointgrad.chamfer_distance(points, targets, reduction="none").to_targets.tolist() == [3, 0, 3, 3]

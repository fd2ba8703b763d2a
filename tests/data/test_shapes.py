"""Shapes: uniform sampling, disjoint splits, part labels, simulated scans, and difficulty for simple classifiers."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pointgrad.data import Shapes
from pointgrad.data.datasets import shapes
from pointgrad.data.datasets.shapes import sensor
from pointgrad.data.datasets.shapes.kinds import KINDS, Kind
from pointgrad.data.datasets.shapes.surface import Surface

SPLITS = ("train", "val", "test")


def sample(surface, count=20_000, seed=0):
    points, parts = surface.sample(count, np.random.default_rng(seed))
    return points.T.astype(float), parts


def test_sampling_is_uniform_on_a_box():
    surface = Surface()
    surface.box(7, (1, 2, 3), (1, 2, 4))
    points, parts = sample(surface)
    assert set(parts) == {7}
    inside = points - [0.5, 1, 1]
    faces = [np.isclose(inside[:, axis], side, atol=1e-5) for axis, size in enumerate((1, 2, 4)) for side in (0, size)]
    counts = np.array([face.sum() for face in faces])
    areas = np.array([8, 8, 4, 4, 2, 2])
    assert counts.sum() >= len(points)
    assert chisquare(counts, areas / areas.sum() * counts.sum()).pvalue > 1e-3
    top = points[faces[5]]
    assert kstest(top[:, 0] - 0.5, "uniform").pvalue > 1e-3


def test_sampling_is_uniform_on_surfaces_of_revolution():
    """Half of the area of a cone is within the radius sqrt(1/2). A sphere is uniform in height."""
    surface = Surface()
    surface.lathe(0, [(0, 0), (1, 2)])
    points, _ = sample(surface)
    radius = np.hypot(points[:, 0], points[:, 1])
    np.testing.assert_allclose(points[:, 2], 2 * radius, atol=1e-5)
    assert kstest(radius**2, "uniform").pvalue > 1e-3
    assert kstest(np.arctan2(points[:, 1], points[:, 0]) / (2 * math.pi) + 0.5, "uniform").pvalue > 1e-3
    surface = Surface()
    angles = np.linspace(-math.pi / 2, math.pi / 2, 65)
    surface.lathe(0, [(max(math.cos(a), 0), math.sin(a)) for a in angles])
    points, _ = sample(surface, 5000)
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1, atol=2e-3)
    assert kstest(points[:, 2] / 2 + 0.5, "uniform").pvalue > 1e-3


def test_positions_of_rods_and_arcs():
    surface = Surface()
    surface.rod(0, (1, 1, 1), (1, 4, 5), 0.25)
    points, _ = sample(surface, 2000)
    along = (points - 1) @ np.array([0, 0.6, 0.8])
    assert along.min() > -1e-5
    assert along.max() < 5 + 1e-5
    away = points - 1 - along[:, None] * np.array([0, 0.6, 0.8])
    np.testing.assert_allclose(np.linalg.norm(away, axis=1), 0.25, atol=1e-5)
    surface = Surface()
    surface.arc(1, (0, 0, 0), (1, 0, 0), (0, 0, 1), 2.0, 0.5, 0, math.pi)
    points, _ = sample(surface, 2000)
    ring = np.hypot(points[:, 0], points[:, 2])
    np.testing.assert_allclose(np.hypot(ring - 2, points[:, 1]), 0.5, atol=1e-5)
    assert points[:, 2].min() > -1e-5  # the upper half


def used_numbers(monkeypatch, split, size):
    """Record the parameters that the builders receive."""
    seen = []

    def watch(kind):
        def build(surface, numbers):
            seen.append(tuple(numbers))
            kind.build(surface, numbers)

        return Kind(build, kind.parts)

    with monkeypatch.context() as patch:
        patch.setattr(shapes, "KINDS", {name: watch(kind) for name, kind in KINDS.items()})
        for _ in Shapes(split, size=size, points=8):
            pass
    return np.array(seen)


def test_splits_have_disjoint_proportions(monkeypatch):
    """No cell of the 4 x 4 grid of the first two parameters belongs to two splits, but each parameter alone takes all
    values in each split."""
    cells = {}
    for split in SPLITS:
        numbers = used_numbers(monkeypatch, split, 360)
        cells[split] = {tuple(cell) for cell in (numbers[:, :2] * 4).astype(int)}
        for column in numbers.T:
            assert kstest(column, "uniform").pvalue > 1e-4
    assert {split: len(own) for split, own in cells.items()} == {"train": 8, "val": 4, "test": 4}
    assert len(set().union(*cells.values())) == 16


@pytest.mark.parametrize("name", KINDS)
def test_first_two_parameters_change_the_shape(name):
    """The splits differ in these two parameters only."""
    for place in (0, 1):
        clouds = []
        for value in (0.1, 0.9):
            surface = Surface()
            KINDS[name].build(surface, [value if n == place else 0.45 for n in range(12)])
            points, _ = sample(surface, 3000)
            extent = np.ptp(points, axis=0)
            clouds.append(extent / extent.max())
        assert np.abs(clouds[0] - clouds[1]).max() > 0.08


def test_seed_determines_the_shapes():
    data = Shapes("train", size=24, points=64)
    again = Shapes("train", size=1000, points=64)
    for index in (0, 5, 23):
        assert torch.equal(data[index].points, again[index].points)
        assert torch.equal(data[index].points, data[index].points)
    kinds = [Shapes("train", seed=1, points=64), Shapes("test", points=64), Shapes("val", points=64)]
    first = [tuple(d[0].points[0].tolist()) for d in (data, *kinds)] + [tuple(data[12].points[0].tolist())]
    assert len(set(first)) == 5
    order = data[0].points
    assert not torch.equal(order, order[order[:, 2].argsort()])


def test_shapes_as_a_dataset():
    data = Shapes("test", points=100)
    assert (len(data), data.task, len(data.classes)) == (600, "classification", 12)
    labels = [data[index].label for index in range(24)]
    assert sorted(labels) == sorted([*range(12)] * 2)
    cloud = data[3]
    assert cloud.points.shape == (100, 3)
    assert cloud.points.dtype == torch.float32
    assert cloud.points.isfinite().all()
    assert cloud.labels is None
    assert cloud.category is None
    assert len(list(Shapes("val", size=5, points=8))) == 5
    for size, points in ((None, 1), (3, 1), (3, 5000)):
        assert len(Shapes("train", size=size, points=points)[2]) == points
    with pytest.raises(IndexError, match=r"index must be in \[0, 600\), got 600"):
        data[600]
    with pytest.raises(ValueError, match="split must be one of train, val, test, got 'dev'"):
        Shapes("dev")
    with pytest.raises(ValueError, match="task must be classification or segmentation, got 'both'"):
        Shapes("train", "both")
    with pytest.raises(ValueError, match="points must be at least 1, got 0"):
        Shapes("train", points=0)


def test_parts():
    data = Shapes("train", "segmentation", points=512)
    whole = Shapes("train", points=512)
    assert data.categories == whole.classes
    assert len(data.classes) == sum(len(own) for own in data.parts)
    assert sorted(itertools.chain(*data.parts)) == list(range(len(data.classes)))
    seen = set()
    for index in range(120):
        cloud = data[index]
        assert torch.equal(cloud.points, whole[index].points)  # the points do not depend on the task
        assert cloud.category == whole[index].label
        assert cloud.label is None
        found = set(cloud.labels.unique().tolist())
        assert found <= {-1, *data.parts[cloud.category]}
        assert (cloud.labels == -1).float().mean() <= sensor.OUTLIERS
        seen |= found
    assert seen == {-1, *range(len(data.classes))}
    assert data.classes[data.parts[data.categories.index("mug")][1]] == "mug handle"


def test_positions_of_parts():
    """Before the scan: a cap above its bottle, legs below a table's top, wheels at the bottom of a car."""
    for name, above, below in (("bottle", 2, 0), ("table", 0, 1), ("car", 1, 2), ("lamp", 2, 0), ("rocket", 1, 0)):
        for seed in range(5):
            surface = Surface()
            KINDS[name].build(surface, np.random.default_rng(seed).random(12).tolist())
            points, parts = sample(surface, 3000)
            assert points[parts == above, 2].mean() > points[parts == below, 2].mean()
            assert points[:, 2].min() > -0.05


def test_only_the_near_side_of_a_sphere_is_visible():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((3, 4000))
    points = (points / np.linalg.norm(points, axis=0)).astype(np.float32)
    for seed in range(5):
        seen = sensor._visible(points, np.random.default_rng(seed))
        view = points[:, seen].mean(1)
        view /= np.linalg.norm(view)
        nearness = view @ points
        assert seen[nearness > 0.3].mean() > 0.95
        assert seen[nearness < -0.3].mean() < 0.05


def test_poses():
    """Any heading, and never more than the maximum tilt."""
    turns = np.stack([sensor._rotation(np.random.default_rng(seed)) for seed in range(500)])
    np.testing.assert_allclose(turns @ turns.transpose(0, 2, 1), np.broadcast_to(np.eye(3), turns.shape), atol=1e-5)
    tilt = np.arccos(np.clip(turns[:, 2, 2], -1, 1))
    assert tilt.max() < sensor.TILT + 1e-3
    assert tilt.max() > sensor.TILT * 0.9
    heading = np.arctan2(turns[:, 1, 0], turns[:, 0, 0]) / (2 * math.pi) + 0.5
    assert kstest(heading, "uniform").pvalue > 1e-3


def arrays(split, count, points):
    clouds, labels = [], []
    for cloud in Shapes(split, size=count, points=points):
        xyz = cloud.points.double().numpy()
        xyz = xyz - xyz.mean(0)
        clouds.append(xyz / np.linalg.norm(xyz, axis=1).max())
        labels.append(cloud.label)
    return np.stack(clouds), np.array(labels)


def moments(clouds):
    """Features: covariance, third moments and extents."""
    rows, columns = np.triu_indices(3)
    second = np.einsum("npi,npj->nij", clouds, clouds)[:, rows, columns]
    third = np.einsum("npi,npj,npk->nijk", clouds, clouds, clouds)
    third = np.stack([third[:, i, j, k] for i, j, k in itertools.combinations_with_replacement(range(3), 3)], axis=1)
    return np.concatenate([second, third, clouds.min(1), clouds.max(1), np.ptp(clouds, axis=1)], axis=1)


def histograms(clouds):
    """Features: histograms of height, distance from the vertical axis, both together, and distances between points."""
    out = []
    rng = np.random.default_rng(0)
    for xyz in clouds:
        radius, height = np.hypot(xyz[:, 0], xyz[:, 1]), xyz[:, 2]
        first, second = xyz[rng.integers(0, len(xyz), (2, 3000))]
        apart = np.histogram(np.linalg.norm(first - second, axis=1), 24, (0, 2))[0]
        rise = np.histogram(np.abs(first - second)[:, 2], 16, (0, 2))[0]
        both = np.histogram2d(radius, height, 8, ((0, 1), (-1, 1)))[0].ravel()
        out.append(np.concatenate([apart, rise, both, np.histogram(height, 16, (-1, 1))[0]]))
    return np.stack(out)


def test_histograms_classify_better_than_moments():
    train, labels = arrays("train", 1200, 256)
    test, truth = arrays("test", 480, 256)
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(moments(train), labels)
    assert linear.score(moments(test), truth) < 0.6
    forest = RandomForestClassifier(60, random_state=0).fit(histograms(train), labels)
    assert forest.score(histograms(test), truth) > 0.65

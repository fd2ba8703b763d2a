"""Levels of detail: leaves on disk, and the number of points drawn of each."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree

from pointgrad import data
from pointgrad.view.detail import COARSEST, Camera, points_per_leaf
from pointgrad.view.levels import build
from tests.view.clouds import in_chunks, uneven


@pytest.mark.usefixtures("small_leaves")
def test_every_point_is_in_one_leaf_with_its_columns():
    cloud = uneven(nan=7)
    levels = build(in_chunks(cloud))
    assert (levels.total, len(levels), len(levels.counts) > 4) == (4000, 3993, True)
    parts = [levels.read(leaf, int(count)) for leaf, count in enumerate(levels.counts)]
    numbers = np.concatenate([part.number for part in parts])
    assert sorted(numbers.tolist()) == list(range(7, 4000))
    world = cloud.world()
    for leaf, part in enumerate(parts):
        rows = torch.from_numpy(part.number)
        assert torch.equal(part.cloud.world(), world[rows])
        assert torch.equal(part.cloud.labels, cloud.labels[rows])
        assert all(torch.equal(part.cloud.features[name], cloud.features[name][rows]) for name in cloud.features)
        points = part.cloud.points.double().numpy()
        assert (points.min(0) == levels.low[leaf]).all()
        assert (points.max(0) == levels.high[leaf]).all()
    levels.close()


@pytest.mark.usefixtures("small_leaves")
def test_first_points_cover_a_leaf():
    levels = build(in_chunks(uneven()))
    generator = torch.Generator().manual_seed(0)
    for leaf in range(len(levels.counts)):
        every = levels.read(leaf, 10**6).cloud.points.double()
        for count in (8, 64):
            first = levels.read(leaf, count).cloud.points.double()
            assert torch.equal(first, every[:count])  # more detail only adds points
            chosen = every[torch.randperm(len(every), generator=generator)[:count]]
            farthest, random = (cKDTree(points).query(every)[0].max() for points in (first, chosen))
            assert farthest <= random
    levels.close()


@pytest.mark.usefixtures("small_leaves")
def test_samples_scales_and_added_columns(monkeypatch):
    cloud = uneven()
    levels = build(in_chunks(cloud))
    sample = levels.sample(400)
    for count in (1, 3, 399, 400, 3999, 4000, 5000):
        assert len(levels.sample(count).cloud) == min(count, 4000)
    leaf_of = np.empty(4000, np.int64)
    for leaf, size in enumerate(levels.counts):
        leaf_of[levels.read(leaf, size).number] = leaf
    assert (abs(np.bincount(leaf_of[sample.number], minlength=len(levels.counts)) - levels.counts / 10) < 1).all()
    assert torch.equal(sample.cloud.labels, cloud.labels[torch.from_numpy(sample.number)])
    assert levels.choices()[:3] == ["label", "height", "number"]
    monkeypatch.setattr("pointgrad.view.levels.SAMPLE", 50)
    assert levels.scale("label", {}).counts == dict.fromkeys(range(-1, 4), 800)  # of all points, not of the sample
    levels.add("prediction", torch.arange(4000, dtype=torch.int16) % 3)
    assert levels.scale("prediction", {1: "one"}).counts == {0: 1334, 1: 1333, 2: 1333}
    part = levels.read(2, 100)
    assert part.cloud.features["prediction"].tolist() == (part.number % 3).tolist()
    levels.close()


def test_no_finite_points():
    with pytest.raises(ValueError, match="x: expected at least one point with finite coordinates, got 3 with NaN"):
        build(lambda: [data.Cloud(torch.full((3, 3), torch.nan), source="x")])


def boxes(count, seed=0):
    random = np.random.default_rng(seed)
    low = random.random((count, 3)) * 10
    return low, low + random.random((count, 3)), random.integers(1, 5000, count)


@pytest.mark.parametrize("budget", [1, 5000, 60_000, 10**9])
@pytest.mark.parametrize("inside", [True, False])
def test_budget_is_respected(budget, inside):
    low, high, counts = boxes(60)
    camera = Camera(np.full(3, 5.0) if inside else np.array([-20.0, 5, 5]), np.array([1.0, 0, 0]), 0.6)
    for given in (camera, None):
        drawn = points_per_leaf(low, high, counts, given, budget)
        assert ((drawn > 0) & (drawn <= counts)).all()
        assert drawn.sum() <= max(budget, np.minimum(counts, COARSEST).sum())
        if budget >= counts.sum():
            assert (drawn == counts).all()
        else:
            assert drawn.sum() >= min(budget, counts.sum()) / 3  # powers of two leave at most half of it, and a little


def test_near_leaves_get_more_points():
    low = np.array([[x, -0.5, -0.5] for x in (-6.0, 2.0, 5.0, 30.0)])
    counts = np.full(4, 10**6)
    drawn = points_per_leaf(low, low + 1, counts, Camera(np.zeros(3), np.array([1.0, 0, 0]), 0.5), 100_000)
    behind, near, far, farther = drawn
    assert near > far > farther >= COARSEST
    assert behind < far


def test_small_camera_moves_change_few_leaves():
    low, high, counts = boxes(200)
    camera = Camera(np.array([-10.0, 5, 5]), np.array([1.0, 0, 0]), 0.6)
    first = points_per_leaf(low, high, counts, camera, 50_000)
    second = points_per_leaf(low, high, counts, replace(camera, position=camera.position + 0.01), 50_000)
    assert (first != second).mean() < 0.1

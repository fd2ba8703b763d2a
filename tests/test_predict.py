"""Prediction: every point gets what the network says about it, wherever it lies, in any format, and nothing is lost."""

import doctest
import importlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import DATA
from scipy.spatial import cKDTree

import pointgrad
from pointgrad import data, predict
from pointgrad.data import Cloud, FileError, Prepare
from pointgrad.predict import labels, tree, voting, workspace
from pointgrad.train import Trained

SCANS = sorted((DATA / "scans").glob("*")) if (DATA / "scans").is_dir() else []
CLOUDS = [path for path in SCANS if not path.name.endswith((".calib.txt", ".label_2.txt"))]


class Height(torch.nn.Module):
    """Says "high" of points whose height, or first feature, is above a threshold; keeps what it was given."""

    def __init__(self, threshold=0.0):
        super().__init__()
        self.threshold, self.seen = threshold, []

    def forward(self, points, features=None, *, offsets=None, lengths=None, category=None):
        self.seen.append((points, features, offsets))
        height = (points[..., 2] if features is None else features[..., 0]) - self.threshold
        return torch.stack([-height, height], dim=-1)


class Relative(torch.nn.Module):
    """Compares each point with the mean of the points it is shown with: what it says depends on the company."""

    def forward(self, points, features=None, *, offsets=None, lengths=None, category=None):
        if offsets is None:
            mean = points.mean(1, keepdim=True).expand_as(points)
        else:
            sizes = offsets.diff()
            mean = pointgrad.segment(points, offsets, "mean").repeat_interleave(sizes, 0)
        height = ((points - mean) * torch.tensor([0.3, 0.2, 1.0])).sum(-1) * 10
        return torch.stack([-height, height], dim=-1)


def trained(model=None, task="segmentation", classes=("low", "high"), **prepare):
    return Trained((model or Height()).eval(), task, classes, Prepare(**{"normalize": "none", **prepare}))


def scene(count=4000, seed=0, size=(20.0, 12.0, 4.0)):
    """Uneven: half of the points lie in a corner; some are equal."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(count, 3, generator=generator, dtype=torch.float64) * torch.tensor(size)
    points[: count // 2] *= torch.tensor([0.2, 0.2, 1.0])
    points[count // 3 : count // 3 + 50] = points[count // 3]
    points[:, 2] -= size[2] / 2
    return points


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(tree, "LEAF_POINTS", 100)
    monkeypatch.setattr(tree, "TILE_POINTS", 500)
    monkeypatch.setattr(tree, "SAMPLE_EVERY", 4)


# Every point, exactly


@pytest.mark.parametrize(
    ("prepare", "tile"),
    [
        ({}, None),
        ({}, 1.5),
        ({}, 0.01),
        ({"points": 64}, 3.0),
        ({"points": 64}, None),
        ({"points": 64, "normalize": "center", "features": ("height",)}, None),
        ({"points": 100, "normalize": "sphere", "features": ("height",)}, None),
        ({"points": 100, "normalize": "sphere", "features": ("height",)}, 5.0),
        ({"points": 10_000, "normalize": "center", "features": ("height",)}, None),
    ],
)
def test_every_point_gets_what_the_network_says_of_it(small_tiles, prepare, tile):
    points = scene(1200)
    # In another order, since networks must not be told by the order of the file.
    cloud = Cloud(points[torch.randperm(1200)], {})
    cloud.features["height"] = cloud.points[:, 2].float()
    result = predict.label(trained(**prepare), cloud, tile=tile, max_points=300, votes=2)
    assert torch.equal(result.labels, (cloud.points[:, 2].float() > 0).long())
    expected = torch.sigmoid(2 * cloud.points[:, 2].float().abs())  # what softmax says of (-h, h)
    torch.testing.assert_close(result.confidence, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", ["one tile", "small tiles"])
def test_thinned_away_points_get_the_label_of_the_nearest_one_left(size, request):
    if size == "small tiles":
        request.getfixturevalue("small_tiles")
    points = scene()
    result = predict.label(trained(voxel=0.4), Cloud(points), tile=1.7)
    left = points[pointgrad.voxel_sampling(points, 0.4).index]
    distance, nearest = cKDTree(left.numpy()).query(points.numpy(), 2)
    is_clear = distance[:, 1] > distance[:, 0] * (1 + 1e-9)
    assert is_clear.mean() > 0.95
    expected = left[torch.from_numpy(nearest[:, 0]), 2] > 0
    assert torch.equal(result.labels[is_clear], expected[is_clear].long())


@pytest.mark.parametrize(
    "prepare",
    [
        {"normalize": "center"},
        {"normalize": "center", "points": 128, "voxel": 0.2},
        {"normalize": "sphere", "points": 64},
    ],
)
def test_the_result_does_not_depend_on_how_the_scene_is_cut_into_tiles(monkeypatch, prepare):
    network = trained(Relative(), **prepare)
    results = []
    for leaf, tile, every in ((10**6, 10**6, 256), (100, 500, 4), (20, 21, 1)):
        monkeypatch.setattr(tree, "LEAF_POINTS", leaf)
        monkeypatch.setattr(tree, "TILE_POINTS", tile)
        monkeypatch.setattr(tree, "SAMPLE_EVERY", every)
        results.append(predict.label(network, Cloud(scene(2500)), tile=2.5, max_points=512))
    assert 0.2 < results[0].labels.float().mean() < 0.8
    for other in results[1:]:
        assert torch.equal(other.labels, results[0].labels)
        torch.testing.assert_close(other.confidence, results[0].confidence, rtol=0, atol=1e-5)


def test_pieces_are_as_in_training_the_points_nearest_to_each_other():
    """Each has as many points as in training, none twice, and no hole inside."""
    network = trained(points=200)
    points = scene(4000)
    predict.label(network, Cloud(points), votes=1, max_points=200)
    seen = [given.reshape(-1, 200, 3) for given, _, _ in network.model.seen]
    pieces = torch.cat(seen)
    assert 4000 / 200 < len(pieces) < 4000 / 200 * 5
    numbers = cKDTree(points.float().numpy())
    for piece in pieces[::5]:
        center = piece.mean(0)
        radius = (piece - center).norm(dim=1).max()
        inside = numbers.query_ball_point(center.numpy(), float(radius) * 0.5)
        held = cKDTree(piece.numpy()).query(points[inside].float().numpy())[0]
        assert (held == 0).all()


def test_a_network_of_objects_sees_samples_of_the_whole():
    network = trained(points=300, normalize="sphere")
    predict.label(network, Cloud(scene(1000)), votes=2)
    shown = torch.cat([given.reshape(-1, 300, 3) for given, _, _ in network.model.seen])
    assert len(shown) == 2 * 4  # votes, and the parts of 1000 points
    assert torch.allclose(shown.norm(dim=2).amax(1), torch.ones(8))
    extent = shown.amax(1) - shown.amin(1)
    assert (extent > 0.8 * extent.amax(0)).all()  # none is a corner of the cloud


def test_far_coordinates_lose_nothing():
    """A scene far from zero is labelled as the same scene near zero."""
    points = (scene(1500) * 1024).round() / 1024
    network = trained(Relative(), normalize="center", points=100, voxel=0.25)
    near = predict.label(network, Cloud(points), tile=2.0)
    far = predict.label(network, Cloud(points, origin=torch.tensor([2.0**23, -(2.0**22), 0.0]).double()), tile=2.0)
    assert torch.equal(near.labels, far.labels)
    assert torch.equal(near.confidence, far.confidence)


def test_votes_are_averaged():
    """Over several cuts the borders of windows, which split a slope at arbitrary places, matter less."""
    points = scene(3000)
    once, often = (
        predict.label(trained(Relative(), normalize="center"), Cloud(points), tile=3.0, votes=v) for v in (1, 8)
    )
    assert not torch.equal(once.labels, often.labels)
    assert often.confidence.mean() < once.confidence.mean()  # they disagree about some points


def test_on_every_device(default_place):
    network = trained(Relative().to(default_place.device), normalize="center", points=128, voxel=0.2)
    if default_place.device == "cpu":
        network.model.weight = torch.nn.Parameter(torch.zeros(1))
    with torch.no_grad():
        result = predict.label(network, Cloud(scene(2000)), tile=3.0)
    assert result.labels.device.type == "cpu"
    assert result.labels.min() == 0

"""Rows of the benchmark: their names, their checks, and that every implementation passes them."""

import pytest
import torch

from pointgrad.bench import families, harness
from pointgrad.bench.comparison import Declined, Setup
from pointgrad.bench.families import neighbors, sampling
from tests.bench.support import implementations


def test_families_have_descriptions_and_unique_row_names():
    for device in ("cpu", "cuda"):
        for quick in (False, True):
            rows = [row for name in families.NAMES for row in families.rows(name, Setup(device, quick))]
            names = [row.name for row in rows]
            assert len(set(names)) == len(names)
    assert all(families.describe(name).endswith(".") for name in families.NAMES)


def test_check_of_farthest_points_rejects_wrong_picks():
    points = torch.rand(1, 200, 3)
    picks = sampling.plain_fps(points, 20)
    sampling.farthest(points, 20)(picks)
    with pytest.raises(AssertionError, match="farthest distance"):
        sampling.farthest(points, 20)(picks.flip(1).roll(3, 1))
    with pytest.raises(AssertionError, match="twice"):
        sampling.farthest(points, 20)(picks[:, [0] * 20])


def test_checks_of_neighbors_accept_any_order_and_reject_wrong_neighbors():
    points = torch.rand(1, 200, 3)
    distance = torch.cdist(points, points)
    right = distance.argsort(-1)[..., :5]
    neighbors.nearest(points, 5)(right.flip(-1))
    with pytest.raises(AssertionError, match="not the nearest"):
        neighbors.nearest(points, 5)(distance.argsort(-1)[..., 1:6])
    with pytest.raises(AssertionError, match="twice"):
        neighbors.nearest(points, 5)(right[..., [0, 1, 2, 3, 3]])
    order = distance.argsort(-1)[..., :200]
    within = torch.where(distance.gather(-1, order) <= 0.3, order, -1)
    neighbors.inside(points, points, 0.3, 8)(within)
    neighbors.inside(points, points, 0.3, 8)(within[..., :8])
    with pytest.raises(AssertionError, match="miss points"):
        neighbors.inside(points, points, 0.3, 8)(within[..., :2])
    with pytest.raises(AssertionError, match="outside"):
        neighbors.inside(points, points, 0.2, 8)(order[..., :60])


@pytest.mark.parametrize("name", [name for name in families.NAMES if name != "overhead"])  # overhead starts processes
def test_implementations_pass_the_check_of_their_row(name):
    """Ours, all plain forms and related implementations, on small inputs."""
    for row in families.rows(name, Setup("cpu", True)):
        torch.manual_seed(0)
        try:
            comparison = row.build()
        except Declined:
            continue
        for each, make in implementations(comparison):
            assert harness.check_first_call(make, comparison)[:2] == ("timed", ""), f"{row.name}: {each}"

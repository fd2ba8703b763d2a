"""Rows of the benchmark: their names, their checks, and that every implementation passes them."""

import pytest
import torch

from pointgrad.bench import families, harness
from pointgrad.bench.comparison import Declined, Setup
from pointgrad.catalog.neighbors import check_inside, check_nearest
from pointgrad.catalog.sampling import check_picks, plain_fps
from tests.bench.support import implementations


def test_families_have_descriptions_and_unique_row_names():
    for device in ("cpu", "cuda"):
        for quick in (False, True):
            rows = [row for name in families.NAMES for row in families.rows(name, Setup(device, quick))]
            names = [row.name for row in rows]
            assert len(set(names)) == len(names)
    assert all(families.describe(name).endswith(".") for name in families.NAMES)


def test_check_of_farthest_points_rejects_wrong_picks():
    arguments = {"points": torch.rand(1, 200, 3), "num_samples": 20}
    picks = plain_fps(**arguments)
    check_picks(arguments, picks)
    with pytest.raises(AssertionError, match="farthest distance"):
        check_picks(arguments, picks.flip(1).roll(3, 1))
    with pytest.raises(AssertionError, match="twice"):
        check_picks(arguments, picks[:, [0] * 20])
    packed = {"points": arguments["points"][0], "num_samples": 20, "offsets": torch.tensor([0, 0, 200])[1:]}
    check_picks(packed, picks[0])
    with pytest.raises(AssertionError, match="farthest distance"):
        check_picks(packed, picks[0].flip(0).roll(3))


def test_checks_of_neighbors_accept_any_order_and_reject_wrong_neighbors():
    points = torch.rand(1, 200, 3)
    distance = torch.cdist(points, points)
    right = distance.argsort(-1)[..., :5]
    nearest = {"points": points, "k": 5}
    check_nearest(nearest, right.flip(-1))
    with pytest.raises(AssertionError, match="not the nearest"):
        check_nearest(nearest, distance.argsort(-1)[..., 1:6])
    with pytest.raises(AssertionError, match="twice"):
        check_nearest(nearest, right[..., [0, 1, 2, 3, 3]])
    with pytest.raises(AssertionError, match="k must be 5, got 4"):
        check_nearest(nearest, right[..., :4])
    order = distance.argsort(-1)[..., :200]
    within = torch.where(distance.gather(-1, order) <= 0.3, order, -1)
    ball = {"points": points, "queries": points, "radius": 0.3, "k": 8}
    check_inside(ball, within)
    check_inside(ball, within[..., :8])
    with pytest.raises(AssertionError, match="miss points"):
        check_inside(ball, within[..., :2])
    with pytest.raises(AssertionError, match="outside"):
        check_inside(ball | {"radius": 0.2}, order[..., :60])


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

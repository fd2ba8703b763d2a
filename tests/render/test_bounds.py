"""The region of a cloud that a picture shows: outliers outside, everything connected inside."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pointgrad import render
from pointgrad.data import Cloud
from pointgrad.render.bounds import TAIL, bounds

TILE = (100.0, 100.0, 3.0)


def uniform(count, size, corner=(0, 0, 0), seed=0):
    return np.random.default_rng(seed).random((count, 3)) * size + corner


@pytest.mark.parametrize(
    "outliers",
    [
        uniform(300, (100, 100, 200), (0, 0, -230)),  # spread below the ground
        uniform(300, (100, 100, 1), (0, 0, -60)),  # a layer
        np.array([[1e9, 0, 0]]),
        np.array([[0, 0, 1e300]]),
        np.repeat([[50.0, 50, 500]], 300, axis=0),
    ],
    ids=["spread", "layer", "far", "farthest", "equal"],
)
def test_outliers_are_outside(outliers):
    tile = uniform(20_000, TILE)
    found = bounds(np.concatenate([tile, outliers]))
    assert found.inside(tile).all()
    assert found.inside(outliers).mean() < 0.2  # those next to the tile belong to it
    assert np.ptp(tile, axis=0) @ [1, 1, 0] == pytest.approx((found.high - found.low) @ [1, 1, 0], rel=0.02)


def test_connected_structures_are_inside():
    tower = uniform(120, (2, 2, 100), (50, 50, 0), seed=1)
    distant = uniform(3_000, TILE, (400, 0, 0), seed=2)  # a second tile has too many points for outliers
    cloud = np.concatenate([uniform(20_000, TILE), tower, distant])
    assert bounds(cloud).inside(cloud).all()
    few = uniform(999, TILE) * np.linspace(0, 1e6, 999)[:, None]
    assert bounds(few).inside(few * 1e9).all()


@settings(max_examples=60)
@given(
    arrays.arrays(
        np.float64,
        st.tuples(st.integers(1, 60), st.just(3)),
        elements=st.floats(-1e30, 1e30) | st.sampled_from([0.0, 1.0, 2.0, 1e-30, 1e15, 5e-324, 2e-311]),
    ),
    st.randoms(use_true_random=False),
)
def test_most_points_are_inside_in_any_order(points, random):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pointgrad.render.bounds.FEWEST", 10)
        check_most_points_are_inside(points, random)


def check_most_points_are_inside(points, random):
    found = bounds(points)
    inside = found.inside(points)
    # At each end of each axis, at most the tail and its interpolated neighbor are outside of the core.
    assert (~inside).sum() <= 6 * (TAIL * len(points) + 1)
    assert (points[inside] >= found.low).all()
    assert (points[inside] <= found.high).all()
    order = list(range(len(points)))
    random.shuffle(order)
    assert (bounds(points[order]).inside(points) == inside).all()


def test_outliers_do_not_shrink_the_picture():
    tile = uniform(20_000, TILE)
    below = uniform(300, (100, 100, 200), (0, 0, -290))
    look = {"size": (320, 240), "legend": False, "by": "label", "names": {0: "ground", 1: "noise"}}

    def ground(points, **options):
        labels = torch.from_numpy((points[:, 2] < 0).astype(np.int64))
        image = render.picture(Cloud(torch.from_numpy(points), labels=labels), **look, **options).astype(int)
        return int(((image < 250).any(2) & (image[..., 0] > image[..., 2])).sum()), image

    alone, _ = ground(tile)
    both, image = ground(np.concatenate([tile, below]))
    assert both > 0.9 * alone
    border = np.concatenate([image[0], image[:, 0], image[:, -1]])  # outliers outside of the frame are not drawn
    assert (border == 255).all()
    frames = render.turntable(
        Cloud(torch.from_numpy(np.concatenate([tile, below]))), frames=2, size=(160, 120), legend=False
    )
    plain = render.turntable(Cloud(torch.from_numpy(tile)), frames=2, size=(160, 120), legend=False)
    for with_outliers, without in zip(frames, plain, strict=True):
        assert (with_outliers < 250).any(2).sum() > 0.8 * (without < 250).any(2).sum()

"""Layers and networks are invariant to the order of points and clouds; layers on relative positions to translation.

Results are equal up to rounding, because matrix products add in an order that depends on the position of a row. All
tests use float64, so that a tolerance of 1e-9 separates rounding errors from bugs.
"""

import pytest
import torch
from hypothesis import strategies as st

from pointgrad import models
from pointgrad.nn import Level
from tests.models.test_models import CONFIGS
from tests.nn.norms import randomize_norms
from tests.nn.test_nn import CHANNELS, LAYERS
from tests.ops.properties.laws import law, permutations, reals

POINTS = 20
# These use absolute positions: all points are one group, whose center is the origin.
ABSOLUTE = {"set abstraction, whole"}
# These return one point per cloud, the origin.
ORIGIN = {*ABSOLUTE, "global pool"}


def close(received, expected):
    torch.testing.assert_close(received, expected, rtol=1e-9, atol=1e-9)


@st.composite
def orders(draw, size):
    """Permutations that keep the first point, with which sampling starts."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), 1 + draw(permutations(size - 1)).cpu()])


@pytest.fixture(scope="module", params=LAYERS)
def layer(request):
    torch.manual_seed(0)
    return request.param, randomize_norms(LAYERS[request.param]()).double().eval()


@law(reals(POINTS, 3), reals(POINTS, CHANNELS), orders(POINTS), st.integers(-64, 64), cost=2)
def test_layers(layer, points, features, order, shift):
    name, module = layer
    # Along a line, so that no ball has more than k points; otherwise the result would depend on the order.
    points, features = points.cpu() / 100, features.cpu()
    points[:, 0] += 0.3 * torch.arange(POINTS)
    with torch.no_grad():
        before = module(Level(points, features))
        after = module(Level(points[order], features[order]))
        rows = order if len(before.points) == POINTS else slice(None)  # samples are in the order of the picks
        close(after.points, before.points[rows])
        close(after.features, before.features[rows])
        moved = module(Level(points + shift, features))
        close(moved.points, before.points + (0 if name in ORIGIN else shift))
        if name not in ABSOLUTE:
            close(moved.features, before.features)


@pytest.fixture(scope="module", params=[name for name in CONFIGS if "parts" not in name])
def network(request):
    torch.manual_seed(0)
    return randomize_norms(models.build(**CONFIGS[request.param])).double().eval()


@law(reals(2, 40, 3), reals(2, 40, 2), orders(40), cost=8)
def test_networks(network, points, features, order):
    points, features = points.cpu() / 4, features.cpu()
    features = features if network.config["channels"] else None

    def run(change):
        with torch.no_grad():
            return network(change(points), None if features is None else change(features))

    before = run(lambda x: x)
    shuffled = before[:, order] if network.config["task"] == "segmentation" else before
    close(run(lambda x: x[:, order]), shuffled)
    close(run(lambda x: x.flip(0)), before.flip(0))

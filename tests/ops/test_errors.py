"""Bad input: every message says name, contract, received; on every backend, before any kernel runs."""

import re

import pytest
import torch

import pointgrad
from tests.cases import BAD_METADATA, BAD_VALUES
from tests.cases.base import ints

fps = pointgrad.farthest_point_sampling
points = torch.zeros(6, 3)
features = torch.zeros(6, 4)
index = torch.zeros(5, dtype=torch.int64)


METADATA = [
    *BAD_METADATA,
    (
        lambda: pointgrad.backend("gpu"),
        ValueError,
        "backend must be one of reference, cpu, triton, got 'gpu'",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), METADATA, ids=[message for *_, message in METADATA])
def test_metadata(call, error, message, place):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()


@pytest.mark.parametrize(("call", "message"), BAD_VALUES, ids=[message for _, message in BAD_VALUES])
def test_values(call, message, place):
    if place.device != "cpu":
        pytest.skip("values are read on the host for CPU tensors only")
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


def test_order_of_checks():
    """Several things wrong at once: type before shape before dtype before device before value."""
    with pytest.raises(TypeError, match=r"index must be a torch\.Tensor"):
        pointgrad.gather(torch.zeros(7), None)
    with pytest.raises(ValueError, match="features must be"):
        pointgrad.gather(torch.zeros(7, dtype=torch.complex64), index)
    with pytest.raises(TypeError, match="start must be"):
        fps(points.long(), 7, start=1.5)
    with pytest.raises(TypeError, match="index must be int64"):
        pointgrad.gather(features, index.to("meta", torch.float32))


def test_nothing_is_lost():
    """A call that fails leaves its arguments as they were."""
    before = features.clone()
    with pytest.raises(ValueError, match="index must be"):
        pointgrad.gather(features, ints(0, 99))
    assert torch.equal(features, before)


def test_errors_reach_compiled_code():
    compiled = torch.compile(pointgrad.gather, fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match=r"index must be -1 \(nothing here\) or in \[0, 6\), got 6"):
        compiled(features, ints(0, 6))

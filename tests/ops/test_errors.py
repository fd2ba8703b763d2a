"""Bad calls: every message states name, contract and received value, before any kernel runs."""

import re

import pytest
import torch
from torch import Tensor

import pointgrad
from pointgrad.catalog import OPERATORS
from pointgrad.catalog.base import ints

BAD_CALLS = [(op, bad) for op in OPERATORS for bad in op.errors]
features = torch.zeros(6, 4)
index = torch.zeros(5, dtype=torch.int64)


def _each(calls):
    return pytest.mark.parametrize(("op", "bad"), calls, ids=[f"{op.name}: {bad.message}" for op, bad in calls])


def moved(value, device):
    return value.to(device) if isinstance(value, Tensor) and value.device.type == "cpu" else value


@_each([(op, bad) for op, bad in BAD_CALLS if not bad.reads_values])
def test_metadata(op, bad, default_place):
    device = torch.empty(0, device=default_place.device).device
    args = [moved(value, device) for value in bad.args]
    kwargs = {name: moved(value, device) for name, value in bad.kwargs.items()}
    with pytest.raises(bad.error, match=f"^{re.escape(bad.message.replace(', cpu,', f', {device},'))}$"):
        op.call(*args, **kwargs)


@_each([(op, bad) for op, bad in BAD_CALLS if bad.reads_values])
def test_values(op, bad):
    with pytest.raises(bad.error, match=f"^{re.escape(bad.message)}$"):
        op.call(*bad.args, **bad.kwargs)


def test_backend_name():
    with pytest.raises(ValueError, match=r"^backend must be one of reference, cpu, triton, got 'gpu'$"):
        pointgrad.backend("gpu")


def test_order_of_checks():
    """With several errors at once: type before shape before dtype before device before value."""
    with pytest.raises(TypeError, match=r"index must be a torch\.Tensor"):
        pointgrad.gather(torch.zeros(7), None)
    with pytest.raises(ValueError, match="features must be"):
        pointgrad.gather(torch.zeros(7, dtype=torch.complex64), index)
    with pytest.raises(TypeError, match="start must be"):
        pointgrad.farthest_point_sampling(torch.zeros(6, 3, dtype=torch.int64), 7, start=1.5)
    with pytest.raises(TypeError, match="index must be int64"):
        pointgrad.gather(features, index.to("meta", torch.float32))


def test_a_refused_call_changes_nothing():
    before = features.clone()
    with pytest.raises(ValueError, match="index must be"):
        pointgrad.gather(features, ints(0, 99))
    assert torch.equal(features, before)


def test_compiled_code_raises_the_same_errors():
    compiled = torch.compile(pointgrad.gather, fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match=r"index must be -1 or in \[0, 6\), got 6"):
        compiled(features, ints(0, 6))

"""Calls of registered operators without the public function: traced and compiled programs, `torch.ops.pointgrad`.

`python -m reliability.fuzz raw` makes random ones; tests/reliability/test_fuzz.py runs a few of them.
"""

import re

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import pointgrad
from pointgrad.ops import registry

raw = torch.ops.pointgrad


def total(values, index):
    return pointgrad.scatter(values, index, 20)


def many_indices():
    return torch.randint(0, 20, (500_000,))


def test_message():
    contract = "features (N, C) and int64 index (M, ...), or (B, N, C) and (B, M, ...)"
    received = "features float32 (3,), index int64 (2,)"
    message = f"arguments of pointgrad::gather must be {contract}, got {received}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        raw.gather(torch.zeros(3), torch.zeros(2, dtype=torch.int64))


@pytest.mark.filterwarnings("ignore")  # torch warns that sizes become constants, and that tracing is deprecated
def test_traced_with_other_sizes():
    traced = torch.jit.trace(total, (torch.rand(20, 4), torch.arange(20)))
    with pytest.raises(Exception, match="arguments of pointgrad::gather_backward must be grad"):
        traced(torch.rand(3, 4), many_indices())


def test_graph_with_other_sizes():
    graph = make_fx(total)(torch.rand(20, 4), torch.arange(20))
    with pytest.raises(ValueError, match="arguments of pointgrad::gather_backward must be grad"):
        graph(torch.rand(3, 4), many_indices())


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_every_backend_checks(backend):
    with pointgrad.backend(backend), pytest.raises(ValueError, match="arguments of pointgrad::gather_backward must be"):
        raw.gather_backward(torch.rand(3, 4), many_indices(), 20, False)


@pytest.mark.parametrize("rows", [-1, 2**62])
def test_absurd_number_of_rows(rows):
    with pytest.raises((ValueError, MemoryError)):
        raw.gather_backward(torch.rand(3, 4), torch.arange(3), rows, False)


@pytest.mark.parametrize("counts", [[5, -1], [4, 4], [1, 1]])
@pytest.mark.parametrize("packed", [True, False])
def test_counts_that_do_not_fit_the_number_of_samples(counts, packed):
    points, counts = torch.rand(2, 8, 3), torch.tensor(counts)
    points, sizes = (points.reshape(16, 3), torch.tensor([0, 8, 16])) if packed else (points, None)
    for name, last in (("farthest_point_sampling", (None, True)), ("random_sampling", (torch.tensor(0),))):
        with pytest.raises(ValueError, match="counts must"):
            getattr(raw, name)(points, sizes, 3, counts, *last)


def test_values_of_a_backward():
    with pytest.raises(ValueError, match=r"index must be -1 or in \[0, 2\), got 3"):
        raw.gather_backward(torch.rand(2, 4), torch.tensor([0, 3]), 2, False)


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="with one GPU torch refuses a fake second one")
def test_common_device():
    """Triton launches on the current device, which is set to that of the tensors around every call."""
    with FakeTensorMode():
        first, second = (torch.empty(4, 3, device=f"cuda:{number}") for number in (0, 1))
    assert registry._common_device((None, 3, second)) == torch.device("cuda:1")
    assert registry._common_device((first, 3, second)) is None

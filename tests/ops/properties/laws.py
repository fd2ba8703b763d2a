"""Tests of laws: number of inputs, strategies for inputs, counts.

Laws run on the GPU if there is one, else on the CPU. `POINTGRAD_CASES` sets the number of inputs per law and
`POINTGRAD_BACKEND` the backend; `reliability/numbers/properties.py` uses both for long runs.
"""

import functools
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

CASES = int(os.environ.get("POINTGRAD_CASES", "6"))
COUNTS = Counter()  # number of inputs per law

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = st.sampled_from([torch.float32, torch.float64])


def law(*strategies, cost=1, **named):
    """Test a law on inputs that hypothesis draws; `cost` divides their number for expensive tests."""

    def decorate(test):
        @functools.wraps(test)
        def counted(*args, **kwargs):
            test(*args, **kwargs)
            COUNTS[os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]] += 1

        unhealthy = [HealthCheck.too_slow, HealthCheck.data_too_large]
        limits = settings(
            max_examples=max(1, CASES // cost), deadline=None, database=None, suppress_health_check=unhealthy
        )
        return limits(given(*strategies, **named)(counted))

    return decorate


def integers(*shape, most=4, dtype=torch.float32):
    """Tensors of small integers: sums and products are exact, and many values are equal."""
    values = arrays.arrays(np.int64, shape, elements=st.integers(-most, most))
    return values.map(lambda array: torch.from_numpy(array).to(DEVICE, dtype))


@st.composite
def clouds(draw, least=1, most=24, dims=(1, 3), reach=4):
    """Points (N, D) on a lattice: distances are exact, with many ties and equal points."""
    shape = (draw(st.integers(least, most)), draw(st.integers(*dims)))
    return draw(integers(*shape, most=reach))


@st.composite
def reals(draw, *shape, dtype=torch.float64):
    """Normally distributed numbers: only their seed is drawn."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)


def indices(rows, *shape):
    """Indices into `rows` rows, some of them -1."""
    return arrays.arrays(np.int64, shape, elements=st.integers(-1, rows - 1)).map(
        lambda array: torch.from_numpy(array).to(DEVICE)
    )


@st.composite
def offsets(draw, rows, most=5):
    """Offsets of segments of any size, including empty ones, that cover the rows."""
    cuts = sorted(draw(st.lists(st.integers(0, rows), max_size=most - 1)))
    return torch.tensor([0, *cuts, rows], device=DEVICE)


@st.composite
def permutations(draw, size):
    return torch.tensor(draw(st.permutations(range(size))), dtype=torch.int64, device=DEVICE)


@st.composite
def turns(draw, dims):
    """A rotation or reflection (D, D) that maps a lattice onto itself, without rounding."""
    axes = draw(st.permutations(range(dims)))
    signs = draw(st.lists(st.sampled_from([-1.0, 1.0]), min_size=dims, max_size=dims))
    return (torch.eye(dims)[list(axes)] * torch.tensor(signs).unsqueeze(1)).to(DEVICE)


def equal(received, expected):
    """Assert equal bits, except for the sign of zero."""
    torch.testing.assert_close(received, expected, rtol=0, atol=0, equal_nan=True)


@contextmanager
def deterministic() -> Iterator[None]:
    """Sum in a fixed order on a GPU too, for laws that compare bits."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)

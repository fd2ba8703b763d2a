"""How a law is tried: on how many inputs, which ones, and how many were counted.

Laws are tried on the GPU if there is one, else on the CPU. `POINTGRAD_CASES` says how many inputs each gets; together
with `POINTGRAD_BACKEND` it makes the long runs of `reliability/numbers/properties.py`.
"""

import functools
import os
from collections import Counter

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

CASES = int(os.environ.get("POINTGRAD_CASES", "6"))
COUNTS = Counter()  # how many inputs each law was tried on

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = st.sampled_from([torch.float32, torch.float64])


def law(*strategies, cost=1, **named):
    """Tries a test on inputs that hypothesis draws; one that costs more than others gets fewer."""

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
    """Tensors of small whole numbers: sums and products of them are exact, and many are equal."""
    values = arrays.arrays(np.int64, shape, elements=st.integers(-most, most))
    return values.map(lambda array: torch.from_numpy(array).to(DEVICE, dtype))


@st.composite
def clouds(draw, least=1, most=24, dims=(1, 3), reach=4):
    """(N, D) points on a lattice: distances are exact, ties and equal points are many."""
    shape = (draw(st.integers(least, most)), draw(st.integers(*dims)))
    return draw(integers(*shape, most=reach))


@st.composite
def reals(draw, *shape, dtype=torch.float64):
    """Ordinary numbers, as many as wanted: only their seed is drawn."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)


def indices(rows, *shape):
    """Into `rows` rows, -1 (nothing here) among them."""
    return arrays.arrays(np.int64, shape, elements=st.integers(-1, rows - 1)).map(
        lambda array: torch.from_numpy(array).to(DEVICE)
    )


@st.composite
def offsets(draw, rows, most=5):
    """Segments of any size, empty ones too, that cover the rows."""
    cuts = sorted(draw(st.lists(st.integers(0, rows), max_size=most - 1)))
    return torch.tensor([0, *cuts, rows], device=DEVICE)


@st.composite
def permutations(draw, size):
    return torch.tensor(draw(st.permutations(range(size))), dtype=torch.int64, device=DEVICE)


@st.composite
def turns(draw, dims):
    """(D, D): one of the rotations and reflections that carry a lattice onto itself. It rounds nothing."""
    axes = draw(st.permutations(range(dims)))
    signs = draw(st.lists(st.sampled_from([-1.0, 1.0]), min_size=dims, max_size=dims))
    return (torch.eye(dims)[list(axes)] * torch.tensor(signs).unsqueeze(1)).to(DEVICE)


def equal(received, expected):
    """The same bits, but for the sign of zero."""
    torch.testing.assert_close(received, expected, rtol=0, atol=0, equal_nan=True)

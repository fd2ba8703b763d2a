"""Sums into one number: the same bits for any number of threads, also where torch adds up the results of a kernel."""

import pytest
import torch

import pointgrad
from pointgrad import functional as F

ROWS = 100_003  # torch divides sums of more than 2^15 numbers among its threads
CLOUDS = 40_000


def target():
    return torch.arange(ROWS) % 5


CALLS = {
    "cross_entropy": lambda x: F.cross_entropy(x, target()),
    "cross_entropy-sum": lambda x: F.cross_entropy(x, target(), reduction="sum"),
    "cross_entropy-weights": lambda x: F.cross_entropy(x, target(), torch.linspace(0.1, 1, 5)),
    "cross_entropy-probabilities": lambda x: F.cross_entropy(x, x.detach().softmax(1)),
    "nll_loss": lambda x: F.nll_loss(x, target(), torch.linspace(0.1, 1, 5)),
    "mean": F.mean,
    "mean-float16": lambda x: F.mean(x.half()),
    "chamfer_distance": lambda x: pointgrad.chamfer_distance(
        x[: 2 * CLOUDS, :3], x[-2 * CLOUDS :, 2:],
        offsets=2 * torch.arange(CLOUDS + 1), target_offsets=2 * torch.arange(CLOUDS + 1),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_same_bits_for_any_number_of_threads(call):
    values = torch.randn(ROWS, 5)
    results = []
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        source = values.clone().requires_grad_()
        output = call(source)
        results.append((output.detach(), *torch.autograd.grad(output, source)))
    for result in results[1:]:
        assert all(torch.equal(actual, desired) for actual, desired in zip(result, results[0], strict=True))

"""The audit warns of in-place operations that overwrite a value which is read again later."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.inspect.auditing import statuses
from tests.support.planted import floats

pytestmark = pytest.mark.usefixtures("plain_torch")
RELU = nn.ReLU(inplace=True)


class Residual(nn.Module):
    """A residual block, which reads its first result before or after an in-place activation."""

    def __init__(self, reads_old, act):
        super().__init__()
        self.first, self.second, self.act, self.reads_old = nn.Linear(4, 4), nn.Linear(4, 4), act, reads_old

    def forward(self, x):
        skip = self.first(x)
        hidden = self.act(skip)
        return self.second(hidden) + (skip if self.reads_old else hidden)


def skip_after(x):
    h = x * 2
    return RELU(h).sin() + h


def skip_before(x):
    h = x * 2
    return h.sin() + RELU(h * 1) + h


def augmented(x):
    h = x * 2
    skip = h
    h += 1
    return h.sin() * skip


def running_sum(x):
    total = torch.zeros_like(x)
    for factor in (1, 2, 3):
        total += factor * x.sin()
    return total * x


def all_sums(x):
    total, sums = torch.zeros_like(x), []
    for factor in (1, 2, 3):
        total += factor * x
        sums.append(total)  # three times the same tensor
    return torch.stack(sums)


class RunningMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean += x.detach().mean(0)
        return (x - self.mean).square()


def second_of_two(x):
    h = F.relu(x * 2, inplace=True)
    h = h + 1
    return F.leaky_relu(h - 2, 0.1, inplace=True) + wrong(h - 2)


def wrong(h):
    return F.elu(h, inplace=True).cos() + h


def statement(x):
    h = x * 2
    F.relu(h, inplace=True)  # written in order to change h
    return h.sin() + h


def part(x):
    h = x * 2
    first = h[:2]
    first += 1  # a view: written in order to change h
    h[2:] *= 3
    return h * x


def method(x):
    h = x * 2
    h.clamp_(min=0).mul_(3)
    return h.sin() + h


@pytest.mark.parametrize(
    ("bad", "what", "code"),
    [
        (Residual(True, RELU), "relu with inplace=True", "hidden = self.act(skip)"),
        (Residual(True, nn.Sequential(nn.SiLU(inplace=True))), "silu with inplace=True", "hidden = self.act(skip)"),
        (Residual(True, nn.Dropout(0.5, inplace=True)), "dropout with inplace=True", "hidden = self.act(skip)"),
        (skip_after, "relu with inplace=True", "RELU(h).sin() + h"),
        (augmented, "the augmented assignment", "h += 1"),
        (all_sums, "the augmented assignment", "total += factor * x\n"),
        (second_of_two, "elu with inplace=True", "F.elu("),
    ],
    ids=["block", "sequential", "dropout", "function", "augmented", "list", "second"],
)
def test_value_read_after_it_was_overwritten(bad, what, code):
    row = statuses(bad, floats((5, 4)), ["in-place"], seeded=True)["in-place"]
    assert row.status == "warned"
    found = re.fullmatch(
        r"(.*) \(test_audit_overwriting.py:(\d+)\) overwrites a tensor that is read again later: out of place, "
        "the output differs: error .*",
        row.message,
    )
    assert found, row.message
    assert found[1] == what
    assert code in Path(__file__).read_text().splitlines(keepends=True)[int(found[2]) - 1]


@pytest.mark.parametrize(
    "good",
    [
        Residual(False, RELU),
        Residual(True, nn.ReLU()),
        nn.Sequential(nn.Linear(4, 4), RELU, nn.Linear(4, 2), RELU),
        skip_before,
        running_sum,
        RunningMean(),
        statement,
        part,
        method,
    ],
    ids=["block", "plain", "chain", "before", "sum", "buffer", "statement", "view", "method"],
)
def test_no_warning_without_such_a_read(good):
    row = statuses(good, floats((5, 4)), ["in-place"])["in-place"]
    assert (row.status, row.message) == ("passed", "")


def test_only_the_gradient_changes():
    def scaled(x):
        h = x.abs() + 1
        skip = h
        h *= 2
        return (skip - skip.detach()) * x  # zeros

    row = statuses(scaled, floats((5, 4)), ["in-place"])["in-place"]
    assert row.status == "warned"
    assert "the gradient of `x` differs" in row.message

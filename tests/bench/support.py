"""A row that doubles numbers, and implementations of it."""

import torch

from pointgrad.bench import harness, peers
from pointgrad.bench.comparison import Comparison, Implementation, Row, Setup

NUMBERS = torch.arange(6.0)


def check_doubled(received):
    if not torch.equal(received, 2 * NUMBERS):
        raise AssertionError("not twice the numbers")


def measure(comparison, table=(), quick=True, rounds=11):
    """The result of a row, and the peers."""
    found = peers.Peers("cpu", list(table))
    runner = harness.Harness(Setup("cpu", quick), found)
    return runner.measure(Row("double", lambda: comparison, rounds)), found


def peer(name, adapter, module="math", **fields):
    return peers.Peer(name, module, name, f"pip install {name}", {"double": adapter}, **fields)


def doubling(**fields):
    """A comparison whose own implementation is right."""
    work = ("double", {"numbers": NUMBERS})
    return Comparison(Implementation(lambda: 2 * NUMBERS), check_doubled, work=work, **fields)


def implementations(comparison, found=None):
    """Name and constructor of all implementations of a row but the compiled one, with those of the peers if given."""
    every = {"ours": comparison.ours, **comparison.plain, **comparison.related}
    for name, implementation in every.items():
        yield name, lambda implementation=implementation: implementation
    if found is not None and comparison.work:
        yield from found.implementations(*comparison.work)


class Counted:
    """A call that counts how often it is made."""

    def __init__(self, result):
        self.result, self.calls = result, 0

    def __call__(self):
        self.calls += 1
        return self.result

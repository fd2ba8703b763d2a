"""Operators called from threads, workers and autograd at once: short runs of `reliability/cpu/concurrency.py`."""

import sys
import threading

import pytest
import torch

import pointgrad
from pointgrad.ops import registry
from reliability.cpu import concurrency


def test_the_same_bits_as_alone_and_no_deadlock():
    results = concurrency.run([*concurrency.SITUATIONS], rounds=1, cases=2, limit=100)
    outcomes = {name: result["outcome"] for name, result in results.items()}
    assert outcomes == dict.fromkeys(concurrency.SITUATIONS, concurrency.SAME), results
    assert all(result["calls"] > 0 for result in results.values())


def test_a_planted_difference_is_seen():
    with pytest.raises(concurrency.Difference, match="planted"):
        concurrency.planted_difference(concurrency.Calls.__new__(concurrency.Calls), rounds=2)


def test_a_planted_deadlock_is_seen():
    result = concurrency.run(["planted_deadlock"], rounds=1, cases=1, limit=3)["planted_deadlock"]
    assert result["outcome"] == concurrency.HUNG
    assert "in planted_deadlock" in result["log"] or "in <lambda>" in result["log"]  # where it stands


def test_backends_of_two_threads_overlap():
    """One thread leaves its backend while another is still inside its own: that one stays, and then none is left."""
    inside, left = threading.Event(), threading.Event()

    def other():
        with pointgrad.backend("cpu"):
            inside.set()
            assert left.wait(30)

    thread = threading.Thread(target=other)
    with pointgrad.backend("reference"):
        thread.start()
        assert inside.wait(30)
    assert registry._forced == "cpu"
    left.set()
    thread.join()
    assert registry._forced is None


def test_several_threads_go_backward_through_one_graph():
    features = torch.rand(50, 2, 4, requires_grad=True)
    attended = pointgrad.neighbor_attention(features, features, features, torch.randint(0, 50, (50, 6)))
    (alone,) = torch.autograd.grad(attended.sum(), features, retain_graph=True)
    errors = []

    def go():
        try:
            for _ in range(40):
                (grad,) = torch.autograd.grad(attended.sum(), features, retain_graph=True)
                assert torch.equal(grad, alone)
        except Exception as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns as often as they can
    try:
        threads = [threading.Thread(target=go) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors

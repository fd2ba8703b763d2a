"""Concurrent calls of operators from threads, workers and autograd."""

import sys
import threading

import pytest
import torch

import pointgrad
from pointgrad.ops import registry
from reliability.cpu import concurrency


def test_concurrent_results_are_identical_to_serial_ones():
    results = concurrency.run([*concurrency.SITUATIONS], rounds=1, cases=2, limit=100)
    outcomes = {name: result["outcome"] for name, result in results.items()}
    assert outcomes == dict.fromkeys(concurrency.SITUATIONS, concurrency.SAME), results
    assert all(result["calls"] > 0 for result in results.values())


def test_planted_difference_is_detected():
    with pytest.raises(concurrency.Difference, match="planted"):
        concurrency.planted_difference(concurrency.Calls.__new__(concurrency.Calls), rounds=2)


def test_planted_deadlock_is_detected():
    result = concurrency.run(["planted_deadlock"], rounds=1, cases=1, limit=3)["planted_deadlock"]
    assert result["outcome"] == concurrency.HUNG
    assert "in planted_deadlock" in result["log"] or "in <lambda>" in result["log"]  # the stack


def test_backend_contexts_of_two_threads_may_overlap():
    """A thread leaves its context while another thread is still inside its own, which stays in effect."""
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


def test_backward_passes_of_one_graph_in_several_threads():
    features = torch.rand(50, 2, 4, requires_grad=True)
    attended = pointgrad.neighbor_attention(features, features, features, torch.randint(0, 50, (50, 6)))
    (expected,) = torch.autograd.grad(attended.sum(), features, retain_graph=True)
    errors = []

    def differentiate():
        try:
            for _ in range(40):
                (grad,) = torch.autograd.grad(attended.sum(), features, retain_graph=True)
                assert torch.equal(grad, expected)
        except Exception as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # switch threads as often as possible
    try:
        threads = [threading.Thread(target=differentiate) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors

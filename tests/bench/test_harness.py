"""The benchmark checks before it times, and survives failing implementations. No test asserts on time."""

import sys

import pytest
import torch

import pointgrad
from pointgrad.bench import clocks, harness, peers
from pointgrad.bench.comparison import Comparison, Declined, Implementation, Row, Setup, short
from tests.bench.support import NUMBERS, Counted, check_doubled, doubling, measure, peer


def test_wrong_result_of_ours_stops_the_row_before_timing():
    ours, plain = Counted(3 * NUMBERS), Counted(2 * NUMBERS)
    result, _ = measure(Comparison(Implementation(ours), check_doubled, {"plain": Implementation(plain)}))
    assert (result["state"], result["reason"]) == ("wrong", "not twice the numbers")
    assert "ms" not in result["implementations"]["ours"]
    assert (ours.calls, plain.calls) == (1, 0)


def test_exception_in_ours_fails_the_row():
    def broken():
        raise ValueError("no such device")

    result, _ = measure(Comparison(Implementation(broken), check_doubled))
    assert (result["state"], result["reason"]) == ("failed", "ValueError: no such device")


def test_peer_with_wrong_result_is_not_timed():
    right, wrong = Counted(2 * NUMBERS), Counted(2 * NUMBERS + 1)
    result, _ = measure(
        doubling(),
        [
            peer("right", lambda module, numbers: Implementation(right)),
            peer("wrong", lambda module, numbers: Implementation(wrong)),
            peer("short", lambda module, numbers: Implementation(lambda: NUMBERS[:3])),
        ],
    )
    assert result["state"] == "timed"
    implementations = result["implementations"]
    assert implementations["right"]["state"] == "timed"
    assert right.calls > 2
    assert implementations["wrong"] == {"kind": "peer", "state": "wrong", "reason": "not twice the numbers"}
    assert wrong.calls == 1
    assert implementations["short"]["state"] == "wrong"
    assert result["best"]["name"] == "right"


def test_exception_in_a_peer_is_reported_and_the_run_continues():
    def raises_in_adapter(module, numbers):
        raise RuntimeError("unknown signature")

    def raises_in_call(module, numbers):
        def call():
            raise AssertionError("numbers must be a CUDA tensor")

        return Implementation(call)

    def declines(module, numbers):
        raise Declined("all pairs")

    counted = Counted(2 * NUMBERS)

    def raises_in_third_call():
        if counted.calls == 2:
            raise MemoryError("out of memory")
        return counted()

    result, _ = measure(
        doubling(),
        [
            peer("adapter", raises_in_adapter),
            peer("call", raises_in_call),
            peer("declined", declines),
            peer("late", lambda module, numbers: Implementation(raises_in_third_call)),
            peer("fine", lambda module, numbers: Implementation(lambda: 2 * numbers)),
        ],
    )
    outcomes = {name: (each["state"], each.get("reason")) for name, each in result["implementations"].items()}
    assert outcomes == {
        "ours": ("timed", None),
        "adapter": ("failed", "RuntimeError: unknown signature"),
        "call": ("failed", "numbers must be a CUDA tensor"),  # not "wrong": there was no result to check
        "declined": ("declined", "all pairs"),
        "late": ("failed", "MemoryError: out of memory"),
        "fine": ("timed", None),
    }


def test_conversions_are_not_timed(monkeypatch):
    order = []
    monkeypatch.setattr(clocks, "milliseconds", lambda call, device: order.append("clock") or call() is None or 1.0)

    def adapter(module, numbers):
        order.append("prepare")
        return Implementation(lambda: 2 * numbers, lambda result: order.append("read") or result)

    measure(doubling(), [peer("other", adapter)])
    assert order.count("prepare") == order.count("read") == 1
    assert max(order.index("prepare"), order.index("read")) < order.index("clock")


def test_percentiles_and_ratios(monkeypatch):
    ticks = iter([0.0, 5, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11])  # the first call warms up
    monkeypatch.setattr(clocks, "milliseconds", lambda call, device: float(next(ticks)))
    result, _ = measure(Comparison(Implementation(lambda: 2 * NUMBERS), check_doubled), quick=False)
    assert result["implementations"]["ours"]["ms"] == {"p10": 2.0, "median": 6.0, "p90": 10.0}
    assert result["implementations"]["ours"]["rounds"] == 11


def test_slow_implementation_is_skipped_for_larger_sizes_of_a_series(monkeypatch):
    monkeypatch.setattr(clocks, "milliseconds", lambda call, device: 3000.0)
    slow = Counted(2 * NUMBERS)
    runner = harness.Harness(Setup("cpu", True), peers.Peers("cpu", []))
    plain = {"slow": Implementation(slow)}
    rows = [Row(f"{size}", lambda: doubling(plain=plain), series="all", size=size) for size in (1, 2)]
    first, second = map(runner.measure, rows)
    assert first["implementations"]["slow"]["state"] == "timed"
    assert second["implementations"]["slow"]["state"] == "declined"
    assert second["implementations"]["ours"]["state"] == "timed"


def test_compiled_form_is_measured_if_a_compiler_exists(monkeypatch):
    monkeypatch.setattr(harness, "_reset_compiler", lambda make: make)
    comparison = doubling(compiled=lambda: Implementation(lambda: 2 * NUMBERS))
    result, _ = measure(comparison, quick=False, rounds=1)
    assert result["implementations"]["compiled"]["kind"] == "compiled"
    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert harness.missing_compiler("cpu") == (
        "skipping compiled PyTorch: torch.compile needs a C++ compiler, found no /nowhere/g++"
    )
    assert harness.missing_compiler("cuda") == ""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which records the peak resident set size")
def test_peak_memory_includes_temporary_memory():
    def call():
        scratch = torch.ones(2**24)  # 64 MiB
        return scratch[:10] + 1

    peak = clocks.peak_mib(call, "cpu")
    if peak is None:
        pytest.skip("this kernel does not allow resetting the peak resident set size")
    assert 63 < peak < 80
    assert clocks.peak_mib(lambda: None, "cpu") < 8
    index = torch.zeros(2**18, dtype=torch.long)
    features = torch.ones(1, 64)
    for _ in range(3):  # the memory of a result counts even if it could be reused
        assert 63 < clocks.peak_mib(lambda: pointgrad.gather(features, index), "cpu") < 80


def test_peak_memory_is_none_where_the_system_does_not_report_it(monkeypatch, tmp_path):
    monkeypatch.setattr(clocks, "RESET", tmp_path / "no" / "clear_refs")
    assert clocks.peak_mib(lambda: torch.ones(9), "cpu") is None


@pytest.mark.parametrize(("number", "text"), [(1_600_000, "1.6M"), (100_000, "100k"), (4096, "4096"), (0, "0")])
def test_short_numbers(number, text):
    assert short(number) == text

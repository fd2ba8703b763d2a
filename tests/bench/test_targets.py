"""Performance targets: they refer to existing rows, and results are compared with them."""

import json

import pytest

from benchmarks import page, record, targets
from pointgrad.bench import clocks, families
from pointgrad.bench.comparison import Comparison, Implementation, Setup
from tests.bench.support import NUMBERS, Counted, check_doubled, measure


def measured(monkeypatch, times, moved=0):
    """A row whose implementations take the given milliseconds, and three times as many MiB."""
    duration = {}
    monkeypatch.setattr(clocks, "milliseconds", lambda call, device: duration[call])
    monkeypatch.setattr(clocks, "peak_mib", lambda call, device: 3.0 * duration[call])
    monkeypatch.setattr(clocks, "copy_ms", lambda moved, device, rounds: moved / 1e7)

    def implementation(ms):
        call = Counted(2 * NUMBERS)
        duration[call] = ms
        return Implementation(call)

    ours, *plain = times.items()
    plain = {name: implementation(ms) for name, ms in plain}
    comparison = Comparison(implementation(ours[1]), check_doubled, plain, moved=moved)
    return measure(comparison, quick=False, rounds=3)[0]


def met(row, target):
    return {each.requirement: each.met for each in targets.verdicts(row, target)}


def test_verdicts(monkeypatch):
    row = measured(monkeypatch, {"ours": 2.0, "slow": 9.0, "fast": 5.0}, moved=10_000_000)
    assert row["best"] == {"name": "fast", "ratio": 2.5}
    assert row["floor_ms"] == pytest.approx(1.0)
    assert row["times_floor"] == pytest.approx(2.0)
    target = targets.Target(times_faster=2.6, ms=2.0, times_less_memory=2.5, times_floor=1.9)
    assert met(row, target) == {"≥ 2.6x": False, "≤ 2 ms": True, "≤ 1.9x floor": False, "memory ≥ 2.5x": True}
    target = targets.Target(times_faster=4.5, than="slow", ms_above=-7.5)
    assert met(row, target) == {"≥ 4.5x slow": True, "≤ -7.5 ms over slow": False}


def test_requirements_that_were_not_measured_have_no_verdict(monkeypatch):
    row = measured(monkeypatch, {"ours": 2.0})
    target = targets.Target(times_faster=2.0, than="missing", ms_above=1.0, times_floor=1.25, times_less_memory=2.0)
    assert met(row, target) == {}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_targets_refer_to_existing_rows(device):
    for family, rows in targets.TARGETS[device].items():
        assert set(rows) <= {row.name for row in families.rows(family, Setup(device))}


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_targets_refer_to_measured_implementations(name):
    result = page.load(name)
    rows = {row["name"]: row for row in result["rows"]}
    for family in targets.TARGETS[result["device"]].values():
        for row, target in family.items():
            if target.than is not None:
                assert target.than in rows[row]["implementations"]


def write_result(path, *, ms, quick=False):
    ours = {"kind": "ours", "state": "timed", "ms": {"median": ms}, "ratio": 1.0, "peak_MiB": None}
    row = {"family": "scatter", "name": "voxelize 1M points", "state": "timed", "implementations": {"ours": ours}}
    path.write_text(json.dumps({"format": 2, "device": "cpu", "quick": quick, "rows": [row]}))
    return str(path)


@pytest.mark.parametrize(
    ("ms", "status", "output"),
    [
        (149.0, 0, "met    voxelize 1M points: ≤ 150 ms, measured 149\n0 targets missed\n"),
        (151.0, 1, "MISSED voxelize 1M points: ≤ 150 ms, measured 151\n1 targets missed\n"),
    ],
)
def test_program_reports_missed_targets(ms, status, output, tmp_path, capsys):
    assert targets.main([write_result(tmp_path / "result.json", ms=ms)]) == status
    assert capsys.readouterr().out == output


def test_program_rejects_quick_results(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        targets.main([write_result(tmp_path / "result.json", ms=1.0, quick=True)])
    assert "must be the result of a full run, got a quick one" in capsys.readouterr().err


def test_results_of_format_1_are_converted(tmp_path):
    contestants = {"ours": {"kind": "ours"}, "kernel": {"kind": "beside"}}
    row = {"suite": "gather", "name": "a row", "contestants": contestants, "asked": {"ms": {"at_most": 1.0}}}
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"format": 1, "rows": [row]}))
    implementations = {"ours": {"kind": "ours"}, "kernel": {"kind": "related"}}
    converted = {"family": "gather", "name": "a row", "implementations": implementations}
    assert record.read(path) == {"format": 2, "rows": [converted]}

"""A few cases of `python -m reliability.fuzz`, and planted errors that it must find."""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from pointgrad.catalog import Draw
from reliability.fuzz import FAMILIES, RAW, __main__, rounds
from reliability.fuzz.check import Bound, Mismatch, Tally, draw_and_check
from tests.support import planted_family
from tests.support.places import ROOT


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def first_failure(family, cases):
    # The same cases every time, so that a failure belongs to the change; `make fuzz` runs new ones.
    found = rounds.rounds(family, cases, seed=1)
    return next((one["failure"] for one in found if one["failure"]), None)


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family):
    assert first_failure(family, 20) is None


def test_raw_calls(monkeypatch):
    """In a process of its own: what goes wrong here crashes."""
    monkeypatch.setenv("PYTHONPATH", ":".join([str(ROOT), *sys.path]))
    options = argparse.Namespace(cases=300, device="cpu", backend="cpu")
    *_, result = __main__.run_family(RAW, options, seed=1)
    assert result["failures"] == result["crashes"] == []
    assert result["cases"] == 300
    assert min(result["outcome"].values()) > 30


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("right", None),
        ("differs", "must have the same bits"),
        ("writes", "values was changed by the call"),
        ("is_silent", "an invalid call is not refused"),
        ("is_vague", "got ValueError('bad input')"),
    ],
)
def test_planted_errors_are_found(name, message, monkeypatch):
    monkeypatch.setattr(rounds, "operators", lambda family: [planted_family.PLANTED[name]])
    failure = first_failure("planted", 300)
    assert failure is None if message is None else message in failure["error"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("flushes", [False, True])
def test_a_lost_result_is_found_in_every_dtype(dtype, flushes):
    logits = torch.randn(3, 65, 65).to(dtype)
    right = logits.softmax(-1)
    bound = Bound([logits, right], rounds=True, tally=Tally(), flushes=flushes)
    bound.check("output 0", right, right, right.double())
    with pytest.raises(Mismatch, match="differs by more than"):
        bound.check("output 0", torch.zeros_like(right), right, right.double())


def test_replay_from_choices(monkeypatch):
    table = [planted_family.PLANTED["differs"]]
    monkeypatch.setattr(rounds, "operators", lambda family: table)
    failure = first_failure("planted", 300)
    with pytest.raises(Mismatch, match="must have the same bits"):
        draw_and_check(Draw(failure["choices"], "cpu", False), table, "cpu", Tally(), lambda choices, arguments: None)


def test_crash_is_reported_with_its_case(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ":".join([str(ROOT), *sys.path]))
    options = argparse.Namespace(cases=1, device="cpu", backend="cpu")
    *_, result = __main__.run_family("tests.support.planted_family", options, seed=1)
    (crash,) = result["crashes"]
    assert crash["cause"] == "SIGSEGV"
    assert crash["choices"]["operator name"] == "dies"
    assert result["cases"] == 1


def test_interrupt_is_not_a_crash(tmp_path):
    """SIGINT for the program and its children, as a terminal sends it."""
    out = tmp_path / "fuzz.json"
    command = [sys.executable, "-m", "reliability.fuzz", "gather", "--cases", "100000", "--out", str(out)]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not out.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    gather = json.loads(out.read_text())["families"]["gather"]
    assert gather["cases"] > 0
    assert gather["crashes"] == []

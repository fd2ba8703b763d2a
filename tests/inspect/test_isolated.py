"""Checks that run in a child process."""

import ctypes
import os
import subprocess
import sys

import pytest
import torch

from tests.inspect.auditing import statuses
from tests.support.places import ROOT
from tests.support.planted import floats

pytestmark = pytest.mark.usefixtures("plain_torch")

forks = pytest.mark.skipif(
    not sys.platform.startswith("linux") or torch.cuda.is_available(), reason="checks fork on Linux without a GPU only"
)


@forks
def test_crash_is_reported_as_a_row():
    def careless(x):
        if not x.numel():
            ctypes.string_at(0)
        return x * 2

    row = statuses(careless, floats((4, 5)), ["sizes"])["sizes"]
    assert (row.status, row.message) == ("crashed", "the process was killed by SIGSEGV, at size 4 reduced to 0")


def test_without_fork_risky_checks_are_skipped(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = statuses(torch.tanh, floats((4, 5)), ["dtypes", "sizes", "wrong dtype", "wrong device"], isolated=False)
    assert [row.status for row in found.values()] == ["passed", "skipped", "skipped", "skipped"]
    assert "use `pointgrad check`" in found["sizes"].message


@forks
def test_fork_without_autograd_is_not_a_failure(monkeypatch):
    """torch disables autograd in forks of a process that has device threads."""
    fork, grad = os.fork, torch.autograd.grad

    def refuse(*args, **kwargs):
        raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing.")

    def fork_without_autograd():
        child = fork()
        torch.autograd.grad = grad if child else refuse
        return child

    monkeypatch.setattr(os, "fork", fork_without_autograd)
    names = ["dtypes", "sizes", "wrong dtype", "wrong device"]
    found = statuses(torch.tanh, floats((4, 5)), names, isolated=False)
    assert [row.status for row in found.values()] == ["passed", "skipped", "skipped", "skipped"]
    assert "use `pointgrad check`" in found["sizes"].message
    alone = statuses(torch.tanh, floats((4, 5)), names)
    assert [row.status for row in alone.values()] == ["passed"] * 4


@forks
def test_function_that_disables_autograd_is_not_skipped():
    """A disabled autograd must not be mistaken for a process in which autograd does not work."""

    def careless(x):
        result = x * 2 if len(x) else x + 1
        torch.set_grad_enabled(x.numel() == 20)
        return result

    row = statuses(careless, floats((4, 5)), ["sizes"], reference=lambda x: x * 2 + len(x) * 0, isolated=False)["sizes"]
    assert "cannot be forked" not in row.message
    assert row.status != "skipped"


def test_audit_after_fake_tensors():
    """In a CUDA build of torch without a GPU, fake tensors start device threads."""
    code = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    torch.ones(2)
from tests.support.planted import floats
from pointgrad.inspect.audit import Subject, rows
for row in rows(Subject(torch.tanh, floats((4, 5)), budget=0.25), ["gradcheck", "dtypes", "sizes", "wrong dtype"]):
    print(row.status, row.message)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["passed", "passed"]
    assert all(line.startswith("passed") or "use `pointgrad check`" in line for line in lines[2:]), lines

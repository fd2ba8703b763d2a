"""Checks that run in a child process."""

import ctypes
import os
import subprocess
import sys
import types

import pytest
import torch

from pointgrad.inspect.audit import Subject, isolated, numbers
from pointgrad.inspect.audit.subject import Skipped
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


NAMES = ["dtypes", "sizes", "wrong dtype", "wrong device"]


def reads_null_if_empty(x):
    if not x.numel():
        ctypes.string_at(0)
    return x * 2


def rows_of_4(dtype, device):
    return (torch.randn(4, 5, dtype=dtype, device=device),)


def test_lambda_is_not_run_in_a_spawned_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = statuses(torch.tanh, floats((4, 5)), NAMES, isolated=False)
    assert [row.status for row in found.values()] == ["passed", "skipped", "skipped", "skipped"]
    message = found["sizes"].message
    assert "floats.<locals>.<lambda>" in message
    assert message.endswith("or use `pointgrad check`")
    assert "\n" not in message


def test_spawned_checks(monkeypatch):
    """With a GPU, where this process cannot be forked."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    row = statuses(reads_null_if_empty, rows_of_4, ["sizes"], isolated=False)["sizes"]
    assert (row.status, row.message) == ("crashed", "the process was killed by SIGSEGV, at size 4 reduced to 0")
    module = statuses(torch.nn.Linear(5, 3), rows_of_4, ["wrong device"], isolated=False)["wrong device"]
    assert module.status == "passed", module


def test_spawned_process_that_hangs(monkeypatch):
    monkeypatch.setattr(isolated, "TIMEOUT", 0.0)
    monkeypatch.setattr(isolated, "STARTING", 0.0)
    with pytest.raises(isolated.Crashed, match="no response for 0 s"):
        isolated.spawn(numbers.sizes, Subject(torch.tanh, rows_of_4))


def test_function_that_is_missing_in_the_spawned_process():
    """Such as a function whose module finds other files, or is changed, when it is imported again."""
    temporary = types.ModuleType("temporary")
    exec("def double(x):\n    return x * 2", vars(temporary))
    sys.modules["temporary"] = temporary
    try:
        with pytest.raises(Skipped, match=r"cannot run in another one .*No module named 'temporary'"):
            isolated.spawn(numbers.sizes, Subject(temporary.double, rows_of_4))
    finally:
        del sys.modules["temporary"]


def test_functions_of_main_are_not_spawned(monkeypatch):
    def double(x):
        return x * 2

    double.__module__ = "__main__"
    with pytest.raises(Skipped, match="double is defined in __main__"):
        isolated.spawn(numbers.sizes, Subject(double, rows_of_4))


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
    found = statuses(torch.tanh, floats((4, 5)), NAMES, isolated=False)
    assert [row.status for row in found.values()] == ["passed", "skipped", "skipped", "skipped"]
    assert "use `pointgrad check`" in found["sizes"].message
    alone = statuses(torch.tanh, floats((4, 5)), NAMES)
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

"""`python -m pointgrad.compat run --cpu`, with a program that needs CUDA and compiled modules."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pointgrad.compat import __main__ as command
from tests.compat.test_install import run

PROGRAM = Path(__file__).parent / "foreign" / "raw_extensions" / "train.py"


def test_unchanged_program():
    """The program's own modules stay, compiled ones are replaced, and each redirection is reported once per process."""
    result = run("run", "--cpu", PROGRAM)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    losses = [float(line.removeprefix("loss ")) for line in lines[:5]]
    assert losses[-1] < losses[0]
    assert lines[5:] == ["scales True", "thread 2.0", "child 2.0 0.0"]
    reports = result.stderr.splitlines()
    assert all(line.startswith("pointgrad.compat: ") for line in reports)
    child = ["Tensor.cuda() returns the tensor", 'device="cuda" is redirected to the CPU']
    for kind in child:  # also reported by the child process
        assert reports.count(f"pointgrad.compat: {kind}") == 2
    once = {line.removeprefix("pointgrad.compat: ") for line in reports} - set(child)
    assert len(reports) == len(once) + 4
    assert once == {
        'Tensor.to("cuda") is redirected to the CPU',
        "Tensor.is_cuda is True",
        "Tensor.pin_memory() returns the tensor",
        "map_location of torch.load is redirected to the CPU",
        "torch.cuda.DoubleTensor is torch.DoubleTensor",
        "torch.cuda.Event measures time on the CPU",
        "torch.cuda.FloatTensor is torch.FloatTensor",
        "torch.cuda.IntTensor is torch.IntTensor",
        "torch.cuda.Stream does nothing",
        "torch.cuda.current_device() returns 0",
        "torch.cuda.device_count() returns 1",
        "torch.cuda.empty_cache() does nothing",
        "torch.cuda.set_device() does nothing",
        "torch.cuda.synchronize() does nothing",
    }


def test_nothing_changes_without_the_option():
    import pointgrad.compat._cpu

    assert type(torch.cuda) is ModuleType
    assert torch.cuda.synchronize.__module__ == "torch.cuda"
    assert torch.load.__module__ == "torch.serialization"
    assert not isinstance(torch.cuda, pointgrad.compat._cpu._Cuda)
    if not torch.cuda.is_available():
        with pytest.raises((AssertionError, RuntimeError)):
            torch.zeros(1, device="cuda")


@pytest.mark.parametrize(("option", "reason"), [("--cpu=yes", "--cpu"), ("--gpu", "--gpu")])
def test_invalid_option(option, reason, capsys):
    assert command.main(["run", option, sys.executable]) == 2
    expected = f"pointgrad.compat: run has no option {reason}; options of the script must follow its name\n"
    assert capsys.readouterr().err == expected

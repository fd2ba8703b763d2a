"""`pointgrad check`: exit statuses, one-line reasons and report files for correct and incorrect functions."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pointgrad
from pointgrad.inspect.audit import CHECKS, InputsError, Subject

pytest.importorskip("tyro")

from pointgrad.cli import functions, main
from pointgrad.cli.target import TargetError

SUBJECT = '''
import ctypes, os, sys, time, torch

class Good(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        print("loud " * 20_000)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * (1 - y * y)

class Bad(Good):
    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * (1 + y * y)

def crash(x):
    print("last output", file=sys.stderr, flush=True)
    ctypes.string_at(0)

def crashes_late(x):
    """Crashes in one check only."""
    frame = sys._getframe()
    while frame := frame.f_back:
        if frame.f_code.co_name == "saved":
            crash(x)
    return x * 2

def products(a, b): return a @ b

def own_inputs(x): return x * 2
def own_inputs_inputs(dtype, device): return torch.ones(2, 9, dtype=dtype)

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x): return x * self.weight

def Layer_inputs(dtype, device): return torch.ones(5, 2, dtype=dtype)

class Needy(torch.nn.Module):
    def __init__(self, size): super().__init__()

def hangs(x):
    while True: time.sleep(1)

def raises(x):
    raise ValueError("first line\\nsecond line")

def no_arguments(): return 1
def takes_numbers(n: int, m: float): return n * m
def greets(name): return f"hello {name}"
def bad_inputs(x): return x * 2
def bad_inputs_inputs(dtype, device): raise KeyError("nowhere")
number = 3
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("subjects")
    (folder / "subjects.py").write_text(SUBJECT)
    (folder / "syntax.py").write_text("def f(:\n")
    (folder / "leaves.py").write_text("import sys; sys.exit(3)\n")
    (folder / "dies.py").write_text("import os; os.abort()\n")
    (folder / "needs.py").write_text("import something_that_is_not_there\n")
    return folder


@pytest.fixture
def check(folder, monkeypatch, capfd):
    """Run the command in the folder, and return exit status, stdout and stderr."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(Path(pointgrad.__file__).parents[1]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*arguments):
        status = main(["check", *arguments])
        shown, error = capfd.readouterr()
        assert "Traceback" not in shown + error
        return status, shown, error

    return run


def test_correct_function(folder):
    """The command as users start it."""
    environment = {**os.environ, "PYTHONPATH": str(Path(pointgrad.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "pointgrad",
        "check",
        "subjects:Good",
        "--shapes",
        "3,4",
        "--only",
        "runs",
        "gradcheck",
    ]
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert (process.returncode, process.stderr) == (0, "")
    lines = process.stdout.splitlines()  # without the output of the function
    assert lines[0] == "audit of subjects:Good"
    assert [line.split() for line in lines[1:3]] == [["passed", "runs"], ["passed", "gradcheck"]]
    assert lines[3] == "ok: 2 passed"


def test_incorrect_function_and_report_files(check, folder):
    status, shown, error = check("subjects.py:Bad", "--json", "report.json", "--html", "report.html")
    assert (status, error) == (1, "")
    assert re.search(r"^  failed +gradcheck", shown, re.MULTILINE)
    report = json.loads((folder / "report.json").read_text())
    assert report["ok"] is False
    assert [row["name"] for row in report["rows"]] == list(CHECKS)
    assert {"python", "torch"} <= set(report["versions"])
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_a_crash_does_not_stop_the_other_checks(check):
    only = ["--only", "runs", "saved", "timing"]
    status, shown, error = check("subjects:crashes_late", "--shapes", "3,4", *only)
    assert status == 5
    assert error == "pointgrad check: saved: the process was killed by SIGSEGV (last output)\n"
    assert [line.split()[:2] for line in shown.splitlines()[1:4]] == [
        ["passed", "runs"],
        ["crashed", "saved"],
        ["passed", "timing"],
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["nothing"], 2, "target must be package.module:function, got 'nothing'"),
        (["leaves:f"], 3, "cannot import leaves: SystemExit: 3"),
        (["syntax:f"], 3, "cannot import syntax: SyntaxError"),
        (["dies:f"], 5, "importing dies:f: the process was killed by SIGABRT"),
        (["subjects:greets"], 4, "it returns str; give --shapes, or --inputs"),
        (["subjects:crash"], 5, "making inputs for subjects:crash: the process was killed by SIGSEGV (last output)"),
        (["subjects:crash", "--shapes", "3"], 5, "runs: the process was killed by SIGSEGV (last output)"),
        (["subjects:hangs", "--shapes", "3", "--timeout", "3"], 5, "runs: no response for 3 s"),
        (["subjects:Good", "--json", "no/where.json"], 2, "cannot write no/where.json: no such folder: no"),
        (["subjects:Good", "--only", "gradients"], 2, "--only must be some of 'runs', 'gradcheck', "),
        (["subjects:Good", "--shapes", "3", "--inputs", "a:b"], 2, "give --inputs or --shapes, not both"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)  # fmt: skip
def test_errors_have_a_status_and_a_one_line_reason(check, arguments, status, reason):
    received, _, error = check(*arguments)
    assert received == status
    assert error.startswith("pointgrad check: ")
    assert error.count("\n") == 1  # one line
    assert reason in error


@pytest.mark.parametrize(
    ("name", "error", "reason"),
    [
        ("missing", TargetError, "subjects:missing: subjects has no 'missing'"),
        ("number", TargetError, "subjects:number must be a function, got int"),
        ("Needy", TargetError, "subjects:Needy cannot be constructed without arguments: TypeError"),
        ("no_arguments", InputsError, "it takes no tensors: it has no required arguments; give --shapes, or"),
        ("takes_numbers", InputsError, "it takes no tensors: its arguments are n: int, m: float"),
        ("raises", InputsError, r"with random (5, 7) tensors it raises ValueError: first line (subjects.py:"),
        ("bad_inputs", InputsError, "make_inputs(torch.float64, 'cpu') failed: KeyError: 'nowhere' (subjects.py:"),
    ],
)
def test_missing_inputs_are_explained(folder, monkeypatch, name, error, reason):
    """Errors of the child process, tested without starting one."""
    monkeypatch.chdir(folder)
    spec = {"target": f"subjects:{name}", "inputs": None, "shapes": []}

    def find():
        fn = functions.load_function(spec["target"])
        return Subject(fn, inputs_of(fn, spec)).inputs(torch.float64)

    with pytest.raises(error, match=re.escape(reason)):
        find()


def inputs_of(fn, spec):
    return functions.find_inputs(spec["target"], spec["inputs"], spec["shapes"]) or functions.guess_inputs(fn)


def test_inputs_are_found(folder, monkeypatch):
    monkeypatch.chdir(folder)

    def shapes(name, **spec):
        spec = {"target": f"subjects:{name}", "inputs": None, "shapes": [], **spec}
        fn = functions.load_function(spec["target"])
        return [tuple(leaf.shape) for leaf in Subject(fn, inputs_of(fn, spec)).inputs(torch.float64)]

    assert shapes("Good") == [(5, 7)]
    assert shapes("products") == [(5, 5), (5, 5)]
    assert shapes("own_inputs") == [(2, 9)]
    assert shapes("Good", shapes=["3,4"]) == [(3, 4)]
    assert shapes("Good", inputs="subjects:own_inputs_inputs") == [(2, 9)]
    assert shapes("Layer") == [(2,), (5, 2)]  # the parameter first
    with pytest.raises(TargetError, match="--shapes must be sizes separated by commas, such as 2,1024,3, got '3,x'"):
        shapes("Good", shapes=["3,x"])


def test_help_lists_the_exit_statuses(capfd):
    with pytest.raises(SystemExit) as end:
        main(["check", "--help"])
    shown, _ = capfd.readouterr()
    assert end.value.code == 0
    assert "Exit status: 0 if no check failed; 1 if one failed; 2" in " ".join(re.sub(r"[│|]", " ", shown).split())

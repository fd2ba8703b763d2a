"""`python -m reliability.foreign` on a small made-up library, and the table that shows its results."""

import dataclasses
import json
import sys

import pytest

from reliability import page
from reliability.foreign import __main__ as foreign
from reliability.foreign.suites import SUITES, Suite

MADE_UP = Suite(
    name="made_up",
    version="made_up/__init__.py",
    copied=("tests", "setup.cfg"),
    tests=("tests",),
    helpers={"torch_cluster.made_up_helper": "made_up/helper.py"},
    out_of_scope={"*::test_graph*": "graph algorithm", "tests/test_mesh.py": "meshes"},
    compare=True,
)
FILES = {
    "made_up/__init__.py": "raise ImportError('the library itself is not copied')\n__version__ = '1.2'\n",
    "made_up/helper.py": "ONE = 1\n",
    "setup.cfg": "[tool:pytest]\naddopts = --no-such-option\n",
    "tests/__init__.py": "",
    "tests/common.py": "DEVICE = 'cpu'\n",
    "tests/test_mesh.py": "import made_up.meshes\n",
    "tests/test_import.py": "import made_up\n",
    "tests/test_calls.py": """
import pytest
import torch_cluster
from torch_cluster.made_up_helper import ONE
import torch

from .common import DEVICE

@pytest.mark.parametrize("k", [ONE, 2])
def test_knn(k):
    x = torch.rand(5, 3, device=DEVICE)
    assert torch_cluster.knn(x, x, k).shape == (2, 5 * k)
    assert torch_cluster.knn.__module__.startswith("pointgrad.compat")

def test_graph():
    assert False

def test_refused():
    raise NotImplementedError("made_up.walk works on graphs, not on points")

def test_only_with_compat():
    raise ValueError("\\nfirst | line\\nsecond line")
""",
    "tests/test_plain.py": """
import os
import signal
import sys
import unittest

import pytest

def test_passes():
    pass

def test_fails():
    assert 1 == 2

@pytest.mark.skipif(True, reason="no such package")
def test_skipped():
    assert False

@pytest.mark.xfail(reason="known defect")
def test_expected():
    assert False

def test_gpu():
    raise AssertionError("Torch not compiled with CUDA enabled")

@pytest.fixture
def broken():
    yield
    raise OSError("teardown")

def test_teardown(broken):
    pass

def test_crashes():
    os.kill(os.getpid(), signal.SIGKILL)

class TestCase(unittest.TestCase):
    def test_subtests(self):
        for i in range(3):
            with self.subTest(i=i):
                self.assertNotEqual(i, 1)

def test_worker():
    raise ValueError("Caught ValueError in DataLoader worker process 0.\\nOriginal Traceback:\\nValueError: the reason")

@pytest.mark.skipif("torch" not in sys.modules, reason="without compat")
def test_refused():
    raise NotImplementedError("made_up.sample works on graphs, not on points")
""",
}
HANGS = {
    "tests/test_exit.py": "import os\nos._exit(7)\n",
    "tests/test_hang.py": "import time\ndef test_hang():\n    time.sleep(1000)\ndef test_after():\n    pass\n",
}


@pytest.fixture
def sources(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign, "SUITES", (MADE_UP,))
    return written(tmp_path / "sources", FILES)


def written(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_outcomes_are_counted_and_shown(sources, tmp_path, monkeypatch, capsys):
    out = tmp_path / "foreign.json"
    kept = {"a_library 1.0": {"kept": True}}
    out.write_text(json.dumps(kept))
    monkeypatch.setattr(sys, "argv", ["foreign", str(sources), "--out", str(out)])
    with pytest.raises(SystemExit, match="1"):
        foreign.main()
    results = json.loads(out.read_text())
    record = results.pop("made_up 1.2")
    assert results == kept
    assert record["passed"] == 3
    refusal = "NotImplementedError: made_up.walk works on graphs, not on points"
    assert record["failed"] == [
        {"test": "tests/test_calls.py::test_refused", "reason": refusal},
        {"test": "tests/test_calls.py::test_only_with_compat", "reason": "ValueError: first | line"},
    ]
    assert record["failed_without_compat"] == [
        {"test": "tests/test_import.py", "reason": "ModuleNotFoundError: No module named 'made_up'"},
        {"test": "tests/test_plain.py::test_fails", "reason": "assert 1 == 2"},
        {"test": "tests/test_plain.py::test_teardown", "reason": "OSError: teardown"},
        {"test": "tests/test_plain.py::test_crashes", "reason": "crashed with SIGKILL"},
        {"test": "tests/test_plain.py::TestCase::test_subtests", "reason": "AssertionError: 1 == 1"},
        {"test": "tests/test_plain.py::test_worker", "reason": "ValueError: the reason"},
    ]
    assert record["skipped"] == {"no such package": 1, "known defect": 1, "needs CUDA": 1}
    assert record["out_of_scope"] == {"graph algorithm": 2, "meshes": 1}
    assert "made_up 1.2: {'passed': 3, 'failed': 2, 'skipped': 3, 'out_of_scope': 3}" in capsys.readouterr().out
    assert {path.name for path in sources.rglob("*")} == {name for path in FILES for name in path.split("/")}

    monkeypatch.setattr(page, "load", lambda _: {"made_up 1.2": record})
    shown = page.foreign()
    assert "| `made_up` 1.2 | 3 | 2 | 6 | 3 | 3 |" in shown
    assert "| `made_up` 1.2 | `tests/test_calls.py::test_only_with_compat` | ValueError: first \\| line |" in shown


def test_hanging_tests_and_ending_processes_are_failures(sources, tmp_path):
    written(sources, HANGS)
    foreign.copy(MADE_UP, sources, tmp_path / "tests")
    only = ["tests/test_exit.py", "tests/test_hang.py::test_hang", "tests/test_hang.py::test_after"]
    assert foreign.outcomes(MADE_UP, sources, tmp_path, 8, only) == {
        "tests/test_exit.py": ("failed", "ended with status 7"),
        "tests/test_hang.py::test_hang": ("failed", "made no progress for 8 s"),
        "tests/test_hang.py::test_after": ("passed", ""),
    }


def test_pattern_that_matches_nothing_is_rejected(sources, tmp_path, monkeypatch):
    patterns = {"*::test_fails": "graph algorithm", "*::test_removed": "graph algorithm"}
    suite = dataclasses.replace(MADE_UP, out_of_scope=patterns)
    monkeypatch.setattr(foreign, "COMPAT", [])  # faster
    with pytest.raises(SystemExit, match=r"out_of_scope must match tests, got '\*::test_removed', which matches none"):
        foreign.run(suite, sources)


def test_unknown_sources_are_rejected(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["foreign", str(tmp_path), "--out", str(tmp_path / "foreign.json")])
    with pytest.raises(SystemExit, match="2"):
        foreign.main()
    names = ", ".join(suite.name for suite in SUITES)
    assert f"FOLDER must contain the sources of one of {names}, got '{tmp_path}'" in capsys.readouterr().err

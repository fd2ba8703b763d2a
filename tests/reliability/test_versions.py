"""Records of runs with other versions of Python and torch, and regressions that only occurred with old versions."""

import json
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules import module

from pointgrad.catalog import FAMILIES
from pointgrad.inspect.audit import rows
from pointgrad.inspect.audit.subject import Subject
from pointgrad.nn.shared_mlp import is_plain
from pointgrad.ops import native
from reliability.install import smoke, versions, wheels

REPORT = """<testsuites><testsuite tests="6" failures="1" errors="1" skipped="2" time="3.4">
<testcase name="a"/><testcase name="b"/><testcase name="c"><failure message="m"/></testcase>
<testcase name="d"><error message="m"/></testcase>
<testcase name="e"><skipped message="no GPU"/></testcase><testcase name="f"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


def test_outcomes_in_a_report_are_counted(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert versions.counts(report) == {
        "passed": 2, "skipped": 2, "failed": 2, "seconds": 3, "skips": {"no GPU": 2},
    }  # fmt: skip


def test_report_without_tests_is_rejected(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite tests="0" failures="0" errors="0" skipped="0" time="0"/></testsuites>')
    with pytest.raises(ValueError, match="at least one test"):
        versions.counts(report)


def test_entry_replaces_only_the_one_of_its_own_versions():
    old = [
        {"python": "3.12.1", "torch": "2.10.0", "selection": "", "passed": 1},
        {"python": "3.12.1", "torch": "2.9.0", "selection": "", "passed": 2},
        {"python": "3.10.13", "torch": "2.10.0", "selection": "-k fast", "passed": 3},
    ]
    entries = versions.merged(old, {"python": "3.12.1", "torch": "2.10.0", "selection": "", "passed": 4})
    assert [entry["passed"] for entry in entries] == [3, 2, 4]  # sorted by version: 2.9 before 2.10
    entries = versions.merged(entries, {"python": "3.13.15t", "torch": "2.12.0", "selection": "", "passed": 5})
    assert [entry["passed"] for entry in entries] == [3, 2, 4, 5]


def wheel(path: Path, *names: str, description: str = "# pointgrad") -> Path:
    metadata = f"Metadata-Version: 2.4\nDescription-Content-Type: text/markdown\n\n{description}\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pointgrad-1.dist-info/METADATA", metadata)
        for name in names:
            archive.writestr(name, "")
    return path


PARTS = (
    "pointgrad/__init__.py",
    "pointgrad/py.typed",
    "pointgrad/_native.so",
    "pointgrad-1.dist-info/licenses/LICENSE",
)


def test_wheels_with_wrong_content_are_rejected(tmp_path):
    good = wheels.wheel_facts(wheel(tmp_path / "good.whl", *PARTS))
    assert (good["module"], good["files"]) == ("_native.so", 5)
    for wrong in ("tests/ops/test_gather.py", "pointgrad/ops/gather/cpu.cpp", "pointgrad/ops/native/module.h"):
        with pytest.raises(ValueError, match="must not contain"):
            wheels.wheel_facts(wheel(tmp_path / "bad.whl", *PARTS, wrong))
    for missing in PARTS:
        with pytest.raises(ValueError, match="must contain"):
            wheels.wheel_facts(wheel(tmp_path / "bad.whl", *(part for part in PARTS if part != missing)))
    with pytest.raises(ValueError, match="README"):
        wheels.wheel_facts(wheel(tmp_path / "bad.whl", *PARTS, description=""))


def test_platform_tag_is_read_from_auditwheel():
    output = """a.whl is consistent with the following platform tag:
    "manylinux_2_34_x86_64".
    The wheel references external versioned symbols in these
    system-provided shared libraries: libc.so.6 with versions
    {'GLIBC_2.4', 'GLIBC_2.14', 'GLIBC_2.9'}, libstdc++.so.6 with versions {'GLIBCXX_3.4.9', 'GLIBCXX_3.4.11'}"""
    assert wheels.platform_tag(output) == {
        "tag": "manylinux_2_34_x86_64", "needs": {"GLIBC": "2.14", "GLIBCXX": "3.4.11"},
    }  # fmt: skip
    with pytest.raises(ValueError, match="platform tag"):
        wheels.platform_tag("cannot repair")


FIRST = [next(ops[0].cases()) for ops in FAMILIES.values() if ops[0].samples]


@pytest.mark.skipif(native.module is None, reason="the C++ module is not built")
def test_smoke_test_calls_the_kernels_of_every_family():
    found = smoke.try_cases(FIRST)
    assert len(found["cases"]) == len(FIRST)
    assert {"gather_backward", "neighbor_search", "large_buffer"} <= set(found["entered"])
    assert native.module is not None
    assert not isinstance(native.module, smoke.Counted)


def test_smoke_test_rejects_a_missing_or_wrong_module(monkeypatch):
    class Wrong:
        def __getattr__(self, name):
            return lambda *args, **kwargs: (0, 0)

    monkeypatch.setattr(native, "module", Wrong())
    gather = next(case for case in FIRST if case.op.name == "gather")
    monkeypatch.setattr(native, "empty", lambda like, shape, dtype=None: torch.zeros(shape, dtype=dtype or like.dtype))
    with pytest.raises(AssertionError, match="gather"):
        smoke.try_cases([gather])
    monkeypatch.setattr(native, "module", None)
    with pytest.raises(RuntimeError, match="must be importable"):
        smoke.try_cases([gather])


@pytest.mark.parametrize(
    "register",
    [
        module.register_module_forward_hook,
        module.register_module_forward_pre_hook,
        module.register_module_full_backward_hook,
        module.register_module_full_backward_pre_hook,
    ],
    ids=lambda register: register.__name__,
)
def test_layer_is_not_plain_while_global_hooks_are_registered(register):
    layer = nn.Linear(2, 2)
    assert is_plain(layer, nn.Linear)
    handle = register(lambda *args: None)
    try:
        assert not is_plain(layer, nn.Linear)
    finally:
        handle.remove()
    assert is_plain(layer, nn.Linear)


@pytest.mark.parametrize(("error", "status"), [(torch.linalg.LinAlgError, "passed"), (RuntimeError, "failed")])
def test_audit_ignores_singular_matrices_of_expanded_inputs(error, status):
    """Expanded rows are equal, and whether such a matrix counts as singular depends on rounding."""

    def invert(matrix):
        if 0 in matrix.stride():
            raise error("cannot be inverted")
        return matrix * 2

    subject = Subject(invert, lambda dtype, device: (torch.randn(4, 4, dtype=dtype, device=device),), budget=0.25)
    (row,) = rows(subject, ["layouts"])
    assert row.status == status


RESULTS = Path(__file__).parents[2] / "reliability" / "results"


@pytest.mark.parametrize("path", [path for path in RESULTS.glob("*.json") if path.stem in ("versions", "wheels")])
def test_committed_results_passed(path):
    entries = json.loads(path.read_text())
    assert entries
    for entry in entries:
        assert {"python", "torch", "numpy", "commit", "date"} <= set(entry)
        assert entry.get("failed", 0) == 0
        assert entry.get("passed", 1) > 0

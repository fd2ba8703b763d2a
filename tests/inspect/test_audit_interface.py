"""Arguments, report and documented examples of the audit."""

import doctest
import json
import re

import pytest
import torch

from pointgrad.inspect import Report, audit
from pointgrad.inspect.audit import InputsError, Subject, rows
from tests.inspect.auditing import statuses
from tests.support.planted import PLANTED, floats

pytestmark = pytest.mark.usefixtures("plain_torch")


@pytest.mark.parametrize(
    ("make_inputs", "message"),
    [
        (lambda dtype, device: (1, "a"), "make_inputs must return at least one tensor, got int, str"),
        (lambda dtype, device: 1 / 0, "failed: ZeroDivisionError: division by zero"),
        (lambda dtype: torch.zeros(3), "failed: TypeError"),
    ],
)
def test_make_inputs_errors(make_inputs, message):
    with pytest.raises(InputsError, match=re.escape(message)):
        audit(torch.tanh, make_inputs)


def test_arguments_are_checked():
    with pytest.raises(TypeError, match="fn must be callable, got int"):
        audit(3, floats((3,)))
    with pytest.raises(TypeError, match="reference must be callable, got str"):
        audit(torch.tanh, floats((3,)), "torch.tanh")
    for only, received in ((["runs", "gradients"], "gradients"), ("runs", "runs")):
        with pytest.raises(ValueError, match=rf"only must be a list of some of 'runs', .*, got '{received}'"):
            audit(torch.tanh, floats((3,)), only=only)


def test_only_some_checks():
    report = audit(torch.tanh, floats((3,)), only=["layouts", "runs"])
    assert [row.name for row in report.rows] == ["runs", "layouts"]  # in the order of CHECKS
    assert report.ok


def test_inputs_that_ignore_the_dtype():
    assert statuses(torch.tanh, lambda dtype, device: torch.randn(4), ["gradcheck"])["gradcheck"].status == "passed"


def test_report():
    planted = next(each for each in PLANTED if each.name == "wrong sign")
    report = Report(
        "<b>f", list(rows(Subject(planted.bad, planted.inputs), ["runs", "gradcheck", "reference"])), {"torch": "2"}
    )
    assert not report.ok
    assert report.summary == "NOT OK: 1 passed, 1 failed, 1 skipped"
    lines = str(report).splitlines()
    assert lines[0] == "audit of <b>f"
    assert lines[2].split() == ["failed", "gradcheck", "the", "gradient", "of", "`x`", "has", "the", "opposite", "sign"]
    assert all(len(line) <= 120 for line in lines)
    content = json.loads(report.json())
    assert content["ok"] is False
    assert [row["status"] for row in content["rows"]] == ["passed", "failed", "skipped"]
    page = report.html()
    assert "&lt;b&gt;f" in page
    assert "<b>f" not in page
    assert page.count("<tr") == 3
    assert "http" not in page  # self-contained


def test_documented_examples_run():
    import pointgrad.inspect

    ran = 0
    for name in ("audit", "Recorder", "ActivationPenalty", "GradientWatcher"):
        value = getattr(pointgrad.inspect, name)
        names = {"torch": torch, **{key: getattr(pointgrad.inspect, key) for key in dir(pointgrad.inspect)}}
        for example in doctest.DocTestFinder(recurse=False).find(value, name, globs=names):
            result = doctest.DocTestRunner().run(example)
            assert result.failed == 0
            ran += result.attempted > 0
    assert ran == 4

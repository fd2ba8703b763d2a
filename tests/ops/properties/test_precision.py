"""Rounding errors in 16 bits: at most twice those of plain PyTorch, both against float64."""

import inspect
from dataclasses import replace

import pytest
import torch

import pointgrad
from pointgrad import functional
from pointgrad.catalog import CASES, Make
from pointgrad.catalog.magnitudes import is_float
from reliability.numbers import precision
from reliability.numbers.precision import SUBJECTS
from tests.support import planted


@pytest.mark.parametrize("dtype", precision.JUDGED, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_at_most_twice_the_error_of_plain_pytorch(subject, dtype, default_place):
    rows = precision.measure(subject, dtype, default_place.device, rows=60, seeds=range(2))
    sources = subject.op.sources(subject.build(Make(dtype, rows=60)))
    assert {row["what"] for row in rows} == {"result", *(f"gradient of {name}" for name in sources)}
    assert [row for row in rows if not precision.worst(row) <= precision.ALLOWED] == []


def test_every_operator_that_computes_is_measured():
    offered = {**vars(pointgrad), **vars(functional)}
    operators = {
        name
        for name, value in offered.items()
        if inspect.isfunction(value) and value.__module__.startswith(("pointgrad.ops", "pointgrad.functional"))
    }
    returned = [(case.op.name.partition(",")[0], case(case.sample.build(Make()))) for case in CASES]
    integers = {name for name, _ in returned} - {name for name, results in returned if any(map(is_float, results))}
    measured = {subject.op.name.partition(",")[0] for subject in SUBJECTS}
    assert measured == operators - integers - {"release_buffers"}


MEAN = next(subject for subject in SUBJECTS if subject.name == "mean")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda input, dim: planted.add_up(input) / len(input),  # sums in 16 bits
        lambda input, dim: input.mean(0) * (1 + 0.01),
        lambda input, dim: input.mean(0) + (input - input.detach()).sum(0) * 0.001,  # in the gradient only
        lambda input, dim: input.mean(0) * float("nan"),
    ],
)
def test_larger_errors_are_found(wrong):
    rows = precision.measure(replace(MEAN, call=wrong), torch.float16)
    assert max(map(precision.worst, rows)) > precision.ALLOWED

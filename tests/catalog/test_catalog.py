"""The catalogue describes every public operator."""

import inspect
from pathlib import Path

import pytest
import torch

import pointgrad
from pointgrad import functional, ops
from pointgrad.catalog import CASES, FAMILIES, OPERATORS, Draw, Make
from pointgrad.catalog.magnitudes import is_float


def public_functions(*packages):
    offered = {**vars(pointgrad), **vars(functional)}
    return {
        name
        for name, value in offered.items()
        if inspect.isfunction(value)
        and value is not pointgrad.release_buffers
        and value.__module__.startswith(packages or ("pointgrad.ops", "pointgrad.functional"))
    }


def test_every_public_operator_is_described():
    described = {op.name.partition(",")[0]: op for op in OPERATORS}
    assert public_functions() <= set(described)
    assert set(described) - public_functions() == {"NeighborIndex"}


def test_operators_of_ops_have_samples_and_draws():
    """Without samples and draws, the contract and the fuzzer would leave an operator out."""
    sampled = {case.op.name for case in CASES}
    for op in OPERATORS:
        if op.name.partition(",")[0] in public_functions("pointgrad.ops") or op.name == "NeighborIndex":
            assert op.name in sampled, op.name
            assert op.draw is not None, op.name


def test_families_are_those_of_ops():
    folders = {file.parent.name for file in Path(ops.__file__).parent.glob("*/__init__.py")} - {"native"}
    assert folders <= set(FAMILIES)


def test_names_are_unique():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert len({op.name for op in OPERATORS}) == len(OPERATORS)


def has_gradient(case, arguments, name):
    source = arguments[name].detach().requires_grad_()
    try:
        results = case({**arguments, name: source})
    except ValueError as error:
        if "must not require a gradient" not in str(error):
            raise
        return False
    live = [result for result in results if result.requires_grad]
    upstream = [torch.ones_like(result) for result in live]
    return bool(live) and torch.autograd.grad(live, source, upstream, allow_unused=True)[0] is not None


@pytest.mark.parametrize("op", [op for op in OPERATORS if op.samples], ids=lambda op: op.name)
def test_every_argument_with_a_gradient_is_declared(op):
    """No test computes the gradient of other arguments."""
    calls = [(case, case.sample.build(Make())) for case in op.cases()]
    floats = [(case, arguments, name) for case, arguments in calls for name in arguments if is_float(arguments[name])]
    assert {call[-1] for call in floats if has_gradient(*call)} == set(op.differentiable)


def test_draws_are_recorded_and_repeated():
    generator = torch.Generator().manual_seed(0)

    def choose(low, high):
        return int(torch.randint(low, high + 1, (), generator=generator))

    first = Draw(choose, "cpu", tiny=False)
    shapes = [first.floats(first.size(9), 3), first.index(5, first.size(9)), first.floats(first.size(9), 3)]
    again = Draw(first.choices, "cpu", tiny=False)
    repeated = [again.floats(again.size(9), 3), again.index(5, again.size(9)), again.floats(again.size(9), 3)]
    for actual, desired in zip(repeated, shapes, strict=True):
        torch.testing.assert_close(actual, desired, rtol=0, atol=0, equal_nan=True)

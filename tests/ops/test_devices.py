"""Behavior with several GPUs, tested with fake tensors that can be on any device."""

from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from pointgrad.catalog import CASES, Make

# Without a GPU torch allows any fake GPU; with one GPU it queries the driver for the second one.
pytestmark = pytest.mark.skipif(torch.cuda.device_count() == 1, reason="with one GPU torch refuses a fake second one")

FIXED = [case for case in CASES if not case.sample.waits and not case.sample.seeded]
every_case = pytest.mark.parametrize("case", FIXED, ids=lambda case: case.name)


def on(device, arguments):
    """The arguments with every tensor replaced by a fake one on this device."""
    return {
        name: torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
        if isinstance(value, Tensor)
        else value
        for name, value in arguments.items()
    }


@contextmanager
def fake_gpus():
    try:
        with FakeTensorMode():
            yield
    except RuntimeError as error:
        if not any(words in str(error) for words in ("not linked with support for cuda", "CUDA driver")):
            raise
        pytest.skip("torch without a driver refuses indexing with brackets even for fake tensors")


@every_case
def test_results_are_on_the_device_of_the_input(case):
    arguments = case.sample.build(Make())
    with fake_gpus():
        results = case(on("cuda:1", arguments))
    assert {result.device for result in results} == {torch.device("cuda:1")}


@every_case
def test_gpus_are_not_mixed(case):
    """Each tensor in turn is on another GPU than the rest: refused by name."""
    arguments = case.sample.build(Make())
    tensors = [name for name, value in arguments.items() if isinstance(value, Tensor)]
    for other in tensors if len(tensors) > 1 else ():
        with fake_gpus():
            mixed = on("cuda:0", arguments)
            mixed[other] = on("cuda:1", arguments)[other]
            with pytest.raises(ValueError, match=r"must be on the device of \w+, cuda:\d, got cuda:\d"):
                case(mixed)

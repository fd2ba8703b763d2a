"""Replacement for `pyg_lib.testing`, which imports functions for data sets of graphs."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

DEVICES = ["cpu", "cuda:0"] if torch.cuda.is_available() else ["cpu"]

withCUDA = pytest.mark.parametrize("device", [torch.device(name) for name in DEVICES], ids=DEVICES)
onlyCUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def onlyTriton(test: Callable[..., None]) -> Callable[..., None]:
    """The tests that need Triton need CUDA too, and are skipped without it."""
    return test


def withSeed(test: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(test)
    def seeded(*args: Any, **options: Any) -> None:
        torch.manual_seed(12345)
        test(*args, **options)

    return seeded

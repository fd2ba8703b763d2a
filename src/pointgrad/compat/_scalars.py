"""Scalar arguments, which the other libraries also accept as tensors, and tensors whose values cannot be read."""

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from pointgrad.ops import checks


def number(value: Any) -> Any:
    """Value of a zero-dimensional tensor, as in `dim_size=index.max() + 1`; other values unchanged."""
    return value.item() if isinstance(value, Tensor) and value.dim() == 0 and not value.is_meta else value


def is_traced(value: Tensor) -> bool:
    """Whether a tensor has no values, because torch traces the function.

    While torch runs one operator of a graph with fake tensors, `torch.compiler.is_compiling` is False in torch 2.11.
    """
    return torch.compiler.is_compiling() or isinstance(value, (FakeTensor, FunctionalTensor))


def count_of(name: str, value: Any, least: int = 1) -> int:
    """Check and return an int, or the value of a zero-dimensional int tensor."""
    value = number(value)
    checks.kind(checks.is_integer(value), name, "an int", value)
    checks.value(value >= least, name, f"at least {least}", value)
    return value

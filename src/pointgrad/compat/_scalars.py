"""Scalar arguments, which the other libraries also accept as tensors."""

from typing import Any

from torch import Tensor

from pointgrad.ops import checks


def number(value: Any) -> Any:
    """Value of a zero-dimensional tensor, as in `dim_size=index.max() + 1`; other values unchanged."""
    return value.item() if isinstance(value, Tensor) and value.dim() == 0 and not value.is_meta else value


def count_of(name: str, value: Any, least: int = 1) -> int:
    """Check and return an int, or the value of a zero-dimensional int tensor."""
    value = number(value)
    checks.kind(checks.is_integer(value), name, "an int", value)
    checks.value(value >= least, name, f"at least {least}", value)
    return value

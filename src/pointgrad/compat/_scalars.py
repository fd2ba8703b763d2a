"""Numbers as the other libraries' bindings take them."""

from typing import Any

from torch import Tensor

from pointgrad.ops import checks


def number(value: Any) -> Any:
    """What a tensor without dimensions holds, as in `dim_size=index.max() + 1`; anything else as it is."""
    return value.item() if isinstance(value, Tensor) and value.dim() == 0 else value


def count_of(name: str, value: Any, least: int = 1) -> int:
    """An int, or a tensor that holds one."""
    value = number(value)
    checks.kind(checks.is_integer(value), name, "an int", value)
    checks.value(value >= least, name, f"at least {least}", value)
    return value

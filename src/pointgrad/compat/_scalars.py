"""Numbers as the other libraries' bindings take them."""

from typing import Any

from torch import Tensor


def number(value: Any) -> Any:
    """What a tensor without dimensions holds, as in `dim_size=index.max() + 1`; anything else as it is."""
    return value.item() if isinstance(value, Tensor) and value.dim() == 0 else value

"""Arguments of compiled modules, whose functions take sizes and arrays and write into some of the arrays."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pointgrad.ops import checks

from ._scalars import count_of


class Arrays:
    """Checks arrays against sizes that are passed with them.

    Args:
        sizes: The sizes by their names in messages. Shapes are strings of names: "b n 3" is (b, n, 3), and "* c" has
            any number of rows of c entries.
    """

    def __init__(self, **sizes: Any) -> None:
        self.sizes = {name: count_of(name, size, 0) for name, size in sizes.items()}
        for name, size in self.sizes.items():
            checks.value(size < 2**63, name, "less than 2**63", size)
        self._first: tuple[str, Tensor] | None = None

    def floats(self, name: str, value: Any, shape: str) -> Tensor:
        """An array of floating-point numbers that is read."""
        return self._array(name, value, shape, checks.FLOATS).reshape(self._shape(shape))

    def index(self, name: str, value: Any, shape: str) -> Tensor:
        """An array of indices that is read."""
        return self._array(name, value, shape, checks.INDICES).reshape(self._shape(shape))

    def out(self, name: str, value: Any, shape: str, dtypes: Sequence[torch.dtype] = checks.FLOATS) -> Tensor:
        """An array that is written."""
        array = self._array(name, value, shape, dtypes)
        checks.value(array.is_contiguous(), name, "contiguous", f"strides {array.stride()}")
        return array.view(self._shape(shape))

    def out_index(self, name: str, value: Any, shape: str) -> Tensor:
        """An array of indices that is written."""
        return self.out(name, value, shape, checks.INDICES)

    def _shape(self, shape: str) -> list[int]:
        return [self.sizes.get(size, -1) if not size.isdigit() else int(size) for size in shape.split()]

    def _array(self, name: str, value: Any, shape: str, dtypes: Sequence[torch.dtype]) -> Tensor:
        checks.tensor(name, value)
        row = shape.removeprefix("*").strip()
        entries = math.prod(self._shape(row))
        product = row.replace(" ", " * ")
        if row == shape:
            checks.shape(value.numel() == entries, name, f"{product} = {entries} entries", value, verb="have")
        else:
            fits = entries > 0 and value.numel() % entries == 0
            checks.shape(fits, name, f"rows of {product} = {entries} entries", value, verb="have")
        checks.dtype(name, value, dtypes)
        if self._first is None:
            self._first = name, value
        checks.device(name, value, *self._first)
        checks.value(not value.is_meta, name, "a tensor with values", "a meta tensor")
        return value.detach()


def write_balls(out: Tensor, index: Tensor) -> None:
    """Write indices (..., K), padded with -1. The first one is repeated; nothing is written for empty balls."""
    first = index[..., :1]
    out.copy_(torch.where(first < 0, out, torch.where(index < 0, first, index).to(out.dtype)))


def check_index(name: str, index: Tensor, size: int) -> None:
    """Check on a CPU that indices are -1 or in [0, size)."""
    if index.device.type == "cpu":
        checks.index_values(index.long().contiguous(), size, name)

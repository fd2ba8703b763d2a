"""What a case is: one way to call an operator. It builds its keyword arguments from a `Make`, which
knows dtype and device, so that the same case runs for all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Make:
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    def floats(self, *shape: int) -> Tensor:
        # Drawn in float64 on the CPU: the same numbers for every dtype and device, up to rounding.
        return torch.randn(*shape, dtype=torch.float64).to(self.device, self.dtype)

    def equal(self, *shape: int) -> Tensor:
        return torch.full(shape, 0.7, dtype=self.dtype, device=self.device)

    def grid(self, *shape: int) -> Tensor:
        """Few distinct values: many equal points and equal distances."""
        return torch.randint(0, 3, shape).to(self.device, self.dtype)

    def index(self, rows: int, *shape: int) -> Tensor:
        """Indices into `rows` rows, some of them -1."""
        return torch.randint(-1, rows, shape).to(self.device)

    def ints(self, *values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)


@dataclass(frozen=True)
class Case:
    name: str
    call: Callable[..., Any]
    inputs: Callable[[Make], dict[str, Any]]
    differentiable: tuple[str, ...] = ()
    large: Callable[[Make], dict[str, Any]] | None = None  # enough work for several threads
    seeded: bool = False  # draws from torch's generator
    waits: bool = False  # on a GPU, the host hands something over or must learn the size of the result
    any_order: bool = False  # a GPU adds in any order, unless told otherwise: equal up to rounding
    plain: bool = False  # plain PyTorch: calls no operator of ours
    composed: bool = False  # of operators with cases of their own: the interpreter, which is slow, is left out
    smooth: bool = True  # False at a kink or a tie, where finite differences say nothing
    rows: Callable[[dict[str, Any]], int] | None = None  # takes an `index` that counts this many rows

    @property
    def operator(self) -> Callable[..., Any]:
        """The public function, which `call` may wrap."""
        return getattr(self.call, "__wrapped__", self.call)

    def __call__(self, arguments: dict[str, Any]) -> tuple[Tensor, ...]:
        if self.seeded:
            torch.manual_seed(1)
        result = self.call(**arguments)
        return tuple(result) if isinstance(result, tuple) else (result,)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)

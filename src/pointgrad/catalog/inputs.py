"""Inputs of operators: `Make` makes ordinary tensors, `Draw` makes random and unusual ones from recorded choices.

Both have the same methods, so that one function can build the arguments of a sample and of a random call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int64, torch.int32)

# Around the lanes (8, 16, 32), leaves, blocks and pieces (16, 64, 256, 512) of the kernels.
FEW = (0, 1, 2, 3, 5, 8, 9)
SOME = (15, 16, 17, 31, 32, 33, 63, 64, 65)
MANY = (127, 129, 255, 256, 257, 511, 513)

VALUES = (
    *("normal",) * 6, *("lattice",) * 3, *("doubled",) * 2,
    "equal", "line", "zeros", "scales", "huge", "brink", "tiny", "special",
)  # fmt: skip
LAYOUTS = (*("contiguous",) * 4, "gaps", "transposed", "shifted")


@dataclass
class Make:
    """Makes tensors of one dtype on one device from torch's default generator.

    Values are drawn in float64 on the CPU: the same numbers for every dtype and device, up to rounding.
    """

    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    rows: int = 400  # for inputs whose precision is measured

    def floats(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64).to(self.device, self.dtype)

    def positive(self, *shape: int) -> Tensor:
        return (torch.rand(*shape, dtype=torch.float64) + 0.1).to(self.device, self.dtype)

    def equal(self, *shape: int) -> Tensor:
        return torch.full(shape, 0.7, dtype=self.dtype, device=self.device)

    def grid(self, *shape: int) -> Tensor:
        """Three distinct values: many equal points and equal distances."""
        return torch.randint(0, 3, shape).to(self.device, self.dtype)

    def distinct(self, rows: int, *columns: int) -> Tensor:
        """Multiples of 1/4, each once along the first dimension: exact in every dtype for at most 256 rows."""
        order = torch.rand(rows, *columns).argsort(0)
        return (order - rows // 2).to(self.device, self.dtype) / 4

    def index(self, rows: int, *shape: int) -> Tensor:
        """Indices into `rows` rows, some of them -1."""
        return torch.randint(-1, rows, shape).to(self.device)

    def below(self, rows: int, *shape: int) -> Tensor:
        """Indices into `rows` rows without -1."""
        return torch.randint(0, rows, shape).to(self.device)

    def mask(self, *shape: int) -> Tensor:
        """Booleans, two thirds of them True."""
        return (torch.rand(shape) < 0.67).to(self.device)

    def ints(self, *values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def offsets(self, rows: int, parts: int) -> Tensor:
        """(parts + 1,): non-decreasing from 0 to `rows`."""
        return torch.tensor([0, *sorted(torch.randint(0, rows + 1, (parts - 1,)).tolist()), rows]).to(self.device)


class Draw(Make):
    """Makes random tensors of any kind, and records every choice by name, so that a case can be read and run again.

    Args:
        choose: Returns an integer between two bounds, both included; or the recorded choices of a case, by name.
        device: Where tensors are made.
        tiny: Draw small sizes only, for Triton's slow interpreter.
    """

    def __init__(self, choose: Callable[[int, int], int] | dict[str, Any], device: str, tiny: bool) -> None:
        self.choose, self.tiny = choose, tiny
        self.choices: dict[str, Any] = {}
        self._generator: torch.Generator | None = None
        super().__init__(self.pick("dtype", FLOATS), device)

    def number(self, name: str, low: int, high: int) -> int:
        """An integer between two bounds, both included."""
        while name in self.choices:
            name += "'"
        self.choices[name] = self.choose[name] if isinstance(self.choose, dict) else self.choose(low, high)
        return int(self.choices[name])

    def pick(self, name: str, options: Sequence[Any]) -> Any:
        """One of the options, recorded as its position."""
        return options[0] if len(options) == 1 else options[self.number(name, 0, len(options) - 1)]

    def flag(self, name: str, one_in: int = 2) -> bool:
        return self.number(name, 0, one_in - 1) == one_in - 1  # shrinks to False

    def size(self, most: int = 129, edges: Sequence[int] = (), *, least: int = 0) -> int:
        """Mostly small, sometimes around the sizes at which kernels take a different path."""
        if self.tiny:
            most = min(most, 17)
        sizes = [*FEW * 4, *SOME * 2, *MANY, *edges, *edges]
        return int(self.pick("size", [size for size in sizes if least <= size <= most]))

    def batch(self, most: int = 3) -> tuple[int, ...]:
        """The leading shape: () for packed, (B,) for padded inputs."""
        return (self.number("clouds", 0, most),) if self.flag("padded") else ()

    @property
    def generator(self) -> torch.Generator:
        if self._generator is None:
            self._generator = torch.Generator().manual_seed(self.number("seed", 0, 2**31 - 1))
        return self._generator

    def floats(self, *shape: int, kinds: Sequence[str] = VALUES) -> Tensor:
        if self.tiny and self.dtype == torch.bfloat16:  # Triton's interpreter itself rounds denormal bfloat16 wrongly
            kinds = [kind for kind in kinds if kind != "tiny"]
        values = _numbers(self.pick("values", kinds), shape, self.dtype, self.generator)
        if values.numel() and self.flag("repeats", 16):  # one row for all, expanded without a copy
            along = self.number("along", 0, len(shape) - 1) if len(shape) > 1 else 0
            return values.narrow(along, 0, 1).to(self.device).expand(shape)
        return self._arranged(values)

    def numbers(self, dtypes: Sequence[torch.dtype], *shape: int) -> Tensor:
        """Floating numbers, or integers of any size of one of these dtypes."""
        dtype = self.pick("integers", (None, None, *dtypes))
        if dtype is None:
            return self.floats(*shape)
        most = 2 if dtype == torch.bool else torch.iinfo(dtype).max
        least = 0 if dtype in (torch.bool, torch.uint8) else -most
        return self._arranged(torch.randint(least, most, shape, generator=self.generator).to(dtype))

    def index(self, rows: int, *shape: int, low: int = -1) -> Tensor:
        kind = self.pick("indices", ("any", "any", "one", "sorted", *(("none",) if low else ())))
        if kind == "none" or not rows:
            values = torch.full(shape, -1)
        elif kind == "one":
            values = torch.full(shape, self.number("row", low, rows - 1))
        else:
            values = torch.randint(low, rows, shape, generator=self.generator)
            values = values.flatten().sort().values.reshape(shape) if kind == "sorted" else values
        return self._arranged(values.to(self.pick("index dtype", INTEGERS)))

    def below(self, rows: int, *shape: int) -> Tensor:
        return self.index(rows, *shape, low=0)

    def offsets(self, rows: int, parts: int) -> Tensor:
        inner = torch.randint(0, rows + 1, (max(parts - 1, 0),), generator=self.generator).sort().values
        ends = torch.tensor([rows]) if parts else torch.tensor([], dtype=torch.int64)
        return self._arranged(torch.cat([torch.tensor([0]), inner, ends]).to(self.pick("index dtype", INTEGERS)))

    def layout(self) -> tuple[str, int]:
        """The layout of the clouds and their number."""
        layout = self.pick("layout", ("packed", "offsets", "padded", "lengths"))
        return layout, 1 if layout == "packed" else self.number("clouds", 0, 2 if self.tiny else 4)

    def clouds(
        self, name: str, dims: int, layout: tuple[str, int], most: int, edges: Sequence[int] = (), prefix: str = ""
    ) -> dict[str, Tensor]:
        """Points with the offsets or lengths of their clouds, as arguments."""
        kind, batch = layout
        count = self.size(most, edges) if batch or kind != "offsets" else 0
        if kind in ("packed", "offsets"):
            arguments = {name: self.floats(count, dims)}
            return arguments if kind == "packed" else {**arguments, f"{prefix}offsets": self.offsets(count, batch)}
        arguments = {name: self.floats(batch, count, dims)}
        if kind == "lengths":
            lengths = torch.randint(0, count + 1, (batch,), generator=self.generator)
            arguments[f"{prefix}lengths"] = self._arranged(lengths.to(self.pick("index dtype", INTEGERS)))
        return arguments

    def _arranged(self, values: Tensor) -> Tensor:
        """Equal values in a drawn memory layout."""
        layout, values = self.pick("memory", LAYOUTS), values.to(self.device)
        if layout == "gaps" and values.dim():
            wide = values.new_zeros(*values.shape[:-1], 2 * values.shape[-1] + 1)
            wide[..., 1::2] = values
            return wide[..., 1::2]
        if layout == "transposed" and values.dim() > 1:
            return values.transpose(-1, -2).contiguous().transpose(-1, -2)
        if layout == "shifted":  # not aligned for vector loads
            flat = torch.cat([values.new_zeros(1), values.flatten()])
            return flat[1:].view(values.shape)
        return values


def _numbers(kind: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    limits = torch.finfo(dtype)
    values = torch.randn(shape, dtype=torch.float64, generator=generator)
    simple: dict[str, Callable[[], Tensor]] = {
        "lattice": lambda: values.round(),
        "equal": lambda: torch.full_like(values, 0.7),
        "zeros": lambda: values.sign() * 0.0,
        "scales": lambda: values * 10.0 ** torch.randint(-6, 7, shape, generator=generator),
        "huge": lambda: values * limits.max**0.8,  # the square overflows
        "brink": lambda: values.clamp(-1, 1) * limits.max,
        "tiny": lambda: values * (limits.tiny / 8),  # denormal
    }
    if kind in simple:
        return simple[kind]().to(dtype)
    if kind == "doubled" and values.numel():  # every row several times
        rows = values.flatten(0, -2) if values.dim() > 1 else values
        few = max(1, len(rows) // 4)
        values = rows[torch.randint(0, few, (len(rows),), generator=generator)].reshape(shape)
    elif kind == "line" and values.dim() > 1:
        values = values[..., :1].expand(shape)
    elif kind == "special":
        specials = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0], dtype=torch.float64)
        chosen = specials[torch.randint(0, 5, shape, generator=generator)]
        values = torch.where(torch.rand(shape, generator=generator) < 0.1, chosen, values)
    return values.to(dtype)

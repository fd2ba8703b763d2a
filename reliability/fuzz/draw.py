"""What a case is made of: hypothesis draws its structure and a seed, the seed gives the numbers.

Every choice has a name and is kept, so a case can be written down, read by a person, and run again.
"""

from collections.abc import Callable, Sequence
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


class Draw:
    """Chooses, and remembers what was chosen.

    choose: gives one of a strategy's values; or, to run a case again, the choices of it by name.
    """

    def __init__(self, choose: Callable[[Any], Any] | dict[str, Any], device: str, tiny: bool) -> None:
        self.choose, self.device, self.tiny = choose, device, tiny
        self.choices: dict[str, Any] = {}
        self._generator: torch.Generator | None = None

    def number(self, name: str, low: int, high: int) -> int:
        return self._take(name, low, high)

    def pick(self, name: str, options: Sequence[Any]) -> Any:
        """One of the options, which are told by their place."""
        if len(options) == 1:
            return options[0]
        return options[self._take(name, 0, len(options) - 1)]

    def flag(self, name: str, one_in: int = 2) -> bool:
        return self.number(name, 0, one_in - 1) == one_in - 1  # the simplest is no

    def size(self, name: str, *, least: int = 0, most: int = 129, edges: Sequence[int] = ()) -> int:
        """Mostly few, sometimes around the sizes at which kernels change what they do."""
        if self.tiny:
            most = min(most, 17)
        sizes = [*FEW * 4, *SOME * 2, *MANY, *edges, *edges]
        return self.pick(name, [size for size in sizes if least <= size <= most])

    @property
    def generator(self) -> torch.Generator:
        if self._generator is None:
            self._generator = torch.Generator().manual_seed(self.number("seed", 0, 2**31 - 1))
        return self._generator

    def dtype(self, allowed: Sequence[torch.dtype] = FLOATS, name: str = "dtype") -> torch.dtype:
        return self.pick(name, allowed)

    def floats(self, name: str, dtype: torch.dtype, *shape: int, kinds: Sequence[str] = VALUES) -> Tensor:
        if self.tiny and dtype == torch.bfloat16:  # Triton's interpreter rounds denormal ones wrongly, by itself
            kinds = [kind for kind in kinds if kind != "tiny"]
        values = _numbers(self.pick(f"{name} values", kinds), shape, dtype, self.generator)
        if values.numel() and self.flag(f"{name} repeats", 16):  # one row for all, without a copy of it
            along = self.number(f"{name} along", 0, len(shape) - 1) if len(shape) > 1 else 0
            return values.narrow(along, 0, 1).to(self.device).expand(shape)
        return self._arranged(name, values)

    def index(self, name: str, rows: int, *shape: int, holes: bool = True) -> Tensor:
        """Into so many rows, some of them -1, if there may be holes."""
        kind = self.pick(f"{name} indices", ("any", "any", "one", "sorted", *(("none",) if holes else ())))
        low = -1 if holes else 0
        if kind == "none" or not rows:
            values = torch.full(shape, -1)
        elif kind == "one":
            values = torch.full(shape, self.number(f"{name} row", low, rows - 1))
        else:
            values = torch.randint(low, rows, shape, generator=self.generator)
            values = values.flatten().sort().values.reshape(shape) if kind == "sorted" else values
        return self._arranged(name, values.to(self.pick(f"{name} dtype", INTEGERS)))

    def cuts(self, name: str, rows: int, parts: int) -> Tensor:
        """(parts + 1,) from 0 to rows, never falling: offsets."""
        inner = torch.randint(0, rows + 1, (max(parts - 1, 0),), generator=self.generator).sort().values
        ends = torch.tensor([rows]) if parts else torch.tensor([], dtype=torch.int64)
        return self._arranged(
            name, torch.cat([torch.tensor([0]), inner, ends]).to(self.pick(f"{name} dtype", INTEGERS))
        )

    def clouds(
        self, name: str, prefix: str, dtype: torch.dtype, dims: int, layout: str, batch: int, **sizes: Any
    ) -> dict[str, Tensor]:
        """Points, and where each cloud of them lies, as arguments. layout: packed, offsets, padded or lengths."""
        count = self.size(f"{name} count", **sizes)
        if layout == "offsets":
            count = count if batch else 0
            points = self.floats(name, dtype, count, dims)
            return {name: points, f"{prefix}offsets": self.cuts(f"{prefix}offsets", count, batch)}
        if layout == "packed":
            return {name: self.floats(name, dtype, count, dims)}
        points = {name: self.floats(name, dtype, batch, count, dims)}
        if layout == "lengths":
            lengths = torch.randint(0, count + 1, (batch,), generator=self.generator)
            lengths = lengths.to(self.pick(f"{prefix}lengths dtype", INTEGERS))
            points[f"{prefix}lengths"] = self._arranged(f"{prefix}lengths", lengths)
        return points

    def layout(self) -> tuple[str, int]:
        """How clouds lie, and how many there are."""
        layout = self.pick("layout", ("packed", "offsets", "padded", "lengths"))
        return layout, 1 if layout == "packed" else self.number("clouds", 0, 2 if self.tiny else 4)

    def _take(self, name: str, low: int, high: int) -> Any:
        if name in self.choices:
            raise ValueError(f"two choices of one case are called {name!r}")
        chosen = self.choose[name] if isinstance(self.choose, dict) else self.choose(low, high)
        self.choices[name] = chosen
        return chosen

    def _arranged(self, name: str, values: Tensor) -> Tensor:
        """Equal values, lying in memory as drawn."""
        layout, values = self.pick(f"{name} lies", LAYOUTS), values.to(self.device)
        if layout == "gaps" and values.dim():
            wide = values.new_zeros(*values.shape[:-1], 2 * values.shape[-1] + 1)
            wide[..., 1::2] = values
            return wide[..., 1::2]
        if layout == "transposed" and values.dim() > 1:
            return values.transpose(-1, -2).contiguous().transpose(-1, -2)
        if layout == "shifted":  # not where vectors would like to begin
            flat = torch.cat([values.new_zeros(1), values.flatten()])
            return flat[1:].view(values.shape)
        return values


def _numbers(kind: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    limits = torch.finfo(dtype)
    values = torch.randn(shape, dtype=torch.float64, generator=generator)
    if kind == "lattice":
        values = values.round()
    elif kind == "doubled" and values.numel():  # each row several times
        rows = values.flatten(0, -2) if values.dim() > 1 else values
        few = max(1, len(rows) // 4)
        values = rows[torch.randint(0, few, (len(rows),), generator=generator)].reshape(shape)
    elif kind == "equal":
        values = torch.full_like(values, 0.7)
    elif kind == "line" and values.dim() > 1:
        values = values[..., :1].expand(shape)
    elif kind == "zeros":
        values = values.sign() * 0.0
    elif kind == "scales":
        values = values * 10.0 ** torch.randint(-6, 7, shape, generator=generator)
    elif kind == "huge":  # its square overflows
        values = values * limits.max**0.8
    elif kind == "brink":
        values = values.clamp(-1, 1) * limits.max
    elif kind == "tiny":  # denormal
        values = values * (limits.tiny / 8)
    elif kind == "special":
        strange = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0], dtype=torch.float64)
        drawn = strange[torch.randint(0, 5, shape, generator=generator)]
        values = torch.where(torch.rand(shape, generator=generator) < 0.1, drawn, values)
    return values.to(dtype)

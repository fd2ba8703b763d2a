"""Rows of the operators that have benchmarks in the catalogue."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pointgrad.catalog import FAMILIES, Benchmark, Make, OpInfo
from pointgrad.catalog.base import Arguments, Check, Passes

from . import forms
from .comparison import Comparison, Implementation, Row, Setup, short

NAMES = tuple(family for family, operators in FAMILIES.items() if any(op.benchmarks for op in operators))


class DeviceMake(Make):
    """Draws directly on the device, which is faster for large inputs."""

    def floats(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=self.dtype, device=self.device)

    def below(self, rows: int, *shape: int) -> Tensor:
        return torch.randint(0, rows, shape, device=self.device)


def compare(op: OpInfo, benchmark: Benchmark, passes: Passes, sizes: list[int], device: str) -> Comparison:
    arguments = benchmark.build(DeviceMake(device=device), *sizes)
    work: tuple[str, dict[str, Any]] | None = (benchmark.work, arguments) if benchmark.work else None
    if benchmark.check is not None:
        return _checked(op, benchmark, benchmark.check, arguments, work)

    def ours(**given: Any) -> Any:
        return op.call(**{name: value for name, value in given.items() if name not in benchmark.only_plain})

    return forms.compare(
        passes, ours if benchmark.only_plain else op.call, benchmark.plain, arguments, benchmark.sources,
        tolerance=benchmark.tolerance, work=work, moved=benchmark.moved(arguments),
    )  # fmt: skip


def _checked(
    op: OpInfo, benchmark: Benchmark, check: Check, arguments: Arguments, work: tuple[str, Arguments] | None
) -> Comparison:
    """Compare implementations whose results need a check of their own."""

    def call(form: Callable[..., Any]) -> Implementation:
        return Implementation(functools.partial(form, **arguments))

    plain = benchmark.plain if benchmark.fits(arguments) else {}
    compiled = benchmark.compiled or (lambda: torch.compile(next(iter(plain.values()))))
    return Comparison(
        Implementation(functools.partial(op.call, **arguments), benchmark.read),
        functools.partial(check, arguments),
        {name: call(form) for name, form in plain.items()},
        (lambda: call(compiled())) if plain else None,
        work=work,
    )


def rows(family: str, setup: Setup) -> Iterator[Row]:
    """The rows of a family of the catalogue."""
    for op in FAMILIES[family]:
        for benchmark in op.benchmarks:
            full = benchmark.cuda if setup.gpu and benchmark.cuda is not None else benchmark.sizes
            if not full:
                continue
            sizes = [setup.size(size) for size in full]
            name = benchmark.name.format(*map(short, sizes))
            for suffix, passes in benchmark.passes.items():
                build = functools.partial(compare, op, benchmark, passes, sizes, setup.device)
                yield Row(name + suffix, build, benchmark.rounds)

"""Rows of the operators that have benchmarks in the catalogue."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pointgrad.catalog import FAMILIES, Benchmark, Make, OpInfo
from pointgrad.catalog.base import Passes

from . import forms
from .comparison import Comparison, Row, Setup, short

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

    def ours(**given: Any) -> Any:
        return op.call(**{name: value for name, value in given.items() if name not in benchmark.only_plain})

    return forms.compare(
        passes, ours if benchmark.only_plain else op.call, benchmark.plain, arguments, benchmark.sources,
        tolerance=benchmark.tolerance, work=work, moved=benchmark.moved(arguments),
    )  # fmt: skip


def rows(family: str, setup: Setup) -> Iterator[Row]:
    """The rows of a family of the catalogue."""
    for op in FAMILIES[family]:
        for benchmark in op.benchmarks:
            full = benchmark.cuda if setup.gpu and benchmark.cuda else benchmark.sizes
            sizes = [setup.size(size) for size in full]
            name = benchmark.name.format(*map(short, sizes))
            for suffix, passes in benchmark.passes.items():
                yield Row(name + suffix, functools.partial(compare, op, benchmark, passes, sizes, setup.device))

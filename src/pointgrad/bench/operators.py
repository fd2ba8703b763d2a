"""Rows of the operators that have benchmarks in the catalogue."""

import functools
from collections.abc import Iterator

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
    return forms.compare(
        passes, op.call, benchmark.plain if benchmark.fits(arguments) else {}, arguments, benchmark.sources,
        tolerance=benchmark.tolerance, work=(benchmark.work, arguments) if benchmark.work else None,
        only_plain=benchmark.only_plain, floor=benchmark.floor, read=benchmark.read, compiled=benchmark.compiled,
        check=functools.partial(benchmark.check, arguments) if benchmark.check else None,
    )  # fmt: skip


def operator_rows(op: OpInfo, setup: Setup) -> Iterator[Row]:
    """The rows of one operator."""
    for benchmark in op.benchmarks:
        full = benchmark.cuda if setup.gpu and benchmark.cuda is not None else benchmark.sizes
        if not full:
            continue
        sizes = [setup.size(size) for size in full]
        name = benchmark.name.format(*map(short, sizes))
        for suffix, passes in benchmark.passes.items():
            build = functools.partial(compare, op, benchmark, passes, sizes, setup.device)
            yield Row(name + suffix, build, benchmark.rounds)


def rows(family: str, setup: Setup) -> Iterator[Row]:
    """The rows of a family of the catalogue."""
    return (row for op in FAMILIES[family] for row in operator_rows(op, setup))

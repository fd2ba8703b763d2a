"""Time and memory against the number of points, up to counts beyond 32 bits. Results are checked, then timed.

    python -m reliability.sizes --device cuda --out reliability/results/sizes_gpu.json
    python -m reliability.sizes --device cpu --out reliability/results/sizes_cpu.json

Memory is the peak of the call beyond its input, including the result: torch's count on a GPU, the resident set size on
a CPU. The operators and their checks are those of the catalogue that have `scaling`.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch

from pointgrad.bench import write
from pointgrad.bench.clocks import milliseconds, peak_mib
from pointgrad.bench.machine import machine
from pointgrad.catalog import OPERATORS, OpInfo

from .arguments import at_least, out_file

SCALED = {op.name: op for op in OPERATORS if op.scaling}
SIZES = {"cpu": (10_000, 100_000, 1_000_000, 10_000_000), "cuda": (10_000, 100_000, 1_000_000, 10_000_000, 20_000_000)}
# With 32 channels 2.24 G numbers, more than a signed 32-bit integer counts.
BEYOND_32_BITS = 70_000_000


def with_gradient(op: OpInfo, arguments: dict[str, Any]) -> Callable[[], Any]:
    """The call; for an operator on features also its backward pass under a gradient of ones."""
    if not has_features(arguments):
        return lambda: op.call(**arguments)
    sources = op.sources(arguments)
    name = next(iter(sources))  # the features

    def call() -> Any:
        result = op.call(**{**arguments, name: sources[name]})
        one = torch.ones((), dtype=result.dtype, device=result.device)
        (grad,) = torch.autograd.grad(result, sources[name], one.expand_as(result))
        return result.detach(), grad

    return call


def has_features(arguments: dict[str, Any]) -> bool:
    return "points" not in arguments


def measured(name: str, count: int, device: str) -> dict[str, Any]:
    op = SCALED[name]
    arguments = op.scaling.build(count, device)
    call = with_gradient(op, arguments)
    result = call()
    op.scaling.check(arguments, result)
    del result
    if device == "cuda":
        torch.cuda.empty_cache()
    peak = peak_mib(call, device)
    elements = count * next(value for value in arguments.values() if isinstance(value, torch.Tensor)).shape[-1]
    return {
        "name": name,
        "size": count,
        "elements": elements,
        "ms": round(milliseconds(call, device), 3),
        "peak_MiB": peak,
    }


def line(row: dict[str, Any]) -> str:
    per_point = row["peak_MiB"] * 2**20 / row["size"]
    return (
        f"{row['name']:24} {row['size']:>11,} points {row['elements']:>14,} numbers {row['ms']:>12,.2f} ms "
        f"{row['peak_MiB']:>10,.1f} MiB {per_point:>8,.0f} bytes per point"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(SCALED), help=", ".join(SCALED))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--most", type=at_least(10_000), default=BEYOND_32_BITS, help="leave out larger sizes")
    parser.add_argument("--out", type=out_file)
    options = parser.parse_args()
    record: dict[str, Any] = {"device": options.device, "machine": machine(options.device), "rows": []}
    for name in options.names:
        sizes = SIZES[options.device]
        if options.device == "cuda" and has_features(SCALED[name].scaling.build(1, "cpu")):
            sizes += (BEYOND_32_BITS,)
        for size in sizes:
            if size <= options.most:
                record["rows"].append(measured(name, size, options.device))
                print(line(record["rows"][-1]), flush=True)
    if options.out:
        write(record, options.out)


if __name__ == "__main__":
    main()

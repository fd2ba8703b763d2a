"""`python -m reliability.numbers.precision [--device cpu|cuda] --out FILE.json`: precision of results and gradients.

The same inputs, rounded to float16, bfloat16 or float32, go through each operator and through its plain form in the
catalogue; both are compared with the plain form in float64. In 16 bits an operator may err at most twice as much as
plain PyTorch, in the largest and in the mean error, for its result and for every gradient. The error of plain
PyTorch is taken as at least half a unit in the last place, the error of rounding an exact result. Errors in float32 are
recorded, but have no limit.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

# Some virtual machines report AMX but fault on its instructions: a bfloat16 product would kill the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
from torch import Tensor

from pointgrad.bench import write
from pointgrad.bench.machine import machine
from pointgrad.catalog import OPERATORS, Make, OpInfo, Precision, first_float
from pointgrad.catalog.magnitudes import doubled, is_float, tensors

from ..arguments import out_file

JUDGED = (torch.float16, torch.bfloat16)
DTYPES = (*JUDGED, torch.float32)
ALLOWED = 2.0


@dataclass(frozen=True)
class Subject:
    """One comparison of an operator with its plain form."""

    name: str
    op: OpInfo
    build: Callable[[Make], dict[str, Any]]
    call: Callable[..., Any]
    plain: Callable[..., Tensor]


def subject(op: OpInfo, entry: Precision) -> Subject:
    name = f"{op.name}, {entry.name}" if entry.name else op.name
    plain = entry.plain or op.plain
    assert plain is not None, f"{op.name} needs a plain form"
    return Subject(name, op, entry.build, entry.call or op.call, plain)


SUBJECTS = [subject(op, entry) for op in OPERATORS for entry in op.precision]


def measure(
    subject: Subject, dtype: torch.dtype, device: str = "cpu", rows: int = 400, seeds: Iterable[int] = range(5)
) -> list[dict[str, Any]]:
    """Errors over all seeds and their ratios: one row for the result and one per gradient."""
    samples: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {}
    for seed in seeds:
        torch.manual_seed(seed)
        arguments = subject.build(Make(dtype, device, rows))
        ours, plain, truth = _results(subject, arguments)
        for what in ours:
            samples.setdefault(what, []).append((ours[what], plain[what], truth[what]))
    name = str(dtype).removeprefix("torch.")
    return [{"operator": subject.name, "dtype": name, "what": what, **_compare(rows)} for what, rows in samples.items()]


def _results(subject: Subject, arguments: dict[str, Any]) -> list[dict[str, Tensor]]:
    """Result and gradients of the operator, of its plain form in the same dtype, and of its plain form in float64."""
    double = doubled(arguments)
    upstream = torch.randn(subject.plain(**double).shape, dtype=torch.float64)
    plain = subject.plain if _is_implemented(subject, arguments) else _in_float32(subject.plain)
    return [
        _with_gradients(call, subject.op, values, upstream)
        for call, values in ((subject.call, arguments), (plain, arguments), (subject.plain, double))
    ]


def _with_gradients(call: Any, op: OpInfo, arguments: dict[str, Any], upstream: Tensor) -> dict[str, Tensor]:
    sources = op.sources(arguments)
    output = first_float(tensors(call(**{**arguments, **sources})))
    results = {"result": output.detach()}
    if sources:
        finite = output.isfinite()  # infinite distances are padding
        given = upstream.to(output.device, output.dtype)[finite]
        grads = torch.autograd.grad(output[finite], list(sources.values()), given)
        results |= {f"gradient of {name}": grad for name, grad in zip(sources, grads, strict=True)}
    return results


def _is_implemented(subject: Subject, arguments: dict[str, Any]) -> bool:
    """Whether torch implements the plain form and its gradient in this dtype on this device."""
    sources = subject.op.sources(arguments)
    try:
        output = subject.plain(**{**arguments, **sources})
        if sources:
            output.sum().backward()
    except RuntimeError as error:
        if "not implemented for" not in str(error):
            raise
        return False
    return True


def _in_float32(call: Any) -> Any:
    def rounded(**arguments: Any) -> Tensor:
        dtype = next(value.dtype for value in arguments.values() if is_float(value))
        wide = {name: value.float() if is_float(value) else value for name, value in arguments.items()}
        return call(**wide).to(dtype)

    return rounded


def _compare(rows: list[tuple[Tensor, Tensor, Tensor]]) -> dict[str, float]:
    ours, plain, truth = (torch.cat([row[i].flatten().double().cpu() for row in rows]) for i in range(3))
    finite = truth.isfinite()
    if not torch.equal(ours[~finite], truth[~finite]):
        ours = torch.full_like(ours, torch.inf)  # infinite in the wrong place
    ours, plain, truth = ours[finite], plain[finite], truth[finite]
    half_unit = unit_in_last_place(truth, rows[0][0].dtype) / 2
    found: dict[str, float] = {"numbers": truth.numel()}
    for kind, reduce in (("max", Tensor.amax), ("mean", Tensor.mean)):
        mine, theirs = (float(reduce((value - truth).abs().nan_to_num(torch.inf))) for value in (ours, plain))
        floor = float(reduce(half_unit))
        found |= {f"{kind}_error": mine, f"{kind}_error_plain": theirs, f"{kind}_ratio": mine / max(theirs, floor)}
    return {name: float(f"{number:.4g}") for name, number in found.items()}


def unit_in_last_place(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Distance between neighboring numbers of this dtype, at float64 values."""
    limits = torch.finfo(dtype)
    exponent = values.abs().clamp(min=limits.smallest_normal).log2().floor()
    return limits.eps * exponent.exp2()


def worst(row: dict[str, Any]) -> float:
    """The larger of the two ratios."""
    return max(row["max_ratio"], row["mean_ratio"])


def judged(row: dict[str, Any]) -> bool:
    return getattr(torch, row["dtype"]) in JUDGED


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rows", type=int, default=400, help="rows of the inputs")
    parser.add_argument("--seeds", type=int, default=5, help="number of inputs per operator and dtype")
    parser.add_argument("--out", type=out_file, required=True)
    options = parser.parse_args(arguments)
    rows = []
    for subject in SUBJECTS:
        for dtype in DTYPES:
            rows += measure(subject, dtype, options.device, options.rows, range(options.seeds))
        row = max((row for row in rows if row["operator"] == subject.name and judged(row)), key=worst)
        print(f"{subject.name:40} {worst(row):6.2f}  {row['dtype']}, {row['what']}", flush=True)
    few_bits = [row for row in rows if judged(row)]
    over = [row for row in few_bits if not worst(row) <= ALLOWED]
    record = {
        "program": "reliability.numbers.precision",
        "machine": machine(options.device),
        "settings": {"device": options.device, "rows": options.rows, "seeds": options.seeds, "allowed": ALLOWED},
        "operators": len(SUBJECTS),
        "judged": len(few_bits),
        "worst_ratio": max(map(worst, few_bits)),
        "over": len(over),
        "rows": rows,
    }
    write(record, options.out)
    print(f"{len(few_bits)} comparisons in 16 bits, {len(over)} over {ALLOWED} times plain PyTorch's error")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())

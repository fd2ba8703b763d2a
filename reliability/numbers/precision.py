"""`python -m reliability.numbers.precision [--device cpu|cuda] --out FILE.json`: how exact results and gradients are.

The same inputs, rounded to float16, bfloat16 or float32, go through each operator and through the same in plain
PyTorch (`subjects.py`); both are compared with plain PyTorch in float64. In 16 bits an operator may err at
most twice as much as plain PyTorch, in the largest and in the mean error, of its result and of every gradient. Where
plain PyTorch errs less than half a unit in the last place, which is what rounding an exact result costs, that half
counts instead. What is found in float32 is written down, not judged.
"""

import argparse
import os
import sys
from collections.abc import Iterable
from typing import Any

# Some virtual machines announce matrix tiles (AMX) and then refuse them: a bfloat16 product would kill the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
from torch import Tensor

from pointgrad.bench import write
from pointgrad.bench.machine import machine

from ..arguments import out_file
from .subjects import SUBJECTS, Arguments, Draw, Subject

JUDGED = (torch.float16, torch.bfloat16)
DTYPES = (*JUDGED, torch.float32)
ALLOWED = 2.0


def measure(
    subject: Subject, dtype: torch.dtype, device: str = "cpu", size: int = 400, seeds: Iterable[int] = range(5)
) -> list[dict[str, Any]]:
    """One row for the result and one per gradient: errors over all seeds, and their ratios."""
    samples: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {}
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        draw = Draw(dtype, size, generator)
        arguments = {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in subject.inputs(draw).items()
        }
        ours, plain, truth = _results(subject, arguments, draw)
        for what in ours:
            samples.setdefault(what, []).append((ours[what], plain[what], truth[what]))
    name = str(dtype).removeprefix("torch.")
    return [{"operator": subject.name, "dtype": name, "what": what, **_compare(rows)} for what, rows in samples.items()]


def _results(subject: Subject, arguments: Arguments, draw: Draw) -> list[dict[str, Tensor]]:
    """The result and every gradient: of ours, of plain PyTorch in the same dtype, and of plain PyTorch in float64."""
    double = {name: value.double() if is_float(value) else value for name, value in arguments.items()}
    upstream = draw.floats(*subject.plain(**double).shape)
    plain = subject.plain
    if subject.wide and not _is_there(subject, arguments):
        plain = _in_float32(plain)
    return [
        _with_gradients(call, subject, values, upstream)
        for call, values in ((subject.ours, arguments), (plain, arguments), (subject.plain, double))
    ]


def _with_gradients(call: Any, subject: Subject, arguments: Arguments, upstream: Tensor) -> dict[str, Tensor]:
    learnt = {name: v.detach().requires_grad_() for name, v in arguments.items() if is_float(v)}
    for name in subject.fixed:
        learnt.pop(name, None)
    output = call(**{**arguments, **learnt})
    results = {"result": output.detach()}
    if learnt:
        reached = output.isfinite()  # infinity says: nothing here
        given = upstream.to(output.device, output.dtype)[reached]
        grads = torch.autograd.grad(output[reached], list(learnt.values()), given)
        results |= {f"gradient of {name}": grad for name, grad in zip(learnt, grads, strict=True)}
    return results


def is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _is_there(subject: Subject, arguments: Arguments) -> bool:
    """Whether torch has the plain form and its gradient in this dtype on this device."""
    try:
        learnt = {name: v.detach().requires_grad_() if is_float(v) else v for name, v in arguments.items()}
        subject.plain(**learnt).sum().backward()
    except RuntimeError:  # not implemented for 'Half'
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
        ours = torch.full_like(ours, torch.inf)  # infinite in the wrong place: as wrong as can be
    ours, plain, truth = ours[finite], plain[finite], truth[finite]
    half_unit = unit_in_last_place(truth, rows[0][0].dtype) / 2
    found: dict[str, float] = {"numbers": truth.numel()}
    for kind, reduce in (("max", Tensor.amax), ("mean", Tensor.mean)):
        mine, theirs = (float(reduce((value - truth).abs().nan_to_num(torch.inf))) for value in (ours, plain))
        floor = float(reduce(half_unit))
        found |= {f"{kind}_error": mine, f"{kind}_error_plain": theirs, f"{kind}_ratio": mine / max(theirs, floor)}
    return {name: float(f"{number:.4g}") for name, number in found.items()}


def unit_in_last_place(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance to the next number of this dtype, at float64 values."""
    limits = torch.finfo(dtype)
    exponent = values.abs().clamp(min=limits.smallest_normal).log2().floor()
    return limits.eps * exponent.exp2()


def worst(row: dict[str, Any]) -> float:
    """The larger of its two ratios."""
    return max(row["max_ratio"], row["mean_ratio"])


def judged(row: dict[str, Any]) -> bool:
    return getattr(torch, row["dtype"]) in JUDGED


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--size", type=int, default=400, help="rows of the inputs")
    parser.add_argument("--seeds", type=int, default=5, help="inputs per operator and dtype")
    parser.add_argument("--out", type=out_file, required=True)
    options = parser.parse_args(arguments)
    rows = []
    for subject in SUBJECTS:
        for dtype in DTYPES:
            rows += measure(subject, dtype, options.device, options.size, range(options.seeds))
        row = max((row for row in rows if row["operator"] == subject.name and judged(row)), key=worst)
        print(f"{subject.name:40} {worst(row):6.2f}  {row['dtype']}, {row['what']}", flush=True)
    few_bits = [row for row in rows if judged(row)]
    over = [row for row in few_bits if not worst(row) <= ALLOWED]
    record = {
        "program": "reliability.numbers.precision",
        "machine": machine(options.device),
        "settings": {"device": options.device, "size": options.size, "seeds": options.seeds, "allowed": ALLOWED},
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

"""Calls of registered operators without their public functions, as compiled and traced programs make them.

The calls that the samples of the catalogue make, with first and second derivatives, are recorded. A case changes one or
two arguments of one of them: ranks, sizes, dtypes, devices, values and numbers. Any result and any Python exception is
allowed; a crash, or a message that is not one line, is not.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import pointgrad
from pointgrad.catalog import CASES, Case, Draw, Make, first_float
from pointgrad.ops.registry import registered

from .check import Mismatch, Tally, is_plain

SIGNATURES = 6  # recorded calls of one operator
NUMBERS = (-1, 0, 1, 2, 2**40, 2**62, 2**63 - 1, -(2**63))
DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool,
    torch.complex64,
)  # fmt: skip

Call = tuple[torch._ops.OpOverload, tuple[Any, ...]]


class Recorder(TorchDispatchMode):
    """Records calls of registered operators, at most one for each list of shapes and dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, dict[str, Call]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "pointgrad":
            of_operator = self.calls.setdefault(func._schema.name, {})
            signature = str([described(arg) for arg in args])
            if signature in of_operator or len(of_operator) < SIGNATURES:
                of_operator[signature] = (func, args)
        return func(*args, **(kwargs or {}))


@functools.cache
def recorded() -> list[Call]:
    """Calls of every registered operator, sorted by operator."""
    recorder = Recorder()
    for case in CASES:
        if case.op.registered:
            torch.manual_seed(0)
            with recorder:
                run_twice(case)
    missing = {f"pointgrad::{name}" for name in registered} - recorder.calls.keys()
    if missing:
        raise ValueError(f"samples must call every registered operator, got no call of {', '.join(sorted(missing))}")
    return [call for _, calls in sorted(recorder.calls.items()) for call in calls.values()]


def run_twice(case: Case) -> None:
    """Call an operator and compute its first and second derivatives."""
    arguments = case.sample.build(Make())
    sources = case.op.sources(arguments)
    output = first_float(case({**arguments, **sources}))
    if sources and output.requires_grad:
        inputs, upstream = list(sources.values()), torch.ones_like(output).requires_grad_()
        grads = torch.autograd.grad(output, inputs, upstream, create_graph=True, allow_unused=True)
        second = [grad for grad in grads if grad is not None and grad.requires_grad]
        if second:
            ones = [torch.ones_like(grad) for grad in second]
            torch.autograd.grad(second, [*inputs, upstream], ones, allow_unused=True)


def draw_and_check(draw: Draw, backend: str, tally: Tally, about_to: Callable[..., None]) -> None:
    """Change a recorded call and run it."""
    func, given = draw.pick("call", recorded())
    name = func._schema.name.removeprefix("pointgrad::")
    draw.choices["operator name"] = name
    args = [arg.detach().to(draw.device) if isinstance(arg, Tensor) else arg for arg in given]
    for _ in range(draw.number("changes", 1, 2)):
        place = draw.number("argument", 0, len(args) - 1)
        if not isinstance(args[place], Tensor) or is_plain(args[place]):
            args[place] = changed(draw, args[place], args)
    about_to(draw.choices, {argument.name: arg for argument, arg in zip(func._schema.arguments, args, strict=False)})
    try:
        with pointgrad.backend(backend):
            func(*args)
            if draw.device != "cpu":
                torch.cuda.synchronize()
    except Exception as error:
        kind = type(error).__name__
        if isinstance(error, (TypeError, ValueError)) and "\n" in str(error).strip():
            raise Mismatch(f"a message must be one line, got {kind}: {error}") from error
        if "CUDA error" in str(error):
            raise Mismatch(f"{name} accesses invalid memory: {error}") from error
        tally.add("outcome", "refused")
        tally.add("exceptions", kind)
    else:
        tally.add("outcome", "returned")
    tally.add("operators", name)


def changed(draw: Draw, value: Any, args: list[Any]) -> Any:
    """A different value for an argument of a call."""
    if isinstance(value, Tensor):
        return changed_tensor(draw, value, [arg for arg in args if isinstance(arg, Tensor)])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.pick("number", (value - 1, value + 1, *NUMBERS))
    if isinstance(value, float):
        return draw.pick("float", (0.0, -1.0, torch.nan, torch.inf, -torch.inf, 1e300, 1e-300))
    if isinstance(value, str):
        return draw.pick("text", ("", "bogus", value.upper()))
    if isinstance(value, (list, tuple)) and value:
        place = draw.number("place", 0, len(value) - 1)
        number = draw.pick("number", (value[place] + 1, *NUMBERS))
        lists = ([*value[:place], number, *value[place + 1 :]], value[:-1], [*value, 1], [])
        return draw.pick("list", lists)
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    return draw.pick("instead of None", (*tensors, 1))


def changed_tensor(draw: Draw, value: Tensor, tensors: list[Tensor]) -> Any:
    ways: list[Callable[[Tensor], Any]] = [
        lambda v: v.unsqueeze(draw.number("dim", 0, v.dim())),
        lambda v: v.to(draw.pick("dtype", DTYPES)),
        lambda v: v.reshape(-1),
        lambda v: v.to("meta"),
        lambda v: draw.pick("other", tensors),
        lambda v: v.new_empty(0),
        lambda v: v.new_zeros(()),
        lambda v: None,
    ]
    if value.dim():
        dim = draw.number("dim", 0, value.dim() - 1)
        size = value.shape[dim]
        ways += [
            lambda v: v.transpose(0, -1),
            lambda v: v.narrow(dim, 0, draw.pick("shorter", (0, max(size - 1, 0)))),
            lambda v: torch.cat([v, v.narrow(dim, 0, min(1, size))], dim),
            lambda v: torch.cat([v] * draw.pick("times", (2, 50)), dim),
            lambda v: v.to_sparse(),
        ]
        if size:
            ways += [lambda v: v.select(dim, 0)]
        if value.numel() and value.dtype in (torch.int64, torch.int32):
            ways += [lambda v: with_number(v, draw.number("at", 0, v.numel() - 1), draw.pick("number", NUMBERS))] * 3
    return draw.pick("way", ways)(value)


def with_number(value: Tensor, place: int, number: int) -> Tensor:
    value = value.clone(memory_format=torch.contiguous_format)
    limits = torch.iinfo(value.dtype)
    value.view(-1)[place] = min(max(number, limits.min), limits.max)
    return value


def described(arg: Any) -> str:
    return f"{arg.dtype} {tuple(arg.shape)}" if isinstance(arg, Tensor) else type(arg).__name__

"""Calls of public functions with arguments of any kind.

A case replaces one or two arguments of a sample of the catalogue by junk: numbers out of range, tensors of other kinds,
lists, strings, objects. The call must return, or raise an error of one line.
"""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pointgrad
from pointgrad.catalog import OPERATORS, Draw, Make, OpInfo

from .check import Mismatch, Tally

REFUSALS = (TypeError, ValueError, IndexError, NotImplementedError, MemoryError)


class Odd:
    def __repr__(self) -> str:
        return "two\nlines"


OTHERS: tuple[Any, ...] = (
    None, 0, 1, -1, 2**62, 2**63, 2**64, -(2**63), 10**30, 10**400, 1.5, float("nan"), float("inf"), -float("inf"), "",
    "sum", "two\nlines", b"x", [], [1, 2], [1, [2]], (), {}, set(), Odd(), np.zeros(3), np.float32(1.0), np.int64(2),
    np.array(3), True, False, 1j, torch.float32, torch.device("cpu"), print, int, slice(None), range(3), [10**30],
    [2**63, 1], ["a"], [None], [torch.ones(2)],
)  # fmt: skip
TENSORS: tuple[Callable[[], Tensor], ...] = (
    lambda: torch.ones(3),
    lambda: torch.ones(2, 3),
    lambda: torch.ones(()),
    lambda: torch.zeros(0),
    lambda: torch.zeros(0, 3),
    lambda: torch.ones(2, 3, 4),
    lambda: torch.ones(1, 1, 1, 1, 1, 1),
    lambda: torch.arange(3),
    lambda: torch.tensor([2**62, -(2**63)]),
    lambda: torch.zeros(2, 3, dtype=torch.bool),
    lambda: torch.zeros(2, 3, dtype=torch.complex64),
    lambda: torch.zeros(2, 3, dtype=torch.uint16),
    lambda: torch.zeros(2, 3, dtype=torch.float8_e4m3fn),
    lambda: torch.ones(2, 3, dtype=torch.float16),
    lambda: torch.ones(3, 3).to_sparse(),
    lambda: torch.empty(2, 3, device="meta"),
    lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)]),
    lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)], layout=torch.jagged),
    lambda: torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.quint8),
    lambda: torch.nn.Parameter(torch.ones(2, 3)),
)


def draw_and_check(draw: Draw, backend: str, tally: Tally, about_to: Callable[..., None]) -> None:
    """Replace arguments of a sample by junk, and call."""
    op = draw.pick("operator", OPERATORS)
    draw.choices["operator name"] = op.name
    arguments = valid(draw, op)
    named = {*arguments, *inspect.signature(op.call).parameters} - {"arguments", "kwargs"}
    names = sorted(name for name in named if not name.startswith("_"))
    for _ in range(draw.number("changes", 1, 2)):
        name = draw.pick("argument", names)
        if draw.flag("is tensor"):
            with warnings.catch_warnings(action="ignore"):  # torch announces changes of unusual tensors
                arguments[name] = draw.pick("tensor", TENSORS)()
        else:
            arguments[name] = draw.pick("junk", OTHERS)
    about_to(draw.choices, arguments)
    try:
        with pointgrad.backend(backend), warnings.catch_warnings(action="ignore"):
            op.call(**arguments)
    except REFUSALS as error:
        if "\n" in str(error):
            raise Mismatch(f"a message must be one line, got {type(error).__name__}: {error}") from error
        tally.add("outcome", "refused")
        tally.add("exceptions", type(error).__name__)
    except Exception as error:
        if not is_expected(error):
            raise Mismatch(f"an error must state what is wrong, got {type(error).__name__}: {error}") from error
        tally.add("outcome", "refused")
        tally.add("exceptions", type(error).__name__)
    else:
        tally.add("outcome", "returned")
    tally.add("operators", op.name)


def valid(draw: Draw, op: OpInfo) -> dict[str, Any]:
    torch.manual_seed(0)
    builds = [sample.build for sample in op.samples] or [precision.build for precision in op.precision]
    return dict(draw.pick("sample", builds)(Make(device=draw.device, rows=8)))


def is_expected(error: Exception) -> bool:
    """torch's own errors: memory that cannot be allocated, and a parameter that would be overwritten."""
    return "allocate" in str(error) or "in-place operation" in str(error)

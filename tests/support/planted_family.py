"""Operators with planted errors that the fuzzer must find. They are not part of pointgrad; `test_fuzz.py` runs them."""

import os
import signal
from typing import Any

from torch import Tensor

from pointgrad.catalog import OpInfo
from pointgrad.ops import checks, registry


def right(values: Any) -> Tensor:
    checks.tensor("values", values)
    checks.shape(values.dim() == 2 and values.shape[1] == 3, "values", "(N, 3)", values)
    checks.dtype("values", values, checks.FLOATS)
    return values * 2


def differs(values: Any) -> Tensor:
    out = right(values)
    return out + (out.shape[0] > 4) if registry._forced == "cpu" else out


def writes(values: Any) -> Tensor:
    out = right(values)
    values.mul_(2)
    return out


def is_silent(values: Any) -> Tensor:
    return right(values) if isinstance(values, Tensor) and not values.is_complex() else Tensor()


def is_vague(values: Any) -> Tensor:
    if not isinstance(values, Tensor):
        raise ValueError("bad input")
    return right(values)


def dies(values: Any) -> Tensor:
    os.kill(os.getpid(), signal.SIGSEGV)
    return right(values)


PLANTED = {
    call.__name__: OpInfo(call.__name__, call, (), draw=lambda d: {"values": d.floats(d.size(least=1), 3)})
    for call in (right, differs, writes, is_silent, is_vague, dies)
}
OPERATORS = [PLANTED["dies"]]

"""Bad calls, made from valid ones by changing one argument."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pointgrad.catalog import Draw, OpInfo
from pointgrad.catalog.inputs import INTEGERS

Arguments = dict[str, Any]
ON_THE_HOST = ("num_samples", "start")  # may be on the CPU wherever the points are
# Name, contract, received.
MESSAGE = r"^[a-z][\w ]*(\[-?\d+\])? must (be|have|equal|not require) .+, got .+"


def spoil(draw: Draw, op: OpInfo, arguments: Arguments) -> tuple[Arguments, bool]:
    """The arguments with one of them changed, and whether the contract requires that the call is refused."""
    ways: list[tuple[str, str, Any, bool]] = []
    beside = [name for name, value in arguments.items() if isinstance(value, Tensor) and name not in ON_THE_HOST]
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            several = len(beside) > 1 or name in ON_THE_HOST
            ways += [(name, label, change, sure) for label, change, sure in _change_tensor(name, value, several)]
            if draw.device == "cpu":  # on a GPU values are not read on the host
                ways += [(name, "value", change, True) for change in _change_values(name, op, arguments)]
    ways += [(name, "given", value, True) for name, values in op.bad_arguments.items() for value in values]
    name, label, change, sure = draw.pick("spoilt", ways)
    draw.choices["spoilt as"] = f"{name}: {label}"
    changed = change(arguments[name]) if isinstance(change, Callable) else change  # type: ignore[arg-type]
    return {**arguments, name: changed}, sure


def _change_tensor(name: str, value: Tensor, several: bool) -> list[tuple[str, Any, bool]]:
    """Label, change, and whether the call must be refused."""
    is_index = name == "index" or name.endswith(("offsets", "lengths"))
    ways: list[tuple[str, Any, bool]] = [
        ("a list of lists", lambda v: [[[[[[v.tolist()]]]]]], True),
        ("an array", lambda v: np.zeros(tuple(v.shape)), True),
        ("a string", "points", True),
        ("complex", lambda v: v.to(torch.complex64), True),
        ("wrong kind of number", lambda v: v.bool() if v.is_floating_point() else v.double(), is_index),
        ("one more dimension", lambda v: v.unsqueeze(0), False),
        ("longer", lambda v: torch.cat([v, v[:1]]) if v.dim() else v, False),
        ("wider", lambda v: torch.cat([v, v[..., :1]], -1) if v.dim() else v, False),
        ("many dimensions", lambda v: v.reshape(*v.shape, *(1,) * 6), False),
    ]
    if value.dim():
        ways += [("sparse", lambda v: v.to_sparse(), True)]
    if value.dim() and value.shape[0]:
        ways += [("one dimension less", lambda v: v[0], False), ("shorter", lambda v: v[1:], False)]
    if several:
        ways += [("on another device", lambda v: v.to("meta"), True)]
    return ways


def _change_values(name: str, op: OpInfo, arguments: Arguments) -> list[Any]:
    """Changes that put a wrong number into a tensor of integers."""
    value: Tensor = arguments[name]
    if not value.numel() or value.dtype not in INTEGERS:
        return []
    most = torch.iinfo(value.dtype).max

    def put(number: int, place: int) -> Callable[[Tensor], Tensor]:
        def change(value: Tensor) -> Tensor:
            value = value.clone(memory_format=torch.contiguous_format)
            value.view(-1)[place] = number
            return value

        return change

    if name.endswith("offsets"):
        ways = [put(1, 0), put(-1, 0), put(-most, -1), put(most, -1), put(int(value[-1]) + 1, -1)]
        return ways if len(value) > 1 else ways[:2]
    if name.endswith("lengths"):
        return [put(-1, 0), put(-most, 0), put(most, -1)]
    if name in ("start", "target"):
        return [put(most, 0), put(-most, 0), put(-2, 0)]
    rows, last = op.index_rows(arguments), value.numel() - 1
    if name == "index" and rows is not None:
        return [put(-2, last), put(rows, last), put(rows, 0), put(most, 0), put(-most - 1, last // 2)]
    return []

"""Operators for TorchScript, which cannot compile the functions of this package.

A function `f` with the decorator `operator` starts with `if torch.jit.is_scripting()` and in this case calls
`torch.ops.pointgrad_compat.f`. TorchScript compiles only this branch, and the operator calls `f` in Python.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

_Function = TypeVar("_Function", bound=Callable[..., Any])

_library = torch.library.Library("pointgrad_compat", "DEF")


def operator(function: _Function) -> _Function:
    """Register a function as `pointgrad_compat::<name>`, with the schema of its annotations.

    Its gradient is that of the operators that it calls.
    """
    if _define(function):
        _library.impl(function.__name__, function, "CompositeImplicitAutograd")
    return function


def opaque(fake: Callable[..., Tensor], *tags: torch.Tag) -> Callable[[_Function], _Function]:
    """Register a function without gradient, which `torch.compile` cannot trace either, because it reads values.

    Args:
        fake: Returns a result of the right shape and dtype for the same arguments.
        tags: Tags of the operator.
    """

    def register(function: _Function) -> _Function:
        if _define(function, *tags):
            name = function.__name__
            _library.impl(name, function, "CompositeExplicitAutograd")
            torch.library.register_fake(f"pointgrad_compat::{name}", fake, lib=_library)
        return function

    return register


def _define(function: Callable[..., Any], *tags: torch.Tag) -> bool:
    """Define an operator, unless it exists because a module is reloaded.

    The alias analysis is conservative, because the function may write to `out`.
    """
    if hasattr(torch.ops.pointgrad_compat, function.__name__):
        return False
    schema = torch.library.infer_schema(function, mutates_args=())
    _library.define(function.__name__ + schema, "CONSERVATIVE", tags=(torch.Tag.pt2_compliant_tag, *tags))
    return True

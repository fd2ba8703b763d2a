"""Definition of operators in `torch.ops.pyg`."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])

if hasattr(torch.ops.pyg, "knn"):
    raise ImportError("torch.ops.pyg is already registered: pyg-lib and pointgrad.compat.pyg_lib exclude each other")

library = torch.library.Library("pyg", "FRAGMENT")


def composite(schema: str) -> Callable[[_Kernel], _Kernel]:
    """Define an operator that consists of other operators, from which its gradient and compiled code follow."""

    def register(kernel: _Kernel) -> _Kernel:
        library.impl(_define(schema), kernel, "CompositeImplicitAutograd")
        return kernel

    return register


def opaque(schema: str, fake: Callable[..., Tensor], *tags: torch.Tag) -> Callable[[_Kernel], _Kernel]:
    """Define an operator that reads values of tensors, and is therefore one node of a compiled graph.

    Args:
        schema: Name, arguments and results.
        fake: Returns a tensor of the right shape and dtype for the same arguments.
        tags: Tags of the operator.
    """

    def register(kernel: _Kernel) -> _Kernel:
        name = _define(schema, *tags)
        library.impl(name, kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(f"pyg::{name}", fake, lib=library)
        return kernel

    return register


def _define(schema: str, *tags: torch.Tag) -> str:
    """Define an operator. "CONSERVATIVE", because it may write to `out`, which pyg-lib's schemas do not state."""
    return library.define(schema, "CONSERVATIVE", tags=(torch.Tag.pt2_compliant_tag, *tags))

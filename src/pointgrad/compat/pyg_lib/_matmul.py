"""Matrix products of groups of rows."""

from typing import Any

import torch
from torch import Tensor

from pointgrad.ops import checks

from ._library import composite, library, opaque


@composite("grouped_matmul(Tensor[] input, Tensor[] other) -> Tensor[]")
def grouped_matmul(input: list[Tensor], other: list[Tensor]) -> list[Tensor]:
    checks.value(len(input) == len(other), "others", f"a list of {len(input)} tensors, like inputs", len(other))
    for left, right in zip(input, other, strict=True):
        checks.shape(left.dim() == 2, "inputs", "a list of matrices (N, K)", left)
        fits = right.dim() == 2 and right.shape[0] == left.shape[1]
        checks.shape(fits, "others", lambda: f"a list of matrices (K, M), here with K = {left.shape[1]}", right)  # noqa: B023
    return [left @ right for left, right in zip(input, other, strict=True)]


def _check(input: Tensor, ptr: Tensor, other: Tensor) -> None:
    checks.shape(input.dim() == 2, "inputs", "(N, K)", input)
    checks.shape(ptr.dim() == 1 and ptr.shape[0] >= 1, "ptr", "(B + 1,)", ptr)
    fits = other.dim() == 3 and other.shape[0] == ptr.shape[0] - 1 and other.shape[1] == input.shape[1]
    checks.shape(fits, "other", lambda: f"(B, K, M) with B = {ptr.shape[0] - 1} and K = {input.shape[1]}", other)
    checks.dtype("ptr", ptr, checks.INDICES)
    checks.same_dtype("other", other, "inputs", input)
    checks.device("other", other, "inputs", input)


def _empty_product(input: Tensor, ptr: Tensor, other: Tensor) -> Tensor:
    _check(input, ptr, other)
    return input.new_empty(input.shape[0], other.shape[2])


@opaque("segment_matmul(Tensor input, Tensor ptr, Tensor other) -> Tensor", _empty_product)
def segment_matmul(input: Tensor, ptr: Tensor, other: Tensor) -> Tensor:
    out = _empty_product(input, ptr, other)
    sizes = _sizes(ptr, input)
    for rows, matrix, result in zip(input.split(sizes), other, out.split(sizes), strict=True):
        torch.mm(rows, matrix, out=result)
    return out


def _empty_outer(left: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    checks.shape(left.dim() == 2, "left", "(N, K)", left)
    checks.shape(right.dim() == 2 and right.shape[0] == left.shape[0], "right", "(N, M), like left", right)
    checks.shape(ptr.dim() == 1 and ptr.shape[0] >= 1, "ptr", "(B + 1,)", ptr)
    return left.new_empty(ptr.shape[0] - 1, left.shape[1], right.shape[1])


@opaque("_segment_outer(Tensor left, Tensor right, Tensor ptr) -> Tensor", _empty_outer)
def _segment_outer(left: Tensor, right: Tensor, ptr: Tensor) -> Tensor:
    """Products (B, K, M) of the segments of left (N, K), transposed, and right (N, M)."""
    out = _empty_outer(left, right, ptr)
    sizes = _sizes(ptr, left)
    for a, b, result in zip(left.split(sizes), right.split(sizes), out, strict=True):
        torch.mm(a.t(), b, out=result)
    return out


def _sizes(ptr: Tensor, rows: Tensor) -> list[int]:
    host = ptr.cpu()
    checks.offsets_values(host, rows.shape[0], "ptr")
    return host.diff().tolist()


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _segment_matmul_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
    input, ptr, other = ctx.saved_tensors
    need_input, _, need_other = ctx.needs_input_grad
    grad_input = torch.ops.pyg.segment_matmul(grad, ptr, other.transpose(1, 2)) if need_input else None
    grad_other = torch.ops.pyg._segment_outer(input, grad, ptr) if need_other else None
    return grad_input, None, grad_other


def _segment_outer_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    left, right, ptr = ctx.saved_tensors
    need_left, need_right, _ = ctx.needs_input_grad
    grad_left = torch.ops.pyg.segment_matmul(right, ptr, grad.transpose(1, 2)) if need_left else None
    grad_right = torch.ops.pyg.segment_matmul(left, ptr, grad) if need_right else None
    return grad_left, grad_right, None


torch.library.register_autograd("pyg::segment_matmul", _segment_matmul_backward, setup_context=_save, lib=library)
torch.library.register_autograd("pyg::_segment_outer", _segment_outer_backward, setup_context=_save, lib=library)

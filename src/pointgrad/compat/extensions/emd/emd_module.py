"""`extensions.emd.emd_module`: the assignment by auction of PoinTr."""

from typing import Any

import torch
from torch import Tensor, nn

from ... import emd

__all__ = ["emdFunction", "emdModule"]


class emdFunction(torch.autograd.Function):
    """Squared distances (B, N) of assigned points and the assignment (B, N) int32; only `xyz1` has a gradient."""

    @staticmethod
    def forward(ctx: Any, xyz1: Tensor, xyz2: Tensor, eps: float, iters: int) -> tuple[Tensor, Tensor]:
        xyz1, xyz2 = xyz1.float(), xyz2.float()
        dist, price = xyz1.new_zeros(xyz1.shape[:2]), xyz1.new_zeros(xyz1.shape[:2])
        assignment, inverse = dist.int(), dist.int()
        unused = [None] * 8
        arguments: list[Any] = [xyz1, xyz2, dist, assignment, price, inverse, *unused, eps, iters]
        emd.forward(*arguments)
        ctx.save_for_backward(xyz1, xyz2, assignment)
        ctx.mark_non_differentiable(assignment)
        return dist, assignment

    @staticmethod
    def backward(ctx: Any, grad_dist: Tensor, grad_assignment: Any) -> tuple[Tensor, Tensor, None, None]:
        xyz1, xyz2, assignment = ctx.saved_tensors
        grad = torch.zeros_like(xyz1)
        emd.backward(xyz1, xyz2, grad, grad_dist, assignment)
        return grad, torch.zeros_like(xyz2), None, None


class emdModule(nn.Module):
    """Assignment between two clouds (B, N, 3) of equal size."""

    def forward(self, input1: Tensor, input2: Tensor, eps: float, iters: int) -> tuple[Tensor, Tensor]:
        return emdFunction.apply(input1, input2, eps, iters)

"""`extensions.emd.emd`: the approximate earth mover's distance of Point-MAE."""

from typing import Any

import torch
from torch import Tensor, nn

from ... import emd_cuda

__all__ = ["EarthMoverDistanceFunction", "earth_mover_distance"]


class EarthMoverDistanceFunction(torch.autograd.Function):
    """Cost of the approximate matching: clouds (B, N, 3) and (B, M, 3), costs (B,)."""

    @staticmethod
    def forward(ctx: Any, xyz1: Tensor, xyz2: Tensor) -> Tensor:
        match = emd_cuda.approxmatch_forward(xyz1, xyz2)
        ctx.save_for_backward(xyz1, xyz2, match)
        return emd_cuda.matchcost_forward(xyz1, xyz2, match)

    @staticmethod
    def backward(ctx: Any, grad_cost: Tensor) -> tuple[Tensor, Tensor]:
        grad1, grad2 = emd_cuda.matchcost_backward(grad_cost, *ctx.saved_tensors)
        return grad1, grad2


class earth_mover_distance(nn.Module):
    """Mean cost per point of `xyz1` (B, N, 3) of the approximate matching with `xyz2` (B, M, 3)."""

    def forward(self, xyz1: Tensor, xyz2: Tensor, transpose: bool = False) -> Tensor:
        cost = EarthMoverDistanceFunction.apply(xyz1, xyz2)
        return (cost / xyz1.shape[1]).mean()

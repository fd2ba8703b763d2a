"""The Chamfer distance as in GRNet, PoinTr and Point-MAE, whose folder `extensions` has no `__init__.py`."""

import chamfer
import torch


class ChamferFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, xyz1, xyz2):
        dist1, dist2, idx1, idx2 = chamfer.forward(xyz1, xyz2)
        ctx.save_for_backward(xyz1, xyz2, idx1, idx2)
        return dist1, dist2

    @staticmethod
    def backward(ctx, grad_dist1, grad_dist2):
        xyz1, xyz2, idx1, idx2 = ctx.saved_tensors
        return tuple(chamfer.backward(xyz1, xyz2, idx1, idx2, grad_dist1, grad_dist2))


class ChamferDistanceL2(torch.nn.Module):
    def forward(self, xyz1, xyz2):
        dist1, dist2 = ChamferFunction.apply(xyz1, xyz2)
        return torch.mean(dist1) + torch.mean(dist2)

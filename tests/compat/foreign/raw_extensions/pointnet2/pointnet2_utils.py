"""Autograd functions around a compiled module, as in VoteNet's folder `pointnet2`, which has no `__init__.py`."""

import pointnet2._ext as _ext
from torch.autograd import Function


class FurthestPointSampling(Function):
    @staticmethod
    def forward(ctx, xyz, npoint):
        fps_inds = _ext.furthest_point_sampling(xyz, npoint)
        ctx.mark_non_differentiable(fps_inds)
        return fps_inds

    @staticmethod
    def backward(ctx, grad=None):
        return None, None


class GatherOperation(Function):
    @staticmethod
    def forward(ctx, features, idx):
        ctx.for_backwards = (idx, features.size(2))
        return _ext.gather_points(features, idx)

    @staticmethod
    def backward(ctx, grad_out):
        idx, size = ctx.for_backwards
        return _ext.gather_points_grad(grad_out.contiguous(), idx, size), None


class GroupingOperation(Function):
    @staticmethod
    def forward(ctx, features, idx):
        ctx.for_backwards = (idx, features.size(2))
        return _ext.group_points(features, idx)

    @staticmethod
    def backward(ctx, grad_out):
        idx, size = ctx.for_backwards
        return _ext.group_points_grad(grad_out.contiguous(), idx, size), None


class BallQuery(Function):
    @staticmethod
    def forward(ctx, radius, nsample, xyz, new_xyz):
        inds = _ext.ball_query(new_xyz, xyz, radius, nsample)
        ctx.mark_non_differentiable(inds)
        return inds

    @staticmethod
    def backward(ctx, grad=None):
        return None, None, None, None


def query_and_group(radius, nsample, xyz, new_xyz, features):
    idx = BallQuery.apply(radius, nsample, xyz, new_xyz)
    grouped_xyz = GroupingOperation.apply(xyz.transpose(1, 2).contiguous(), idx)
    grouped_xyz -= new_xyz.transpose(1, 2).unsqueeze(-1)  # in place, as in the original
    return grouped_xyz, GroupingOperation.apply(features, idx)

"""A compiled module that is imported relative to its package, as in OpenPCDet."""

import torch

from . import pointnet2_stack_cuda as pointnet2


def stack_farthest_point_sample(xyz, xyz_batch_cnt, npoint):
    temp = torch.cuda.FloatTensor(xyz.shape[0]).fill_(1e10)
    output = torch.cuda.IntTensor(npoint.sum().item())
    pointnet2.stack_farthest_point_sampling_wrapper(xyz, temp, xyz_batch_cnt, output, npoint)
    return output

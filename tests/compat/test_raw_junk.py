"""Functions of compiled modules with arguments that do not fit each other: one-line errors, never a crash."""

import random

import pytest
import torch

from pointgrad.compat import PG_OP, chamfer, emd, emd_cuda
from pointgrad.compat import pointnet2_batch_cuda as batch
from pointgrad.compat import pointnet2_stack_cuda as stack
from pointgrad.compat import pointops_cuda as older
from pointgrad.compat.pointnet2 import _ext
from pointgrad.compat.pointops import _C

B, N, M, K, C = 2, 20, 6, 4, 3
rand, zeros = torch.rand, torch.zeros


def ints(*shape, high=N):
    return torch.randint(0, high, shape, dtype=torch.int32)


def numbers(*values):
    return torch.tensor(values, dtype=torch.int32)


def table():
    return torch.cat([torch.full((M, 1), 2), ints(M, 3)], 1).int()


OFFSETS = (numbers(12, N), numbers(4, M))  # of points and queries
SIZES, NEW_SIZES = numbers(12, 8), numbers(4, 2)

CALLS = [
    (batch.farthest_point_sampling_wrapper, lambda: [B, N, M, rand(B, N, 3), None, ints(B, M)]),
    (batch.ball_query_wrapper, lambda: [B, N, M, 0.3, K, rand(B, M, 3), rand(B, N, 3), ints(B, M, K)]),
    (batch.group_points_wrapper, lambda: [B, C, N, M, K, rand(B, C, N), ints(B, M, K), zeros(B, C, M, K)]),
    (batch.group_points_grad_wrapper, lambda: [B, C, N, M, K, rand(B, C, M, K), ints(B, M, K), zeros(B, C, N)]),
    (batch.three_nn_wrapper, lambda: [B, N, M, rand(B, N, 3), rand(B, M, 3), zeros(B, N, 3), ints(B, N, 3)]),
    (batch.three_interpolate_wrapper,
     lambda: [B, C, N, M, rand(B, C, N), ints(B, M, 3), rand(B, M, 3), zeros(B, C, M)]),
    (stack.ball_query_wrapper, lambda: [2, M, 0.3, K, rand(M, 3), NEW_SIZES, rand(N, 3), SIZES, ints(M, K)]),
    (stack.group_points_wrapper,
     lambda: [2, M, C, K, rand(N, C), SIZES, ints(M, K, high=8), NEW_SIZES, zeros(M, C, K)]),
    (stack.stack_farthest_point_sampling_wrapper, lambda: [rand(N, 3), zeros(N), SIZES, ints(M), NEW_SIZES]),
    (stack.three_nn_wrapper, lambda: [rand(M, 3), NEW_SIZES, rand(N, 3), SIZES, zeros(M, 3), ints(M, 3)]),
    (stack.three_interpolate_grad_wrapper, lambda: [rand(M, C), ints(M, 3), rand(M, 3), zeros(N, C)]),
    (stack.voxel_query_wrapper,
     lambda: [M, 5, 5, 5, K, 0.4, 1, 1, 1, rand(M, 3), rand(N, 3), ints(M, 4, high=1), ints(1, 5, 5, 5), ints(M, K)]),
    (older.knnquery_cuda, lambda: [M, K, rand(N, 3), rand(M, 3), *OFFSETS, ints(M, K), zeros(M, K)]),
    (older.ballquery_cuda, lambda: [M, 0.3, K, rand(N, 3), rand(M, 3), *OFFSETS, ints(M, K)]),
    (older.furthestsampling_cuda, lambda: [2, 12, rand(N, 3), *OFFSETS, zeros(N), ints(M)]),
    (older.labelstat_ballrange_cuda,
     lambda: [B, N, M, 0.3, C, rand(B, M, 3), rand(B, N, 3), ints(B, N, C), ints(B, M, C)]),
    (older.labelstat_and_ballquery_cuda,
     lambda: [B, N, M, 0.3, K, C, rand(B, M, 3), rand(B, N, 3), ints(B, N, C), ints(B, M, K), ints(B, M, C)]),
    (older.featuregather_backward_cuda, lambda: [B, N, M, C, rand(B, C, M), ints(B, M), zeros(B, C, N)]),
    (_C.ball_query_cuda, lambda: [M, K, 0.05, 0.3, rand(N, 3), rand(M, 3), *OFFSETS, ints(M, K), zeros(M, K)]),
    (_C.random_ball_query_cuda,
     lambda: [M, K, 0.05, 0.3, torch.arange(N).int(), rand(N, 3), rand(M, 3), *OFFSETS, ints(M, K), zeros(M, K)]),
    (_C.subtraction_backward_cuda, lambda: [M, K, C, ints(M, K), rand(M, K, C), zeros(M, C), zeros(N, C)]),
    (_C.interpolation_backward_cuda, lambda: [M, C, 3, rand(M, C), ints(M, 3), rand(M, 3), zeros(N, C)]),
    (_C.attention_fusion_step_forward_cuda,
     lambda: [M, 2, C, rand(M, 2), rand(N, 2, C), ints(M), ints(M), zeros(N, 2, C)]),
    (_ext.group_points_grad, lambda: [rand(B, C, M, K), ints(B, M, K), N]),
    (_ext.three_interpolate_grad, lambda: [rand(B, C, M), ints(B, M, 3), rand(B, M, 3), N]),
    (chamfer.backward, lambda: [rand(B, N, 3), rand(B, M, 3), ints(B, N, high=M), ints(B, M), rand(B, N), rand(B, M)]),
    (emd.backward, lambda: [rand(B, N, 3), rand(B, N, 3), zeros(B, N, 3), rand(B, N), ints(B, N)]),
    (emd_cuda.matchcost_backward, lambda: [rand(B), rand(B, N, 3), rand(B, M, 3), rand(B, M, N)]),
    (PG_OP.ballquery_batch_p,
     lambda: [rand(N, 3), ints(N, high=1), numbers(0, N), ints(N * K), ints(N, 2), N, K, 0.3]),
    (PG_OP.bfs_cluster,
     lambda: [ints(N, high=2), ints(40), torch.stack([torch.arange(N) * 2, torch.full((N,), 2)], 1).int(),
              ints(0), ints(0), N, 2]),
    (PG_OP.voxelize_fp, lambda: [rand(N, C), zeros(M, C), table(), 4, M, 3, C]),
    (PG_OP.voxelize_bp, lambda: [rand(M, C), zeros(N, C), table(), 4, M, 3, C]),
    (PG_OP.roipool_bp, lambda: [zeros(N, C), numbers(0, 5, N), ints(2, C), rand(2, C), 2, C]),
    (PG_OP.get_iou,
     lambda: [ints(N), numbers(0, 5, N), ints(N, high=3).long() - 1, numbers(3, 4, 5), zeros(2, 3), 3, 2]),
]  # fmt: skip

SCALARS = [0, -1, 1, 2.5, None, "a", True, float("nan"), float("inf"), 2**64, 7]


def changed(value, choose):
    if not isinstance(value, torch.Tensor):
        return choose.choice(SCALARS)
    forms = [
        lambda: value + 100,
        lambda: value - 100,
        lambda: value.double() if value.is_floating_point() else value.long(),
        lambda: value.half() if value.is_floating_point() else value.short(),
        lambda: value.int() if value.is_floating_point() else value.float(),
        lambda: value.to("meta"),
        lambda: value * float("nan"),
        lambda: value.flatten(),
        lambda: value.flatten()[:-1],
        lambda: value.flip(0),
        lambda: torch.cat([value, value]),
        lambda: value.unsqueeze(0).expand(1, *value.shape),
        lambda: value.mT if value.dim() > 1 else value[::2],
    ]
    return choose.choice(forms)()


@pytest.mark.parametrize(("function", "arguments"), CALLS, ids=lambda value: getattr(value, "__name__", "of"))
def test_junk(function, arguments):
    choose = random.Random(function.__name__)
    function(*arguments())  # valid as it is
    for _ in range(60):
        values = arguments()
        for place in choose.sample(range(len(values)), choose.choice([1, 1, 2])):
            values[place] = changed(values[place], choose)
        message = ""
        try:
            function(*values)
        except (TypeError, ValueError) as error:
            message = str(error)
        assert " must " in message or not message
        assert "\n" not in message

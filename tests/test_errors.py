"""Bad input: every message says name, contract, received; on every backend, before any kernel runs."""

import re

import numpy as np
import pytest
import torch

import pointgrad

fps = pointgrad.farthest_point_sampling
points = torch.zeros(6, 3)
padded = torch.zeros(2, 6, 3)
features = torch.zeros(6, 4)
index = torch.zeros(5, dtype=torch.int64)
corners = torch.zeros(6, 8, 4)
nan = float("nan")


def ints(*values):
    return torch.tensor(values, dtype=torch.int64)


# What metadata shows: the same on every device.
METADATA = [
    (lambda: fps(np.zeros((6, 3)), 2), TypeError, "points must be a torch.Tensor, got numpy.ndarray"),
    (lambda: fps(None, 2), TypeError, "points must be a torch.Tensor, got NoneType None"),
    (lambda: fps(torch.zeros(6), 2), ValueError, "points must be (N, 3) or (B, N, 3), got (6,)"),
    (lambda: fps(torch.zeros(6, 2), 2), ValueError, "points must be (N, 3) or (B, N, 3), got (6, 2)"),
    (lambda: fps(torch.zeros(1, 1, 6, 3), 2), ValueError, "points must be (N, 3) or (B, N, 3), got (1, 1, 6, 3)"),
    (lambda: fps(points.long(), 2), TypeError, "points must be float32, float64, float16 or bfloat16, got int64"),
    (lambda: fps(points, 2, offsets=[0, 6]), TypeError, "offsets must be a torch.Tensor, got list"),
    (lambda: fps(points, 2, offsets=ints()), ValueError, "offsets must be (B + 1,), got (0,)"),
    (lambda: fps(points, 2, offsets=torch.zeros(2)), TypeError, "offsets must be int64 or int32, got float32"),
    (lambda: fps(points, 2, offsets=ints(0, 6).to("meta")), ValueError, "offsets must be on the device of points, cpu, got meta"),
    (lambda: fps(padded, 2, offsets=ints(0, 6)), ValueError, "offsets must be None for padded points (B, N, 3); use lengths, got a tensor"),
    (lambda: fps(points, 2, lengths=ints(6)), ValueError, "lengths must be None for packed points (N, 3); use offsets, got a tensor"),
    (lambda: fps(padded, 2, lengths=ints(6)), ValueError, "lengths must be (B,) = (2,), got (1,)"),
    (lambda: fps(points, 0), ValueError, "num_samples must be at least 1, got 0"),
    (lambda: fps(points, -3), ValueError, "num_samples must be at least 1, got -3"),
    (lambda: fps(points, 2.0), TypeError, "num_samples must be an int or one per cloud, got float 2.0"),
    (lambda: fps(points, nan), TypeError, "num_samples must be an int or one per cloud, got float nan"),
    (lambda: fps(points, True), TypeError, "num_samples must be an int or one per cloud, got bool True"),
    (lambda: fps(points, "all"), TypeError, "num_samples must be an int or one per cloud, got str 'all'"),
    (lambda: fps(points, [nan]), TypeError, "num_samples must be an int or one per cloud, got float nan"),
    (lambda: fps(points, [-1]), ValueError, "num_samples must be at least 0 for each cloud, got -1"),
    (lambda: fps(points, torch.tensor([nan])), TypeError, "num_samples must be int64 or int32, got float32"),
    (lambda: fps(points, [1, 1]), ValueError, "num_samples must be one count for each of 1 clouds, got 2"),
    (lambda: fps(padded, ints(1)), ValueError, "num_samples must be one count for each of 2 clouds, got 1"),
    (lambda: fps(points, 2, start=-1), ValueError, "start must be at least 0, got -1"),
    (lambda: fps(points, 2, start="last"), ValueError, """start must be an index, one per cloud, a set per cloud, or "random", got 'last'"""),
    (lambda: fps(points, 2, start=1.5), TypeError, 'start must be an index, one per cloud, a set per cloud, or "random", got float 1.5'),
    (lambda: fps(points, 2, start=[[1, 2], [3]]), TypeError, 'start must be an index, one per cloud, a set per cloud, or "random", got [[1, 2], [3]]'),
    (lambda: fps(points, 2, start=2**70), ValueError, f"start must be at least 0, got {2**70}"),
    (lambda: fps(points, 2**63), ValueError, f"num_samples must be at least 1, got {2**63}"),
    (lambda: fps(points, b"2"), TypeError, "num_samples must be an int or one per cloud, got bytes"),
    (lambda: fps(points.to_sparse(), 2), TypeError, "points must be a dense tensor, got torch.sparse_coo"),
    (lambda: pointgrad.voxel_sampling(points, 1e39), ValueError, "voxel_size must be finite and positive, got 1e+39"),
    (lambda: pointgrad.voxel_sampling(points, 1e-320), ValueError, "voxel_size must be finite and positive, got 1e-320"),
    (lambda: pointgrad.voxel_sampling(points, True), TypeError, "voxel_size must be a number or three numbers, got bool True"),
    (lambda: pointgrad.group(features.long(), index[:, None], points=points.long(), centers=points[:5].long()), TypeError, "features must be float32, float64, float16 or bfloat16, got int64"),
    (lambda: fps(points, 2, start=[0, 0]), ValueError, "start must be (B,) or (B, S) with B = 1, got (2,)"),
    (lambda: fps(points, 2, start=torch.zeros(1)), TypeError, "start must be int64 or int32, got float32"),
    (lambda: fps(points, 2, start=ints(0, 1, 2)[None]), ValueError, "start must be at most num_samples = 2 indices per cloud, got 3"),
    (lambda: pointgrad.random_sampling(points, 0), ValueError, "num_samples must be at least 1, got 0"),
    (lambda: pointgrad.voxel_sampling(points, 0.0), ValueError, "voxel_size must be finite and positive, got 0.0"),
    (lambda: pointgrad.voxel_sampling(points, nan), ValueError, "voxel_size must be finite and positive, got nan"),
    (lambda: pointgrad.voxel_sampling(points, (1.0, 2.0)), ValueError, "voxel_size must be one number or three, got 2 numbers"),
    (lambda: pointgrad.voxel_sampling(points, "1"), TypeError, "voxel_size must be a number or three numbers, got str '1'"),
    (lambda: pointgrad.gather([1.0], index), TypeError, "features must be a torch.Tensor, got list"),
    (lambda: pointgrad.gather(torch.zeros(7), index), ValueError, "features must be (N, C) or (B, N, C), got (7,)"),
    (lambda: pointgrad.gather(features, ints()[None]), ValueError, "index must be (M,) with features (N, C), or (B, M) with (B, N, C), got (1, 0)"),
    (lambda: pointgrad.gather(padded, index.expand(3, 5)), ValueError, "index must be (M,) with features (N, C), or (B, M) with (B, N, C), got (3, 5)"),
    (lambda: pointgrad.gather(features, index.double()), TypeError, "index must be int64 or int32, got float64"),
    (lambda: pointgrad.gather(features.to(torch.complex64), index), TypeError, "features must be float32, float64, float16, bfloat16, int64, int32, int16, int8, uint8 or bool, got complex64"),
    (lambda: pointgrad.gather(features, index.to("meta")), ValueError, "index must be on the device of features, cpu, got meta"),
    (lambda: pointgrad.group(features, index), ValueError, "index must be (M, K) with features (N, C), or (B, M, K) with (B, N, C), got (5,)"),
    (lambda: pointgrad.group(features, index[:, None], points=points), TypeError, "centers must be a torch.Tensor, got NoneType None"),
    (lambda: pointgrad.group(features, index[:, None], points=points, centers=points), ValueError, "centers must be (5, 3), got (6, 3)"),
    (lambda: pointgrad.group(features, index[:, None], points=points.double(), centers=points[:5].double()), TypeError, "points must have the dtype of features, float32, got float64"),
    (lambda: pointgrad.trilinear(corners, None), TypeError, "points must be a torch.Tensor, got NoneType None"),
    (lambda: pointgrad.trilinear(torch.zeros(6, 7, 4), points), ValueError, "corners must be (N, 8, F), got (6, 7, 4)"),
    (lambda: pointgrad.trilinear(corners, points[:5]), ValueError, "points must be (N, 3) = (6, 3), got (5, 3)"),
    (lambda: pointgrad.trilinear(corners.long(), points), TypeError, "corners must be float32, float64, float16 or bfloat16, got int64"),
    (lambda: pointgrad.trilinear(corners, points.half()), TypeError, "points must have the dtype of corners, float32, got float16"),
    (lambda: pointgrad.trilinear(corners, points.to("meta")), ValueError, "points must be on the device of corners, cpu, got meta"),
    (lambda: pointgrad.backend("gpu"), ValueError, "backend must be one of reference, cpu, triton, got 'gpu'"),
]  # fmt: skip

# What only values show: on CPU tensors.
VALUES = [
    (lambda: fps(points, 2, offsets=ints(1, 6)), "offsets must be 0 in its first entry, got 1"),
    (lambda: fps(points, 2, offsets=ints(0, 4, 2, 6)), "offsets must be non-decreasing, 4 before cloud 1's end, got 2"),
    (lambda: fps(points, 2, offsets=ints(0, 5)), "offsets must be N = 6 in its last entry, got 5"),
    (lambda: fps(points, 2, offsets=ints(0, 9)), "offsets must be N = 6 in its last entry, got 9"),
    (lambda: fps(padded, 2, lengths=ints(7, 1)), "lengths must be in [0, N = 6], got 7 for cloud 0"),
    (lambda: fps(padded, 2, lengths=ints(6, -1)), "lengths must be in [0, N = 6], got -1 for cloud 1"),
    (lambda: fps(points, 7), "num_samples must be at most the 6 points of cloud 0, got 7"),
    (lambda: fps(points, 3, offsets=ints(0, 4, 6)), "num_samples must be at most the 2 points of cloud 1, got 3"),
    (lambda: fps(points, [1, 3], offsets=ints(0, 4, 6)), "num_samples must be at most the 2 points of cloud 1, got 3"),
    (lambda: fps(torch.zeros(0, 3), 1), "num_samples must be at most the 0 points of cloud 0, got 1"),
    (lambda: pointgrad.random_sampling(points, 7), "num_samples must be at most the 6 points of cloud 0, got 7"),
    (lambda: pointgrad.voxel_sampling(points, 1.0, offsets=ints(0, 7)), "offsets must be N = 6 in its last entry, got 7"),
    (lambda: fps(points, 2, start=6), "start must be in [0, 6) for cloud 0, got 6"),
    (lambda: fps(padded, 2, start=ints(0, 5), lengths=ints(6, 5)), "start must be in [0, 5) for cloud 1, got 5"),
    (lambda: fps(points, 2, start=ints(-1)), "start must be in [0, 6) for cloud 0, got -1"),
    (lambda: fps(points, 3, start=ints(0, -1, 2)[None]), "start must be in [0, 6) for cloud 0, got 2"),
    (lambda: fps(points, [1], start=ints(0, 1)[None]), "start must be at most 1 indices for cloud 0, got 2"),
    (lambda: pointgrad.gather(features, ints(0, 6)), "index must be -1 (nothing here) or in [0, 6), got 6"),
    (lambda: pointgrad.gather(features, ints(0, -2)), "index must be -1 (nothing here) or in [0, 6), got -2"),
    (lambda: pointgrad.gather(padded, ints(0, 1, 2, 60).view(2, 2)), "index must be -1 (nothing here) or in [0, 6), got 60"),
    (lambda: pointgrad.group(features, ints(0, 6)[None]), "index must be -1 (nothing here) or in [0, 6), got 6"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), METADATA, ids=[message for *_, message in METADATA])
def test_metadata(call, error, message, place):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()


@pytest.mark.parametrize(("call", "message"), VALUES, ids=[message for _, message in VALUES])
def test_values(call, message, place):
    if place.device != "cpu":
        pytest.skip("values are read on the host for CPU tensors only")
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


def test_order_of_checks():
    """Several things wrong at once: type before shape before dtype before device before value."""
    with pytest.raises(TypeError, match=r"index must be a torch\.Tensor"):
        pointgrad.gather(torch.zeros(7), None)
    with pytest.raises(ValueError, match="features must be"):
        pointgrad.gather(torch.zeros(7, dtype=torch.complex64), index)
    with pytest.raises(TypeError, match="start must be"):
        fps(points.long(), 7, start=1.5)
    with pytest.raises(TypeError, match="index must be int64"):
        pointgrad.gather(features, index.to("meta", torch.float32))


def test_nothing_is_lost():
    """A call that fails leaves its arguments as they were."""
    before = features.clone()
    with pytest.raises(ValueError, match="index must be"):
        pointgrad.gather(features, ints(0, 99))
    assert torch.equal(features, before)


def test_errors_reach_compiled_code():
    compiled = torch.compile(pointgrad.gather, fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match=r"index must be -1 \(nothing here\) or in \[0, 6\), got 6"):
        compiled(features, ints(0, 6))

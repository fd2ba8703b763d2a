"""Ways to call sampling, right and wrong."""

import functools
from typing import Any

import numpy as np
import torch

import pointgrad

from .base import Case, ints


@functools.wraps(pointgrad.farthest_point_sampling)
def radii(**arguments: Any) -> Any:
    return pointgrad.farthest_point_sampling(**arguments, return_radius=True)


fps, random, voxel = pointgrad.farthest_point_sampling, pointgrad.random_sampling, pointgrad.voxel_sampling

CASES = [
    Case(
        "fps/one-cloud", fps, lambda m: {"points": m.floats(60, 3), "num_samples": 20},
        large=lambda m: {"points": m.floats(20000, 3), "num_samples": 600},
    ),
    Case(
        "fps/packed", radii,
        lambda m: {"points": m.floats(60, 3), "num_samples": 9, "offsets": m.ints(0, 9, 35, 60)},
        large=lambda m: {"points": m.floats(9000, 3), "num_samples": 100, "offsets": m.ints(0, 100, 4000, 9000)},
    ),
    Case(
        "fps/packed-counts", radii,
        lambda m: {
            "points": m.floats(40, 3), "num_samples": [3, 0, 11, 0], "offsets": m.ints(0, 7, 7, 30, 40),
        },
        waits=True,
    ),
    Case(
        "fps/padded", fps, lambda m: {"points": m.floats(3, 30, 3), "num_samples": 12},
        large=lambda m: {"points": m.floats(5, 3000, 3), "num_samples": 300},
    ),
    Case(
        "fps/padded-lengths", radii,
        lambda m: {"points": m.floats(4, 30, 3), "num_samples": 8, "lengths": m.ints(30, 5, 0, 8)},
    ),
    Case(
        "fps/padded-counts", radii,
        lambda m: {"points": m.floats(3, 20, 3), "num_samples": [4, 20, 0], "lengths": m.ints(20, 11, 3)},
        waits=True,
    ),
    Case(
        "fps/two-dimensions", radii,
        lambda m: {"points": m.floats(60, 2), "num_samples": 9, "offsets": m.ints(0, 9, 35, 60)},
    ),
    Case(
        "fps/five-dimensions", radii,
        lambda m: {"points": m.floats(3, 30, 5), "num_samples": 12, "lengths": m.ints(30, 5, 12)},
        waits=True,
    ),
    Case(
        "fps/start", radii,
        lambda m: {"points": m.floats(2, 20, 3), "num_samples": 6, "start": m.ints(3, 19)},
    ),
    Case(
        "fps/start-set", radii,
        lambda m: {
            "points": m.floats(50, 3), "num_samples": 6, "offsets": m.ints(0, 20, 50),
            "start": torch.stack([m.ints(4, 9, 2), m.ints(29, -1, -1)]),
        },
    ),
    Case(
        "fps/random-start", fps,
        lambda m: {"points": m.floats(4, 30, 3), "num_samples": 5, "start": "random"},
        seeded=True, waits=True,
    ),
    Case("fps/ties", radii, lambda m: {"points": m.grid(2, 40, 3), "num_samples": 40}),
    Case("fps/all-equal", radii, lambda m: {"points": m.equal(2, 12, 3), "num_samples": 12}),
    Case("fps/single", radii, lambda m: {"points": m.floats(1, 3), "num_samples": 1}),
    Case("fps/all-points", radii, lambda m: {"points": m.floats(33, 3), "num_samples": 33}),
    Case("fps/empty", radii, lambda m: {"points": m.floats(2, 0, 3), "num_samples": 3}),
    Case("fps/no-clouds", radii, lambda m: {"points": m.floats(0, 5, 3), "num_samples": 3}),
    Case(
        "random/packed", random,
        lambda m: {"points": m.floats(40, 3), "num_samples": 5, "offsets": m.ints(0, 5, 20, 40)},
        seeded=True, waits=True,
    ),
    Case(
        "random/packed-counts", random,
        lambda m: {"points": m.floats(40, 3), "num_samples": [5, 0, 20], "offsets": m.ints(0, 5, 20, 40)},
        seeded=True, waits=True,
    ),
    Case(
        "random/padded", random,
        lambda m: {"points": m.floats(3, 9, 3), "num_samples": 12, "lengths": m.ints(9, 0, 4)},
        seeded=True, waits=True,
    ),
    Case(
        "random/empty", random, lambda m: {"points": m.floats(2, 0, 3), "num_samples": 3},
        seeded=True, waits=True,
    ),
    Case(
        "voxel/packed", voxel,
        lambda m: {"points": m.floats(60, 3), "voxel_size": 0.9, "offsets": m.ints(0, 20, 20, 60)},
        waits=True,
        large=lambda m: {"points": m.floats(9000, 3), "voxel_size": 0.2, "offsets": m.ints(0, 4000, 9000)},
    ),
    Case(
        "voxel/padded", voxel,
        lambda m: {"points": m.floats(3, 20, 3), "voxel_size": (0.5, 1.0, 2.0), "lengths": m.ints(20, 0, 7)},
    ),
    Case("voxel/ties", voxel, lambda m: {"points": m.grid(2, 40, 3), "voxel_size": 2.0}),
    Case("voxel/single", voxel, lambda m: {"points": m.floats(1, 3), "voxel_size": 1.0}, waits=True),
    Case("voxel/empty", voxel, lambda m: {"points": m.floats(0, 3), "voxel_size": 1.0}, waits=True),
]  # fmt: skip

points = torch.zeros(6, 3)
padded = torch.zeros(2, 6, 3)
index = torch.zeros(5, dtype=torch.int64)
nan = float("nan")

# What metadata shows: the same on every device.
BAD_METADATA = [
    (lambda: fps(np.zeros((6, 3)), 2), TypeError, "points must be a torch.Tensor, got numpy.ndarray"),
    (lambda: fps(None, 2), TypeError, "points must be a torch.Tensor, got NoneType None"),
    (lambda: fps(torch.zeros(6), 2), ValueError, "points must be (N, D) or (B, N, D) with D at least 1, got (6,)"),
    (lambda: fps(torch.zeros(6, 0), 2), ValueError, "points must be (N, D) or (B, N, D) with D at least 1, got (6, 0)"),
    (lambda: fps(torch.zeros(1, 1, 6, 3), 2), ValueError, "points must be (N, D) or (B, N, D) with D at least 1, got (1, 1, 6, 3)"),
    (lambda: fps(points.long(), 2), TypeError, "points must be float32, float64, float16 or bfloat16, got int64"),
    (lambda: fps(points, 2, offsets=[0, 6]), TypeError, "offsets must be a torch.Tensor, got list"),
    (lambda: fps(points, 2, offsets=ints()), ValueError, "offsets must be (B + 1,), got (0,)"),
    (lambda: fps(points, 2, offsets=torch.zeros(2)), TypeError, "offsets must be int64 or int32, got float32"),
    (lambda: fps(points, 2, offsets=ints(0, 6).to("meta")), ValueError, "offsets must be on the device of points, cpu, got meta"),
    (lambda: fps(padded, 2, offsets=ints(0, 6)), ValueError, "offsets must be None for padded points (B, N, D); use lengths, got a tensor"),
    (lambda: fps(points, 2, lengths=ints(6)), ValueError, "lengths must be None for packed points (N, D); use offsets, got a tensor"),
    (lambda: fps(padded, 2, lengths=ints(6)), ValueError, "lengths must be (B,) = (2,), got (1,)"),
    (lambda: fps(points, 0), ValueError, "num_samples must be at least 1, got 0"),
    (lambda: fps(points, -3), ValueError, "num_samples must be at least 1, got -3"),
    (lambda: fps(points, 2.0), TypeError, "num_samples must be an int or one int per cloud, got float 2.0"),
    (lambda: fps(points, nan), TypeError, "num_samples must be an int or one int per cloud, got float nan"),
    (lambda: fps(points, torch.tensor([2]).to_sparse()), TypeError, "num_samples must be a dense tensor, got torch.sparse_coo"),
    (lambda: fps(points, torch.tensor([2], device="meta")), ValueError, "num_samples must be on a device that holds values, got meta"),
    (lambda: fps(points, 2, start=torch.tensor([1]).to_sparse()), TypeError, "start must be a dense tensor, got torch.sparse_coo"),
    (lambda: fps(points, True), TypeError, "num_samples must be an int or one int per cloud, got bool True"),
    (lambda: fps(points, "all"), TypeError, "num_samples must be an int or one int per cloud, got str 'all'"),
    (lambda: fps(points, [nan]), TypeError, "num_samples must be an int or one int per cloud, got float nan"),
    (lambda: fps(points, [-1]), ValueError, "num_samples must be at least 0 for each cloud, got -1"),
    (lambda: fps(points, torch.tensor([nan])), TypeError, "num_samples must be int64 or int32, got float32"),
    (lambda: fps(points, [1, 1]), ValueError, "num_samples must have one count per cloud, B = 1, got 2"),
    (lambda: fps(padded, ints(1)), ValueError, "num_samples must have one count per cloud, B = 2, got 1"),
    (lambda: fps(points, 2, start=-1), ValueError, "start must be at least 0, got -1"),
    (lambda: fps(points, 2, start="last"), ValueError, """start must be an index, one index per cloud, a set of indices per cloud, or "random", got 'last'"""),
    (lambda: fps(points, 2, start=1.5), TypeError, 'start must be an index, one index per cloud, a set of indices per cloud, or "random", got float 1.5'),
    (lambda: fps(points, 2, start=[[1, 2], [3]]), TypeError, 'start must be an index, one index per cloud, a set of indices per cloud, or "random", got [[1, 2], [3]]'),
    (lambda: fps(points, 2, start=2**70), ValueError, f"start must be at least 0, got {2**70}"),
    (lambda: fps(points, 2**63), ValueError, f"num_samples must be at least 1, got {2**63}"),
    (lambda: fps(points, b"2"), TypeError, "num_samples must be an int or one int per cloud, got bytes"),
    (lambda: fps(points.to_sparse(), 2), TypeError, "points must be a dense tensor, got torch.sparse_coo"),
    (lambda: pointgrad.voxel_sampling(points, 1e39), ValueError, "voxel_size must be finite and positive, got 1e+39"),
    (lambda: pointgrad.voxel_sampling(points, 1e-320), ValueError, "voxel_size must be finite and positive, got 1e-320"),
    (lambda: pointgrad.voxel_sampling(points, True), TypeError, "voxel_size must be a number or three numbers, got bool True"),
    (lambda: fps(points, 2, start=[0, 0]), ValueError, "start must be (B,) or (B, S) with B = 1, got (2,)"),
    (lambda: fps(points, 2, start=torch.zeros(1)), TypeError, "start must be int64 or int32, got float32"),
    (lambda: fps(points, 2, start=ints(0, 1, 2)[None]), ValueError, "start must have at most num_samples = 2 indices per cloud, got 3"),
    (lambda: pointgrad.random_sampling(points, 0), ValueError, "num_samples must be at least 1, got 0"),
    (lambda: pointgrad.voxel_sampling(points, 0.0), ValueError, "voxel_size must be finite and positive, got 0.0"),
    (lambda: pointgrad.voxel_sampling(points, nan), ValueError, "voxel_size must be finite and positive, got nan"),
    (lambda: pointgrad.voxel_sampling(points, (1.0, 2.0)), ValueError, "voxel_size must be one number or three, got 2 numbers"),
    (lambda: pointgrad.voxel_sampling(points, "1"), TypeError, "voxel_size must be a number or three numbers, got str '1'"),
]  # fmt: skip

# What only values show: on CPU tensors.
BAD_VALUES = [
    (lambda: fps(points, 2, offsets=ints(1, 6)), "offsets[0] must be 0, got 1"),
    (lambda: fps(points, 2, offsets=ints(0, 4, 2, 6)), "offsets[2] must be at least offsets[1] = 4, got 2"),
    (lambda: fps(points, 2, offsets=ints(0, 5)), "offsets[-1] must equal N = 6, got 5"),
    (lambda: fps(points, 2, offsets=ints(0, 9)), "offsets[-1] must equal N = 6, got 9"),
    (lambda: fps(padded, 2, lengths=ints(7, 1)), "lengths[0] must be in [0, N = 6], got 7"),
    (lambda: fps(padded, 2, lengths=ints(6, -1)), "lengths[1] must be in [0, N = 6], got -1"),
    (lambda: fps(points, 7), "num_samples must be at most 6, the size of cloud 0, got 7"),
    (lambda: fps(points, 3, offsets=ints(0, 4, 6)), "num_samples must be at most 2, the size of cloud 1, got 3"),
    (lambda: fps(points, [1, 3], offsets=ints(0, 4, 6)), "num_samples must be at most 2, the size of cloud 1, got 3"),
    (lambda: fps(torch.zeros(0, 3), 1), "num_samples must be at most 0, the size of cloud 0, got 1"),
    (lambda: pointgrad.random_sampling(points, 7), "num_samples must be at most 6, the size of cloud 0, got 7"),
    (lambda: pointgrad.voxel_sampling(points, 1.0, offsets=ints(0, 7)), "offsets[-1] must equal N = 6, got 7"),
    (lambda: fps(points, 2, start=6), "start must be in [0, 6) for cloud 0, got 6"),
    (lambda: fps(padded, 2, start=ints(0, 5), lengths=ints(6, 5)), "start must be in [0, 5) for cloud 1, got 5"),
    (lambda: fps(points, 2, start=ints(-1)), "start must be in [0, 6) for cloud 0, got -1"),
    (lambda: fps(points, 3, start=ints(0, -1, 2)[None]), "start must be in [0, 6) for cloud 0, got 2"),
    (lambda: fps(points, [1], start=ints(0, 1)[None]), "start must have at most 1 indices for cloud 0, got 2"),
]  # fmt: skip

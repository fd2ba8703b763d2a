"""Inputs and plain loops for the tests of torch_cluster."""

import math

import numpy as np
import torch

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.uint8]


def ragged(sizes, dim=3, dtype=torch.float32, device="cpu"):
    """Packed clouds of these sizes, and their batch vector."""
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    values = torch.rand(len(batch), dim) * 8
    return values.to(device, dtype), batch.to(device)


def pairs_by_loop(x, y, batch_x, batch_y):
    """For each query the points of its cloud as (squared distance, index), in float64."""
    x, y = (np.asarray(v.cpu().double()).reshape(len(v), -1) for v in (x, y))
    for query in range(len(y)):
        same = [point for point in range(len(x)) if batch_x[point] == batch_y[query]]
        yield query, [(((x[point] - y[query]) ** 2).sum(), point) for point in same]


def knn_by_loop(x, y, k, batch_x, batch_y):
    found = [(q, p) for q, pairs in pairs_by_loop(x, y, batch_x, batch_y) for _, p in sorted(pairs)[:k]]
    return torch.tensor(found, dtype=torch.int64).reshape(-1, 2).T


def radius_by_loop(x, y, r, batch_x, batch_y, most):
    pairs = pairs_by_loop(x, y, batch_x, batch_y)
    found = [(q, p) for q, near in pairs for p in [p for d2, p in near if d2 < r * r][:most]]
    return torch.tensor(found, dtype=torch.int64).reshape(-1, 2).T


def fps_by_loop(points, count, start):
    """Samples of one cloud in float64, without repetition."""
    points = points.double().reshape(len(points), -1)
    picks, distance = [], torch.full((len(points),), math.inf, dtype=torch.float64)
    while len(picks) < count:
        picks.append(int(distance.argmax()) if picks else start)
        distance = torch.minimum(distance, (points - points[picks[-1]]).square().sum(1))
        distance[picks[-1]] = -1
    return picks

"""Inputs and plain loops for the tests of pointops."""

import torch

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
ENDS = [12, 12, 15, 40]  # an empty cloud, and one of three points
NEW_ENDS = [4, 6, 8, 20]


def ends(place, *values):
    return torch.tensor(values, dtype=torch.int32, device=place.device)


def packed(place, count=40, dtype=torch.float32):
    return torch.rand(count, 3).to(place.device, dtype)


def ranges(*values):
    return [range(begin, end) for begin, end in zip((0, *values), values, strict=False)]


def neighbors_by_loop(points, cloud, center):
    """(distance2, index) of all points of one cloud, nearest first, in at least float32."""
    wide = torch.promote_types(points.dtype, torch.float32)
    members = torch.tensor(list(cloud), dtype=torch.int64)
    x, y, z = (points.cpu().to(wide)[members] - center.cpu().to(wide)).unbind(1)
    distance2 = x * x + y * y + z * z
    order = distance2.argsort(stable=True)
    return distance2[order], members[order]


def queries_of(*new_ends):
    """List of (cloud, query) for all queries."""
    return [(cloud, query) for cloud, queries in enumerate(ranges(*new_ends)) for query in queries]

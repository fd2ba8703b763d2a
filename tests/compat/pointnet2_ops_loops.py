"""Inputs and plain loops for the tests of pointnet2_ops."""

import torch


def clouds(place, batch=2, count=40, dtype=torch.float32, grid=False):
    points = torch.rand(batch, count, 3)
    return (points.mul(5).floor() if grid else points).to(place.device, dtype)


def farthest_by_loop(points, count):
    """Samples of one cloud, starting from the first point; ties go to the smallest index."""
    picks = [0]
    while len(picks) < count:
        distance2 = torch.stack([((points - points[pick]) ** 2).sum(1) for pick in picks]).amin(0)
        picks.append(int(distance2.argmax()))
    return picks


def ball_by_loop(radius, nsample, points, center):
    """Neighbors of one center: d < r in index order; padded with the first one, or with 0 if there is none."""
    wide = torch.promote_types(points.dtype, torch.float32)
    x, y, z = (points.to(wide) - center.to(wide)).unbind(1)
    hits = (x * x + y * y + z * z < torch.tensor(radius, dtype=wide) ** 2).nonzero().flatten().tolist()
    hits = hits[:nsample]
    return hits + [hits[0] if hits else 0] * (nsample - len(hits))

"""Pointcept's pointops, which takes packed clouds with the ends of each, int32, and runs on GPUs only."""

from typing import Any

import torch
from torch import Tensor

from ..contest import Attempt, Declined
from . import Peer
from .edges import flat, local, starts
from .trees import every_pick

MOST_NEIGHBORS = 128  # beyond which it writes out of bounds


def ends(points: Tensor, count: int | None = None) -> Tensor:
    each = points.shape[1] if count is None else count
    return torch.arange(1, len(points) + 1, dtype=torch.int32, device=points.device) * each


def lists(found: Tensor, points: Tensor, queries: Tensor) -> Tensor:
    rows = found.long().view(*queries.shape[:2], -1)
    return torch.where(rows < 0, -1, rows - starts(points)[:-1, None, None])


def fps(pointops: Any, points: Tensor, count: int) -> Attempt:
    every_pick(points, count)
    packed, offset, new_offset = flat(points), ends(points), ends(points, count)
    call = lambda: pointops.farthest_point_sampling(packed, offset, new_offset)  # noqa: E731
    return Attempt(call, lambda found: local(found.long(), points))


def knn(pointops: Any, points: Tensor, k: int) -> Attempt:
    if k > MOST_NEIGHBORS:
        raise Declined(f"at most {MOST_NEIGHBORS} neighbours")
    packed, offset = flat(points), ends(points)
    return Attempt(lambda: pointops.knn_query(k, packed, offset)[0], lambda found: lists(found, points, points))


def ball(pointops: Any, points: Tensor, queries: Tensor, radius: float, k: int) -> Attempt:
    packed, asked, offset, new_offset = flat(points), flat(queries), ends(points), ends(queries)
    call = lambda: pointops.ball_query(k, radius, 0.0, packed, offset, asked, new_offset)[0]  # noqa: E731
    return Attempt(call, lambda found: lists(found, points, queries))


def group(pointops: Any, features: Tensor, index: Tensor) -> Attempt:
    indices = index.int()
    return Attempt(lambda: pointops.grouping2(features, indices))


def group_backward(pointops: Any, features: Tensor, index: Tensor, grad: Tensor) -> Attempt:
    source = features.detach().requires_grad_()
    output = pointops.grouping2(source, index.int())
    return Attempt(lambda: torch.autograd.grad(output, source, grad, retain_graph=True)[0])


PEERS = [
    Peer(
        "pointops",
        "pointops",
        "pointops",
        "python setup.py install in Pointcept's libs/pointops",
        {"fps": fps, "knn": knn, "ball": ball, "group": group, "group_backward": group_backward},
        ("cuda",),
        # Written from the documentation; has not met the library yet.
    ),
]

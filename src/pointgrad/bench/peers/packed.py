"""Pointcept's pointops, which takes packed clouds with int32 end offsets. GPU only."""

from typing import Any

import torch
from torch import Tensor

from ..comparison import Declined, Implementation
from . import Peer
from .edges import flat, local, starts
from .trees import decline_all_visits

MOST_NEIGHBORS = 128  # with more, pointops writes out of bounds


def ends(points: Tensor, count: int | None = None) -> Tensor:
    each = points.shape[1] if count is None else count
    return torch.arange(1, len(points) + 1, dtype=torch.int32, device=points.device) * each


def lists(found: Tensor, points: Tensor, queries: Tensor) -> Tensor:
    rows = found.long().view(*queries.shape[:2], -1)
    return torch.where(rows < 0, -1, rows - starts(points)[:-1, None, None])


def fps(pointops: Any, points: Tensor, num_samples: int) -> Implementation:
    decline_all_visits(points, num_samples)
    packed, offset, new_offset = flat(points), ends(points), ends(points, num_samples)
    call = lambda: pointops.farthest_point_sampling(packed, offset, new_offset)  # noqa: E731
    return Implementation(call, lambda found: local(found.long(), points))


def knn(pointops: Any, points: Tensor, k: int) -> Implementation:
    if k > MOST_NEIGHBORS:
        raise Declined(f"supports at most {MOST_NEIGHBORS} neighbors")
    packed, offset = flat(points), ends(points)
    return Implementation(lambda: pointops.knn_query(k, packed, offset)[0], lambda found: lists(found, points, points))


def ball(pointops: Any, points: Tensor, queries: Tensor, radius: float, k: int) -> Implementation:
    packed, packed_queries, offset, new_offset = flat(points), flat(queries), ends(points), ends(queries)
    call = lambda: pointops.ball_query(k, radius, 0.0, packed, offset, packed_queries, new_offset)[0]  # noqa: E731
    return Implementation(call, lambda found: lists(found, points, queries))


def group(pointops: Any, features: Tensor, index: Tensor) -> Implementation:
    indices = index.int()
    return Implementation(lambda: pointops.grouping2(features, indices))


def group_backward(pointops: Any, features: Tensor, index: Tensor, grad: Tensor) -> Implementation:
    source = features.detach().requires_grad_()
    output = pointops.grouping2(source, index.int())
    return Implementation(lambda: torch.autograd.grad(output, source, grad, retain_graph=True)[0])


PEERS = [
    Peer(
        "pointops",
        "pointops",
        "pointops",
        "python setup.py install in Pointcept's libs/pointops",
        {"fps": fps, "knn": knn, "ball": ball, "group": group, "group_backward": group_backward},
        ("cuda",),
        # Written from the documentation, not tested with the library.
    ),
]

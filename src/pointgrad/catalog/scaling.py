"""Inputs that grow to any size, and places at which their results are checked."""

import torch
from torch import Tensor

CHANNELS = 32
NEIGHBORS = 16


def cloud(count: int, device: str) -> Tensor:
    """About one point per unit of volume, so that a ball holds equally many points at every size."""
    generator = torch.Generator(device).manual_seed(0)
    return torch.rand(count, 3, device=device, generator=generator) * count ** (1 / 3)


def exact_features(rows: int, device: str) -> Tensor:
    """(rows, CHANNELS) of small integers, whose sums are exact even in float16: a result is right or wrong."""
    number = torch.arange(rows, device=device)
    dtype = torch.float16 if device == "cuda" else torch.float32
    return torch.stack([((number >> (c % 20)) & 3).to(dtype) for c in range(CHANNELS)], 1)


def some(count: int, device: torch.device, number: int = 64) -> Tensor:
    """Random places and the last one, at which a result is compared with a slow and simple computation."""
    places = torch.randint(0, count, (number,), generator=torch.Generator().manual_seed(1))
    places[-1] = count - 1
    return places.to(device)


def squared(points: Tensor, query: Tensor) -> Tensor:
    """Squared distances, rounded as the contract requires."""
    d = points - query
    return d[:, 0] * d[:, 0] + d[:, 1] * d[:, 1] + d[:, 2] * d[:, 2]

"""Inputs that grow to any size, and places at which their results are checked."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .magnitudes import Arguments

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


def check_picked(plain: Callable[..., Tensor]) -> Callable[[Arguments, Any], None]:
    """A check of some results against the plain form, and of the gradient: how often a row is picked, with its weights.

    Args:
        plain: Takes the arguments in their order: features, index, and weights if there are any.
    """

    def check(arguments: Arguments, result: Any) -> None:
        (features, index, *weights), (picked, grad) = arguments.values(), result
        at = some(len(index), index.device)
        assert torch.equal(picked[at], plain(features, index[at], *(each[at] for each in weights)))
        shares = weights[0].flatten().double() if weights else None
        sums = torch.bincount(index.flatten(), shares, minlength=len(features))
        at = some(len(features), features.device)
        assert torch.equal(grad[at], sums[at, None].to(grad).expand(-1, grad.shape[1]))

    return check

"""Division of one scan into training and validation data, by area."""

from itertools import combinations

import torch
from torch import Tensor

EXACT = 1e-9  # sums of fractions are exact up to this
LEVELS, HELD_OUT = 4, 3  # 16 blocks, of which 3 are for validation


def in_validation(points: Tensor, labels: Tensor) -> Tensor:
    """Choose blocks of a scan for validation.

    The scan is halved four times, along the longer horizontal side of each part, into 16 blocks with equally many
    points. Three blocks are chosen such that as few classes as possible are missing in one of the parts, and that the
    fraction of every class is close to 3/16.

    Args:
        points: Coordinates (N, 3).
        labels: Class, or code, of each point (N,); -1 for no label.

    Returns:
        Mask (N,) of the points for validation. The same for equal input.

    Example:
        >>> line = torch.arange(32.0)[:, None] * torch.tensor([1.0, 0.0, 0.0])
        >>> chosen = in_validation(line, torch.zeros(32, dtype=torch.int64))
        >>> int(chosen.sum()), bool((chosen[0::2] == chosen[1::2]).all())
        (6, True)
    """
    block = _blocks(points)
    known = labels >= 0 if bool((labels >= 0).any()) else torch.ones(len(labels), dtype=torch.bool)
    codes, number = labels[known].unique(return_inverse=True)
    cells = block[known] * len(codes) + number
    counts = torch.bincount(cells, minlength=len(codes) << LEVELS).view(-1, len(codes)).double()
    shares = counts / counts.sum(0)
    choices = torch.tensor(list(combinations(range(1 << LEVELS), HELD_OUT)))
    held_out = shares[choices].sum(1)
    missing = 2.0 * (held_out > 1 - EXACT) + 1.0 * (held_out < EXACT)  # a class that is not trained is worse
    cost = (held_out - HELD_OUT / (1 << LEVELS)).square() + missing
    return torch.isin(block, choices[cost.sum(1).argmin()])


def _blocks(points: Tensor) -> Tensor:
    """Number (N,) of each point's block."""
    xy = points[:, :2].double().nan_to_num(0.0, 0.0, 0.0)
    number = torch.zeros(len(xy), dtype=torch.int64)
    parts = [torch.arange(len(xy))]
    for _ in range(LEVELS):
        halves = []
        for part in parts:
            longer = int((xy[part].amax(0) - xy[part].amin(0)).argmax()) if len(part) else 0
            order = part[xy[part, longer].argsort(stable=True)]
            halves += [order[: len(order) // 2], order[len(order) // 2 :]]
        parts = halves
    for own, part in enumerate(parts):
        number[part] = own
    return number

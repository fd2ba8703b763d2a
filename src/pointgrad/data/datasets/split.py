"""Splits into training and validation data for datasets that do not define them."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from pointgrad.data.mixing import mix

Task = Literal["classification", "segmentation"]
SPLITS = ("train", "val", "test")
WHOLE = "train+val"  # the whole published training set, as used in many papers
FRACTION = 0.1  # of each class for validation, rounded, but at least one sample of classes with two or more


def check_split(split: str | None, allowed: Sequence[str | None]) -> None:
    if split not in allowed:
        raise ValueError(f"split must be one of {', '.join(map(str, allowed))}, got {split!r}")


def held_out(strata: Sequence[int] | Tensor, seed: int) -> Tensor:
    """Choose a random tenth of each stratum; the same for equal seeds.

    Args:
        strata: Stratum of each sample (n,).
        seed: Random seed.

    Returns:
        Mask (n,) of the chosen samples.

    Example:
        >>> held_out([0] * 20 + [1] * 2, seed=0).long().sum()
        tensor(3)
    """
    strata = torch.as_tensor(strata)
    chosen = torch.zeros(len(strata), dtype=torch.bool)
    order = torch.randperm(len(strata), generator=torch.Generator().manual_seed(mix(seed)))
    for stratum in strata.unique():
        members = order[strata[order] == stratum]
        chosen[members[: max(round(FRACTION * len(members)), int(len(members) > 1))]] = True
    return chosen


def part_of_training(strata: Sequence[int] | Tensor, split: str, seed: int) -> list[int]:
    """Return the indices of the samples of a training set that belong to a split: "train", "val" or "train+val"."""
    if split == WHOLE:
        return list(range(len(strata)))
    return torch.nonzero(held_out(strata, seed) == (split == "val")).squeeze(1).tolist()

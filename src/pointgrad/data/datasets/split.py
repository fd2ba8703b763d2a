"""Which samples belong to which split, where the data do not say."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from pointgrad.data.mixing import mix

Task = Literal["classification", "segmentation"]
SPLITS = ("train", "val", "test")
WHOLE = "train+val"  # the published training part as a whole, as many papers use it
SHARE = 0.1  # of each class, rounded; at least one of a class that has two or more


def check_split(split: str | None, allowed: Sequence[str | None]) -> None:
    if split not in allowed:
        raise ValueError(f"split must be one of {', '.join(map(str, allowed))}, got {split!r}")


def held_out(strata: Sequence[int] | Tensor, seed: int) -> Tensor:
    """(n,) bool: a tenth of each stratum, chosen by the seed; the same in every run.

    >>> held_out([0] * 20 + [1] * 2, seed=0).long().sum()
    tensor(3)
    """
    strata = torch.as_tensor(strata)
    chosen = torch.zeros(len(strata), dtype=torch.bool)
    order = torch.randperm(len(strata), generator=torch.Generator().manual_seed(mix(seed)))
    for stratum in strata.unique():
        members = order[strata[order] == stratum]
        chosen[members[: max(round(SHARE * len(members)), int(len(members) > 1))]] = True
    return chosen


def part_of_training(strata: Sequence[int] | Tensor, split: str, seed: int) -> list[int]:
    """Which samples of a training part a split takes: without the tenth to validate on, that tenth, or all."""
    if split == WHOLE:
        return list(range(len(strata)))
    return torch.nonzero(held_out(strata, seed) == (split == "val")).squeeze(1).tolist()

"""Which samples to validate on, where the data do not say."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from pointgrad.data.mixing import mix

Task = Literal["classification", "segmentation"]
SHARE = 0.1  # of each class, rounded; at least one of a class that has two or more
SPLITS = ("train", "val", "test")


def check_split(split: str | None) -> None:
    if split not in (*SPLITS, None):
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")


def held_out(strata: Sequence[int] | Tensor, seed: int) -> Tensor:
    """(n,) bool: a tenth of each stratum, chosen by the seed; the same on every machine and in every run.

    >>> held_out([0] * 20 + [1] * 2, seed=0).long().reshape(11, 2).sum(0).sum()
    tensor(3)
    """
    strata = torch.as_tensor(strata)
    chosen = torch.zeros(len(strata), dtype=torch.bool)
    order = torch.randperm(len(strata), generator=torch.Generator().manual_seed(mix(seed)))
    for stratum in strata.unique():
        members = order[strata[order] == stratum]
        chosen[members[: max(round(SHARE * len(members)), int(len(members) > 1))]] = True
    return chosen

"""Batches of sparse tensors."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..tensor import SparseTensor

__all__ = ["sparse_collate", "sparse_collate_fn"]


def sparse_collate(inputs: list[SparseTensor]) -> SparseTensor:
    """Join tensors with coordinates (N, 3) to one with coordinates (N, 4), where the batch index comes first."""
    stride = inputs[0].stride
    coords, feats = [], []
    for number, sample in enumerate(inputs):
        if sample.stride != stride:
            raise ValueError(f"all inputs must have the stride {stride}, got {sample.stride}")
        voxels = torch.as_tensor(sample.coords)
        coords.append(torch.cat([voxels.new_full((len(voxels), 1), number, dtype=torch.int), voxels], 1))
        feats.append(torch.as_tensor(sample.feats))
    return SparseTensor(torch.cat(feats), torch.cat(coords), stride)


def sparse_collate_fn(inputs: list[Any]) -> Any:
    """Join samples, which are dicts: sparse tensors as `sparse_collate`, arrays by stacking, others as lists."""
    if not isinstance(inputs[0], dict):
        return inputs
    return {name: _join([sample[name] for sample in inputs]) for name in inputs[0]}


def _join(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return sparse_collate_fn(values)
    if isinstance(first, SparseTensor):
        return sparse_collate(values)
    if isinstance(first, (np.ndarray, Tensor)):
        return torch.stack([torch.as_tensor(value) for value in values])
    return values

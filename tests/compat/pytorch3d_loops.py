"""Inputs and plain loops for the tests of pytorch3d."""

import torch

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def grid_points(*shape, dtype=torch.float64):
    """Points with integer coordinates: distances are exact in every dtype, and many are equal."""
    return torch.randint(0, 4, shape).to(dtype)


def distances(a, b, norm):
    """Distances (P1, P2) of all pairs."""
    difference = (a[:, None].double() - b[None].double()).abs()
    return difference.pow(norm).sum(-1)

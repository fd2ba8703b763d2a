"""Inputs and plain loops for the tests of torch_scatter."""

import itertools
import math

import numpy as np
import torch

nan, inf = float("nan"), float("inf")
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
REDUCTIONS = ["sum", "mul", "mean", "min", "max"]

# Shape of src, shape of index, dim: one index for all, per leading position, per element, and mixtures.
LAYOUTS = [
    ((7,), (7,), -1),
    ((7, 3), (7,), 0),
    ((3, 7), (7,), 1),
    ((3, 7), (7,), -1),
    ((2, 7, 3), (7,), 1),
    ((2, 7, 3), (2, 7), 1),
    ((2, 7, 3), (2, 7), -2),
    ((2, 7, 3), (1, 7), 1),
    ((2, 7, 3), (2, 7, 3), 1),
    ((2, 7, 3), (2, 7, 1), 1),
    ((2, 7, 3), (1, 7, 3), 1),
    ((7, 2, 3), (7, 1, 3), 0),
    ((2, 2, 7), (2, 2, 7), 2),
    ((2, 7, 2, 2), (2, 7, 1, 2), -3),
]


def groups_by_loop(src, index, dim):
    """Positions along `dim` of each group, for each position in the other dimensions."""
    dim = dim % src.dim()
    shape = list(index.shape)
    if len(shape) == 1:
        shape = [1] * dim + shape
    shape += [1] * (src.dim() - len(shape))
    full = np.broadcast_to(index.cpu().numpy().reshape(shape), tuple(src.shape))
    found = {}
    for place in itertools.product(*map(range, src.shape)):
        key = (*place[:dim], int(full[place]), *place[dim + 1 :])
        found.setdefault(key, []).append(place[dim])
    return found


def reduce_by_loop(src, index, dim, size, reduce):
    """Values in float64 or int64, and their positions; empty groups have value 0 and position `src.size(dim)`."""
    dim = dim % src.dim()
    exact = src.detach().cpu().double() if src.is_floating_point() else src.cpu().long()
    shape = [*src.shape[:dim], size, *src.shape[dim + 1 :]]
    values = torch.full(shape, 1 if reduce == "mul" else 0, dtype=exact.dtype)
    arg = torch.full(shape, src.shape[dim])
    for key, places in groups_by_loop(src, index, dim).items():
        members = [exact[(*key[:dim], place, *key[dim + 1 :])].item() for place in places]
        if reduce in ("min", "max"):
            best = max(members) if reduce == "max" else min(members)
            values[key], arg[key] = best, places[members.index(best)]
        elif reduce == "mean":
            values[key] = sum(members) / len(members) if src.is_floating_point() else sum(members) // len(members)
        else:
            values[key] = sum(members) if reduce == "sum" else math.prod(members)
    return values, arg


def values_like(dtype, shape, device="cpu"):
    if dtype.is_floating_point:
        return (torch.randint(-8, 9, shape) / 4).to(device, dtype)  # sums and products are exact even in 16 bits
    return torch.randint(0 if dtype == torch.uint8 else -3, 4, shape).to(device, dtype)


def close(received, expected, dtype):
    """Check equality up to one rounding of the exact result."""
    assert received.dtype == dtype
    if dtype.is_floating_point:
        received, eps = received.cpu().double(), torch.finfo(dtype).eps
        torch.testing.assert_close(received, expected.double(), rtol=eps, atol=0)
    else:
        assert torch.equal(received.cpu(), expected.to(dtype))

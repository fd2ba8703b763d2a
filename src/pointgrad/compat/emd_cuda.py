"""The compiled module `emd_cuda` of Point-MAE and openpoints: an approximate matching of two clouds, and its cost."""

import torch
from torch import Tensor

from pointgrad.ops import checks

__all__ = ["approxmatch_forward", "matchcost_backward", "matchcost_forward"]

_TINY = 1e-9
_LEVELS = (*(-(4.0**power) for power in range(7, -2, -1)), 0.0)


def approxmatch_forward(xyz1: Tensor, xyz2: Tensor) -> Tensor:
    """Match two clouds softly, from near to far pairs.

    Each point of the smaller cloud may be matched several times, so that the total weights of both clouds are equal if
    one size divides the other.

    Args:
        xyz1: (B, N, 3) points.
        xyz2: (B, M, 3) points.

    Returns:
        (B, M, N) weights of the pairs, without gradient.
    """
    _check_clouds(xyz1, xyz2)
    size1, size2 = xyz1.shape[1], xyz2.shape[1]
    checks.shape(size1 > 0, "xyz1", "(B, N, 3) with N at least 1", xyz1)
    checks.shape(size2 > 0, "xyz2", "(B, M, 3) with M at least 1", xyz2)
    clouds = zip(xyz1.detach(), xyz2.detach(), strict=True)
    matches = [_match(points1, points2) for points1, points2 in clouds]
    return torch.stack(matches) if matches else xyz1.new_zeros(0, size2, size1)


def matchcost_forward(xyz1: Tensor, xyz2: Tensor, match: Tensor) -> Tensor:
    """Sum the squared distances of the pairs, weighted by `match` (B, M, N).

    Returns:
        (B,) costs, without gradient.
    """
    _check_clouds(xyz1, xyz2, match)
    clouds = zip(xyz1.detach(), xyz2.detach(), match.detach(), strict=True)
    costs = [(_distance2(points1, points2) * weights).sum() for points1, points2, weights in clouds]
    return torch.stack(costs) if costs else xyz1.new_zeros(0)


def matchcost_backward(grad_cost: Tensor, xyz1: Tensor, xyz2: Tensor, match: Tensor) -> list[Tensor]:
    """Compute the gradients (B, N, 3) of `xyz1` and (B, M, 3) of `xyz2`, given the gradient (B,) of the costs."""
    _check_clouds(xyz1, xyz2, match)
    checks.tensor("grad_cost", grad_cost)
    checks.shape(grad_cost.shape == xyz1.shape[:1], "grad_cost", f"(B,) = ({xyz1.shape[0]},)", grad_cost)
    checks.device("grad_cost", grad_cost, "xyz1", xyz1)
    grad1, grad2 = torch.zeros_like(xyz1), torch.zeros_like(xyz2)
    for cloud, scale in enumerate(grad_cost.detach()):
        difference = xyz2[cloud].detach().unsqueeze(1) - xyz1[cloud].detach()  # (M, N, 3)
        pairs = 2 * scale * match[cloud].detach().unsqueeze(2) * difference
        grad1[cloud], grad2[cloud] = -pairs.sum(0), pairs.sum(1)
    return [grad1, grad2]


def _match(points1: Tensor, points2: Tensor) -> Tensor:
    """Weights (M, N) of one pair of clouds."""
    size1, size2 = points1.shape[0], points2.shape[0]
    left1 = points1.new_full((size1,), max(size2 // size1, 1))  # the weight of each point that is not matched yet
    left2 = points2.new_full((size2,), max(size1 // size2, 1))
    distance2 = _distance2(points1, points2)
    match = torch.zeros_like(distance2)
    for level in _LEVELS:
        near = (level * distance2).exp()
        share1 = left1 / (near.T @ left2 + _TINY)
        wanted = (near @ share1) * left2
        share2 = (left2 / (wanted + _TINY)).clamp(max=1) * left2
        left2 = (left2 - wanted).clamp(min=0)
        part = near * share1 * share2.unsqueeze(1)
        match += part
        left1 = (left1 - part.sum(0)).clamp(min=0)
    return match


def _distance2(points1: Tensor, points2: Tensor) -> Tensor:
    return (points2.unsqueeze(1) - points1).square().sum(2)


def _check_clouds(xyz1: Tensor, xyz2: Tensor, match: Tensor | None = None) -> None:
    for name, xyz in (("xyz1", xyz1), ("xyz2", xyz2)):
        checks.tensor(name, xyz)
        checks.shape(xyz.dim() == 3 and xyz.shape[2] == 3, name, "(B, N, 3)", xyz)
        checks.dtype(name, xyz, checks.FLOATS)
    checks.shape(xyz1.shape[0] == xyz2.shape[0], "xyz2", f"(B, M, 3) with B = {xyz1.shape[0]}", xyz2)
    checks.same_dtype("xyz2", xyz2, "xyz1", xyz1)
    checks.device("xyz2", xyz2, "xyz1", xyz1)
    if match is not None:
        checks.tensor("match", match)
        wanted = (xyz1.shape[0], xyz2.shape[1], xyz1.shape[1])
        checks.shape(match.shape == wanted, "match", f"(B, M, N) = {wanted}", match)
        checks.device("match", match, "xyz1", xyz1)

"""`extensions.chamfer_dist`: Chamfer distances as modules, with the mean over all points of a batch."""

import torch
from torch import Tensor, nn

import pointgrad

from ...chamfer import check_clouds

__all__ = [
    "ChamferDistanceL1",
    "ChamferDistanceL1_PM",
    "ChamferDistanceL2",
    "ChamferDistanceL2_split",
    "ChamferFunction",
]


class ChamferFunction:
    """Squared distances to the nearest point of the other cloud."""

    @staticmethod
    def apply(xyz1: Tensor, xyz2: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the distances.

        Args:
            xyz1: (B, N, 3) points.
            xyz2: (B, M, 3) points.

        Returns:
            (B, N) and (B, M) squared distances, differentiable in both clouds.
        """
        check_clouds(xyz1, xyz2)
        to2, to1 = pointgrad.knn(xyz2, 1, xyz1).distance2, pointgrad.knn(xyz1, 1, xyz2).distance2
        return to2.squeeze(2), to1.squeeze(2)


class _Chamfer(nn.Module):
    """A Chamfer distance.

    Args:
        ignore_zeros: Ignore points whose coordinates sum to zero, if the batch has one cloud.
    """

    def __init__(self, ignore_zeros: bool = False) -> None:
        super().__init__()
        self.ignore_zeros = ignore_zeros

    def distances(self, xyz1: Tensor, xyz2: Tensor) -> tuple[Tensor, Tensor]:
        if self.ignore_zeros and xyz1.shape[0] == 1:
            xyz1, xyz2 = (xyz[xyz.sum(dim=2) != 0].unsqueeze(0) for xyz in (xyz1, xyz2))
        return ChamferFunction.apply(xyz1, xyz2)


class ChamferDistanceL2(_Chamfer):
    """Sum of the mean squared distances in both directions."""

    def forward(self, xyz1: Tensor, xyz2: Tensor) -> Tensor:
        dist1, dist2 = self.distances(xyz1, xyz2)
        return dist1.mean() + dist2.mean()


class ChamferDistanceL2_split(_Chamfer):
    """Mean squared distances in both directions."""

    def forward(self, xyz1: Tensor, xyz2: Tensor) -> tuple[Tensor, Tensor]:
        dist1, dist2 = self.distances(xyz1, xyz2)
        return dist1.mean(), dist2.mean()


class ChamferDistanceL1(_Chamfer):
    """Mean of the mean Euclidean distances in both directions. Coincident points have zero gradient."""

    def forward(self, xyz1: Tensor, xyz2: Tensor) -> Tensor:
        dist1, dist2 = self.distances(xyz1, xyz2)
        return (_root(dist1).mean() + _root(dist2).mean()) / 2


class ChamferDistanceL1_PM(_Chamfer):
    """Mean Euclidean distance from `xyz1` to `xyz2`. Coincident points have zero gradient."""

    def forward(self, xyz1: Tensor, xyz2: Tensor) -> Tensor:
        return _root(self.distances(xyz1, xyz2)[0]).mean()


def _root(distance2: Tensor) -> Tensor:
    """Square root with zero gradient at zero, where the original's is NaN."""
    zero = distance2 == 0
    return torch.where(zero, 0, torch.where(zero, 1, distance2).sqrt())

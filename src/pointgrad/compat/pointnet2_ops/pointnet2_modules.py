"""The layers of `pointnet2_ops.pointnet2_modules`. Parameters have the original's names, so checkpoints load."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from . import pointnet2_utils

__all__ = ["PointnetFPModule", "PointnetSAModule", "PointnetSAModuleMSG", "build_shared_mlp"]


def build_shared_mlp(mlp_spec: Sequence[int], bn: bool = True) -> nn.Sequential:
    """Build a stack of 1 x 1 convolutions, each followed by batch normalization and ReLU.

    Args:
        mlp_spec: Widths, from input to output.
        bn: Use batch normalization; otherwise the convolutions have a bias.

    Returns:
        The layers.

    Example:
        >>> list(build_shared_mlp([3, 8, 16]).state_dict())[:2]
        ['0.weight', '1.weight']
    """
    layers: list[nn.Module] = []
    for width, next_width in itertools.pairwise(mlp_spec):
        layers.append(nn.Conv2d(width, next_width, kernel_size=1, bias=not bn))
        if bn:
            layers.append(nn.BatchNorm2d(next_width))
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


class PointnetSAModuleMSG(nn.Module):
    """Set abstraction with one ball query and one MLP per scale.

    Args:
        npoint: Number of sampled centers; None for one neighborhood of all points.
        radii: Ball radius of each scale.
        nsamples: Maximum number of neighbors of each scale.
        mlps: MLP widths of each scale. As in the original, `mlps[i][0]` is the number of feature channels, and the
            lists are modified: with `use_xyz` their first entry is increased by 3.
        bn: Use batch normalization.
        use_xyz: Prepend positions relative to the center to the features.
    """

    def __init__(
        self,
        npoint: int | None,
        radii: Sequence[float | None],
        nsamples: Sequence[int | None],
        mlps: Sequence[list[int]],
        bn: bool = True,
        use_xyz: bool = True,
    ) -> None:
        super().__init__()
        if not len(radii) == len(nsamples) == len(mlps):
            sizes = f"{len(radii)}, {len(nsamples)} and {len(mlps)}"
            raise ValueError(f"radii, nsamples and mlps must have the same length, got {sizes}")
        self.npoint = npoint
        self.groupers = nn.ModuleList()
        self.mlps = nn.ModuleList()
        for radius, nsample, mlp_spec in zip(radii, nsamples, mlps, strict=True):
            self.groupers.append(_grouper(npoint, radius, nsample, use_xyz))
            if use_xyz:
                mlp_spec[0] += 3
            self.mlps.append(build_shared_mlp(mlp_spec, bn))

    def forward(self, xyz: Tensor, features: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """Sample centers and compute their features.

        Args:
            xyz: (B, N, 3) points.
            features: (B, C, N) features, or None.

        Returns:
            The centers (B, npoint, 3) and their features (B, C', npoint); None and (B, C', 1) if `npoint` is None.
        """
        new_xyz = None
        if self.npoint is not None:
            index = pointnet2_utils.furthest_point_sample(xyz, self.npoint)
            columns = pointnet2_utils.gather_operation(xyz.transpose(1, 2), index)
            new_xyz = columns.transpose(1, 2).contiguous()
        scales = []
        for grouper, mlp in zip(self.groupers, self.mlps, strict=True):
            grouped = mlp(grouper(xyz, new_xyz, features))
            scales.append(functional.max_pool2d(grouped, kernel_size=[1, grouped.shape[3]]).squeeze(-1))
        return new_xyz, torch.cat(scales, dim=1).contiguous()


class PointnetSAModule(PointnetSAModuleMSG):
    """Set abstraction with one scale.

    Args:
        mlp: MLP widths, as one entry of `mlps` of `PointnetSAModuleMSG`.
        npoint, radius, nsample, bn, use_xyz: As for `PointnetSAModuleMSG`.
    """

    def __init__(
        self,
        mlp: list[int],
        npoint: int | None = None,
        radius: float | None = None,
        nsample: int | None = None,
        bn: bool = True,
        use_xyz: bool = True,
    ) -> None:
        super().__init__(mlps=[mlp], npoint=npoint, radii=[radius], nsamples=[nsample], bn=bn, use_xyz=use_xyz)


class PointnetFPModule(nn.Module):
    """Feature propagation: interpolates features, concatenates them with existing ones and applies an MLP.

    Args:
        mlp: MLP widths; the first is C2 + C1.
        bn: Use batch normalization.
    """

    def __init__(self, mlp: Sequence[int], bn: bool = True) -> None:
        super().__init__()
        self.mlp = build_shared_mlp(mlp, bn=bn)

    def forward(
        self, unknown: Tensor, known: Tensor | None, unknow_feats: Tensor | None, known_feats: Tensor
    ) -> Tensor:
        """Interpolate features of `known` at `unknown`.

        Args:
            unknown: (B, n, 3) points to interpolate at.
            known: (B, m, 3) points with features. If None, `known_feats` (B, C2, 1) are used at every point, where
                the original fails.
            unknow_feats: (B, C1, n) existing features of `unknown`, or None.
            known_feats: (B, C2, m) features of `known`.

        Returns:
            (B, mlp[-1], n) features of `unknown`.
        """
        if known is None:
            features = known_feats.expand(-1, -1, unknown.shape[1])
        else:
            dist, idx = pointnet2_utils.three_nn(unknown, known)
            inverse = 1.0 / (dist + 1e-8)
            weight = inverse / inverse.sum(dim=2, keepdim=True)
            features = pointnet2_utils.three_interpolate(known_feats, idx, weight)
        if unknow_feats is not None:
            features = torch.cat([features, unknow_feats], dim=1)
        return self.mlp(features.unsqueeze(-1)).squeeze(-1)


def _grouper(npoint: int | None, radius: float | None, nsample: int | None, use_xyz: bool) -> nn.Module:
    if npoint is None:
        return pointnet2_utils.GroupAll(use_xyz)
    if radius is None or nsample is None:
        raise ValueError(f"radius and nsample must be given with npoint, got {radius} and {nsample}")
    grouper = pointnet2_utils.QueryAndGroup(radius, nsample, use_xyz=use_xyz)
    grouper.channels_last = True
    return grouper

"""PointNet++ (SSG, classification) as commonly written in plain PyTorch, for `benchmarks.networks`.

It samples farthest points in a Python loop, finds balls by sorting all squared distances, gathers neighbors by advanced
indexing, and applies 1 x 1 convolutions with batch norm to (B, C, K, M).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


def square_distance(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances (B, M, N) between points (B, M, 3) and (B, N, 3)."""
    return a.square().sum(-1)[:, :, None] + b.square().sum(-1)[:, None, :] - 2 * a @ b.transpose(1, 2)


def rows(values: Tensor, index: Tensor) -> Tensor:
    """Rows (B, ..., C) of `values` (B, N, C), selected by `index` (B, ...)."""
    batch = torch.arange(len(values), device=values.device).reshape(-1, *[1] * (index.dim() - 1))
    return values[batch, index]


def farthest_points(points: Tensor, count: int) -> Tensor:
    batch, size, _ = points.shape
    picked = torch.zeros(batch, count, dtype=torch.int64, device=points.device)
    distance = torch.full((batch, size), torch.inf, dtype=points.dtype, device=points.device)
    farthest = torch.zeros(batch, dtype=torch.int64, device=points.device)
    for i in range(count):
        picked[:, i] = farthest
        newest = rows(points, farthest)[:, None]
        distance = torch.minimum(distance, (points - newest).square().sum(-1))
        farthest = distance.argmax(-1)
    return picked


def ball(points: Tensor, centers: Tensor, radius: float, k: int) -> Tensor:
    size = points.shape[1]
    index = torch.arange(size, device=points.device).repeat(*centers.shape[:2], 1)
    index[square_distance(centers, points) > radius**2] = size
    index = index.sort(-1).values[:, :, :k]
    return torch.where(index == size, index[:, :, :1], index)


class SetAbstraction(nn.Module):
    def __init__(self, channels: int, widths: list[int], samples: int = 0, radius: float = 0.0, k: int = 0) -> None:
        super().__init__()
        self.samples, self.radius, self.k = samples, radius, k
        ins = [channels + 3, *widths[:-1]]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 1, bias=False) for a, b in zip(ins, widths, strict=True))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths)

    def forward(self, points: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.samples:
            centers = rows(points, farthest_points(points, self.samples))
            index = ball(points, centers, self.radius, self.k)
            grouped = rows(points, index) - centers[:, :, None]
            if features is not None:
                grouped = torch.cat([grouped, rows(features, index)], -1)
        else:
            centers = points.new_zeros(len(points), 1, 3)
            grouped = (points if features is None else torch.cat([points, features], -1))[:, None]
        grouped = grouped.permute(0, 3, 2, 1)  # (B, C, K, M)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            grouped = functional.relu(norm(conv(grouped)))
        return centers, grouped.max(2).values.transpose(1, 2)


class PlainPointNet2(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            [
                SetAbstraction(0, [64, 64, 128], 512, 0.2, 32),
                SetAbstraction(128, [128, 128, 256], 128, 0.4, 64),
                SetAbstraction(256, [256, 512, 1024]),
            ]
        )
        self.linears = nn.ModuleList([nn.Linear(1024, 512, bias=False), nn.Linear(512, 256, bias=False)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(512), nn.BatchNorm1d(256)])
        self.dropout = nn.Dropout(0.5)
        self.last = nn.Linear(256, classes)

    def forward(self, points: Tensor) -> Tensor:
        features = None
        for stage in self.down:
            points, features = stage(points, features)
        x = features.squeeze(1)
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = self.dropout(functional.relu(norm(linear(x))))
        return self.last(x)

    @torch.no_grad()
    def load(self, network: nn.Module) -> None:
        """Copy the weights of `pointgrad.models.pointnet2`."""
        pairs = []
        for ours, theirs in zip(self.down, network.down, strict=True):
            mlp = theirs.mlps[0]
            pairs += [*zip(ours.convs, mlp.linears, strict=True), *zip(ours.norms, mlp.norms, strict=True)]
        mlps = [layer for layer in network.head if hasattr(layer, "linears")]
        pairs += [(ours, mlp.linears[0]) for ours, mlp in zip(self.linears, mlps, strict=True)]
        pairs += [(ours, mlp.norms[0]) for ours, mlp in zip(self.norms, mlps, strict=True)]
        for ours, theirs in (*pairs, (self.last, network.head[-1])):
            for name, value in theirs.state_dict().items():
                ours.state_dict()[name].copy_(value.reshape(ours.state_dict()[name].shape))

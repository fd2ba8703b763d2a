"""Group normalization over the points of each cloud."""

import torch
from torch import Tensor, nn

from pointgrad.nn.level import Level, check_level
from pointgrad.nn.local import cloud_ends, flat, per_point
from pointgrad.ops import checks
from pointgrad.ops.scatter import segment
from pointgrad.ops.sums import sum_dtype


class CloudNorm(nn.Module):
    """Group norm over all points of each cloud, in either layout: `torch.nn.GroupNorm` on (B, C, N).

    A cloud is normalized by its own mean and variance in training and in evaluation, so clouds of a batch never mix.
    The result of a point depends on the other points of its cloud; a `SharedMLP` with `norm="group"` normalizes each
    point on its own.

    Args:
        channels: Number of channels.
        groups: Number of groups of consecutive channels that are normalized together; as many as channels for instance
            norm.
        eps: Added to the variance.

    Attributes:
        weight: (channels,) scale of each channel.
        bias: (channels,) shift of each channel.

    Example:
        >>> level = Level(torch.rand(3, 3), torch.tensor([[1.], [3.], [7.]]), torch.tensor([0, 2, 3]))
        >>> CloudNorm(1)(level).features.tolist()
        [[-0.9999949932098389], [0.9999949932098389], [0.0]]
    """

    def __init__(self, channels: int, groups: int = 1, *, eps: float = 1e-5) -> None:
        super().__init__()
        for name, value in (("channels", channels), ("groups", groups)):
            checks.kind(checks.is_integer(value), name, "an int", value)
        checks.value(channels >= 1, "channels", "at least 1", channels)
        divides = groups >= 1 and channels % groups == 0
        checks.value(divides, "groups", f"a divisor of channels = {channels}", groups)
        checks.number("eps", eps)
        self.channels, self.groups, self.eps = channels, groups, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, level: Level) -> Level:
        check_level(level, self.channels)
        features = level.features
        assert features is not None
        x = features.to(sum_dtype(features.dtype))
        centered = x - self._mean(level, x)
        rstd = (self._mean(level, centered.square()) + self.eps).rsqrt()
        return level.with_features((centered * rstd * self.weight + self.bias).to(features.dtype))

    def _mean(self, level: Level, values: Tensor) -> Tensor:
        """The mean of each cloud and group, copied to its points and channels."""
        channel = segment(flat(values), cloud_ends(level), "mean")  # (B, C)
        group = channel.unflatten(-1, (self.groups, -1)).mean(-1, keepdim=True)
        return per_point(level, group.expand(-1, -1, self.channels // self.groups).flatten(1))

    def extra_repr(self) -> str:
        return f"{self.channels}, groups={self.groups}, eps={self.eps}"

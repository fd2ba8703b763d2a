"""CloudNorm: group norm over all points of each cloud."""

import pytest
import torch
from torch import nn

from pointgrad.nn import CloudNorm, Level
from tests.nn.test_nn import CHANNELS, clouds_of, packed


@pytest.mark.parametrize("groups", [1, 2, CHANNELS])
def test_cloud_norm_is_group_norm_over_points(groups):
    layer, plain = CloudNorm(CHANNELS, groups).double(), nn.GroupNorm(groups, CHANNELS).double()
    with torch.no_grad():
        plain.weight.copy_(layer.weight.normal_())
        plain.bias.copy_(layer.bias.normal_())
    level = packed([30, 2, 1, 0], dtype=torch.float64)
    together = layer(level).features
    for cloud in clouds_of(level):
        own = layer(cloud).features
        # torch refuses groups of a single value, and clouds without points
        expected = layer.bias.expand_as(own) if own.numel() <= groups else plain(cloud.features.mT).mT
        torch.testing.assert_close(own, expected)
    torch.testing.assert_close(together, torch.cat([layer(cloud).features[0] for cloud in clouds_of(level)]))
    assert torch.autograd.gradgradcheck(
        lambda x: layer(Level(level.points[:6], x, torch.tensor([0, 4, 6]))).features,
        torch.randn(6, CHANNELS, dtype=torch.float64, requires_grad=True),
    )


def test_cloud_norm_in_16_bits():
    """Statistics are float32: the squares of these features overflow float16."""
    layer, x = CloudNorm(4), 500 + 300 * torch.randn(2, 100, 4)
    out = layer(Level(torch.rand(2, 100, 3), x.half())).features
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), layer(Level(torch.rand(2, 100, 3), x)).features, rtol=5e-3, atol=5e-3)
    with pytest.raises(ValueError, match="groups must be a divisor of channels = 4, got 3"):
        CloudNorm(4, 3)

"""Norms for tests of layers."""

from torch import nn


def randomize_norms(layer):
    """Randomize the parameters (including negative gains) and running statistics of norms."""
    for module in layer.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.GroupNorm)):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return layer

"""Running statistics of batch norm in the first steps of a run."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

RECENT = 5.0  # step n has the weight RECENT / (RECENT + n), while this is more than the momentum


class RunningStatistics:
    """Give the first steps of a run a larger weight in the running statistics of batch norm.

    Batch norm updates a statistic as `running += momentum * (batch - running)`, from mean 0 and variance 1. With a
    momentum of 0.1 these initial values dominate for dozens of steps, because the variance of a layer is often far
    below 1, and a network that is evaluated then predicts one class. Step n (from 0) therefore has the weight
    5 / (5 + n), as long as this is more than the momentum: the first step replaces the initial values, and later steps
    count more than earlier ones, whose weights were different. The weight depends on the number of the step only, so
    that a resumed run continues exactly.

    Args:
        module: The network; nothing is stored in it.
        batches: Forward passes per step.
    """

    def __init__(self, module: nn.Module, batches: int = 1) -> None:
        layers = [layer for layer in module.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats]
        self._layers = [layer for layer in layers if layer.momentum]  # None is an average over all steps already
        self._batches = batches
        self._before: list[list[Tensor]] = []

    def before_step(self, step: int) -> None:
        """Copy the statistics before step `step` of the run, if the step will have a larger weight."""
        early = [layer for layer in self._layers if _weight(step) > self._momentum(layer)]
        self._before = [[tensor.clone() for tensor in _statistics(layer)] for layer in early]
        self._early = early

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Give the batches of this step their weight."""
        for layer, saved in zip(self._early, self._before, strict=True):
            for tensor, before in zip(_statistics(layer), saved, strict=True):
                # running = before + momentum * (batch - before)
                tensor.copy_(before + (tensor - before) * (_weight(step) / self._momentum(layer)))
        self._before = []
        self._early = []

    def _momentum(self, layer: _BatchNorm) -> float:
        """Weight of all batches of a step together."""
        assert layer.momentum is not None
        return 1 - (1 - layer.momentum) ** self._batches


def _weight(step: int) -> float:
    return RECENT / (RECENT + step)


def _statistics(layer: _BatchNorm) -> list[Tensor]:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return [layer.running_mean, layer.running_var]

"""Running statistics of batch norm against plain averages over the batches."""

import pytest
import torch
from torch import nn

from pointgrad.train.running_statistics import RunningStatistics


@pytest.mark.parametrize("batches", [1, 3])
def test_first_steps_have_larger_weights_than_the_momentum(batches):
    torch.manual_seed(0)
    layer = nn.BatchNorm1d(4).double()
    statistics = RunningStatistics(nn.Sequential(layer), batches)
    own = 1 - 0.9**batches
    mean, variance = torch.zeros(4).double(), torch.ones(4).double()
    for step in range(60):
        statistics.before_step(step)
        step_mean, step_variance = torch.zeros(4).double(), torch.zeros(4).double()
        for batch in range(batches):
            rows = torch.randn(16, 4).double() * 3 + 7
            layer(rows)
            share = 0.1 * 0.9 ** (batches - 1 - batch) / own  # of a batch in the step, by the momentum of the layer
            step_mean += share * rows.mean(0)
            step_variance += share * rows.var(0)
        statistics.after_step(step)
        weight = max(own, 5 / (5 + step))
        mean += weight * (step_mean - mean)
        variance += weight * (step_variance - variance)
        torch.testing.assert_close(layer.running_mean, mean)
        torch.testing.assert_close(layer.running_var, variance)
        assert layer.momentum == 0.1


def test_layers_without_running_statistics_do_not_change():
    torch.manual_seed(0)
    plain, average = nn.BatchNorm1d(2, track_running_stats=False), nn.BatchNorm1d(2, momentum=None)
    network = nn.Sequential(plain, average, nn.BatchNorm1d(2, momentum=0.0))
    rows = torch.randn(2, 8, 2)
    statistics = RunningStatistics(network)
    inputs = []
    for step in range(2):
        statistics.before_step(step)
        network(rows[step])
        inputs.append(plain(rows[step]))
        statistics.after_step(step)
    torch.testing.assert_close(average.running_mean, torch.stack(inputs).mean((0, 1)))
    assert network[2].running_mean.tolist() == [0, 0]

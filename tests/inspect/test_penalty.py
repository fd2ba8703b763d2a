"""ActivationPenalty: a loss term on the outputs of layers."""

import pytest
import torch
from torch import nn

from pointgrad.inspect import ActivationPenalty


def test_gradient_of_the_penalty(net, x):
    with ActivationPenalty(net, ["first", "shared"], lambda y: y.square().mean()) as penalty:
        net(x)
        penalty.loss().backward()
    received = [net.first.weight.grad.clone(), net.shared.weight.grad.clone()]
    first = net.first(x)
    h = first.relu()
    expected = first.square().mean() + net.shared(h).square().mean() + net.shared(2 * h).square().mean()
    torch.testing.assert_close(received, list(torch.autograd.grad(expected, [net.first.weight, net.shared.weight])))


def test_penalty_on_inputs(x):
    """On the values before the layer runs, which may overwrite them, and on keyword arguments."""

    class Add(nn.Module):
        def forward(self, a, *, b):
            return a + b

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.relu, self.add = nn.Linear(3, 4), nn.ReLU(inplace=True), Add()

        def forward(self, x):
            h = self.relu(self.first(x))
            return self.add(h, b=2 * h)

    net = Network()
    with ActivationPenalty(net, ["relu", "add"], lambda y: y.square().mean(), on="inputs") as penalty:
        net(x)
        loss = penalty.loss()
    h = net.first(x)
    expected = h.square().mean() + 5 * h.relu().square().mean()
    torch.testing.assert_close(loss, expected)
    received = torch.autograd.grad(loss, net.first.weight)
    torch.testing.assert_close(received, torch.autograd.grad(expected, net.first.weight))
    with pytest.raises(ValueError, match="on must be 'inputs' or 'outputs', got 'both'"):
        ActivationPenalty(net, "relu", on="both")


def test_penalty_on_inputs_compiled(x):
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True))
    with ActivationPenalty(net, nn.ReLU, on="inputs") as penalty:
        torch.compile(net, backend="aot_eager", fullgraph=True)(x)
        torch.testing.assert_close(penalty.loss(), net[0](x).abs().mean())


def test_loss_covers_one_step(x):
    net = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    with ActivationPenalty(net, nn.Tanh) as penalty:
        for calls in (1, 3, 2):
            inputs = [x * k for k in range(1, calls + 1)]
            expected = sum(net[1](net[0](each)).abs().mean() for each in inputs)
            penalty.reset()
            for each in inputs:
                net(each)
            torch.testing.assert_close(penalty.loss(), expected)
        with pytest.raises(RuntimeError, match="no selected layer was called since the last loss"):
            penalty.loss()


def test_penalty_without_gradients_is_zero(net, x):
    with ActivationPenalty(net, "first") as penalty:
        with torch.no_grad():
            net(x)
            assert penalty.loss().item() == 0
        net.eval()
        net(x)
        assert penalty.loss().requires_grad  # evaluation mode does not disable gradients


def test_penalty_of_several_outputs():
    net = nn.LSTM(3, 2)
    x = torch.randn(4, 1, 3)
    output, (hidden, cell) = net(x)
    with ActivationPenalty(net, "", lambda y: y.sum()) as penalty:
        net(x)
        torch.testing.assert_close(penalty.loss(), output.sum() + hidden.sum() + cell.sum())


def test_too_many_calls_without_loss(x, monkeypatch):
    monkeypatch.setattr("pointgrad.inspect.hooks.penalty.LIMIT", 5)
    net = nn.Sequential(nn.Linear(3, 2))
    with ActivationPenalty(net, "0") as penalty:
        for _ in range(5):
            net(x)
        with pytest.raises(RuntimeError, match=r"loss\(\) was not called for 5 layer calls"):
            net(x)
        penalty.reset()
        net(x)
    assert penalty._total is None


def test_penalty_must_be_a_scalar(x):
    net = nn.Sequential(nn.Linear(3, 2))
    with (
        ActivationPenalty(net, "0", lambda y: y.abs()),
        pytest.raises(ValueError, match=r"must return a scalar, got shape \(2, 5, 2\)"),
    ):
        net(x)

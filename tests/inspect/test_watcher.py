"""GradientWatcher: gradient norms, and the first NaN or infinity."""

import pytest
import torch
from torch import nn

from pointgrad.inspect import GradientWatcher, Recorder


def test_norms(net, x):
    with GradientWatcher(net) as watcher, Recorder(net, "*") as recorder:
        (0.5 * net(x).sum()).backward()
        net(x).sum().backward()
    norms = {each.name: each for each in watcher.norms()}
    assert list(norms) == [name for name, _ in net.named_modules()]
    last = recorder["block.0"][-1].grad_outputs[0].norm().item()
    assert norms["block.0"].output == pytest.approx(last, rel=1e-5)
    assert norms["block.0"].largest_output == pytest.approx(last, rel=1e-5)
    whole = net.first.weight.grad.norm().item() / 1.5  # the sum of both passes
    assert norms["first"].parameters["weight"] == pytest.approx(whole, rel=1e-4)
    assert norms["attention.out_proj"].output is None  # attention uses its weight without calling it
    assert watcher.first() is None
    assert str(watcher).splitlines()[-1] == "no NaN or infinity"


class Broken(nn.Module):
    """Produces a NaN or infinity at the given location."""

    def __init__(self, where):
        super().__init__()
        self.where = where
        self.one, self.log, self.two = nn.Linear(3, 3), Log(where), nn.Linear(3, 3)

    def forward(self, x):
        h = self.one(x)
        h = h / 0 if self.where == "own code" else h
        h = self.log(h)
        h = self.two(h)
        return h * torch.inf if self.where == "loss" else h


class Log(nn.Module):
    def __init__(self, where):
        super().__init__()
        self.where = where

    def forward(self, x):
        if self.where == "forward":
            return x.abs().mul(-1).log()
        return (x * 0).sqrt() if self.where == "backward" else x


@pytest.mark.parametrize(
    ("where", "name", "direction", "what", "produced"),
    [
        ("forward", "log", "forward", "output", True),
        ("own code", "", "forward", "own code before 'log'", True),
        ("backward", "log", "backward", "gradient of the input", True),
        ("loss", "", "forward", "output", True),
        ("weight", "two", "forward", "output, and its weight is not finite", True),
        ("input", "", "forward", "input", False),
        ("upstream", "two", "backward", "gradient of the output", False),
        ("parameter", "two", "backward", "gradient of weight", True),
    ],
)
def test_first_nan_or_infinity(where, name, direction, what, produced):
    net = Broken(where)
    x = torch.randn(4, 3)
    if where == "input":
        x[0, 0] = torch.nan
    if where == "weight":
        net.two.weight.data[0, 0] = torch.inf
    if where == "parameter":  # the product x * g overflows
        net.one.weight.data.fill_(1e25)
        net.two.weight.data.fill_(1e-25)
    with GradientWatcher(net) as watcher:
        net(x.abs() if where == "parameter" else x).mul(
            torch.nan if where == "upstream" else 1e20 if where == "parameter" else 1
        ).sum().backward()
        net(x).sum()  # later values do not count
    found = watcher.first()
    assert (found.name, found.direction, found.what, found.produced) == (name, direction, what, produced)
    assert str(found).startswith(f"{direction}: ")
    assert str(watcher).splitlines()[-1] == str(found)


def test_mask_of_minus_infinity_is_ignored():
    net = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    assert mask.isinf().any()
    with GradientWatcher(net) as watcher:
        net(torch.randn(2, 5, 4), src_mask=mask).sum().backward()
    assert watcher.first() is None


def test_sparse_gradients_and_shared_parameters():
    net = nn.ModuleDict({"table": nn.Embedding(9, 3, sparse=True), "out": nn.Linear(3, 9, bias=False)})
    with GradientWatcher(net) as watcher:
        net["out"](net["table"](torch.tensor([1, 1, 2]))).sum().backward()
    norms = {each.name: each for each in watcher.norms()}
    expected = net["table"].weight.grad.to_dense().norm().item()
    assert norms["table"].parameters["weight"] == pytest.approx(expected, rel=1e-5)

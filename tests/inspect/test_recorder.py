"""Recorder: values and gradients of layers."""

import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pointgrad.inspect import GradientWatcher, Recorder


def test_recorded_values(net, x):
    with Recorder(net, ["first", "relu", "shared", "attention", ""]) as recorder:
        output = net(x)
    first = F.linear(x, net.first.weight, net.first.bias)
    (record,) = recorder["first"]
    assert torch.equal(record.inputs[0], x)
    torch.testing.assert_close(record.output, first.detach())  # although relu modified it in place
    torch.testing.assert_close(recorder["relu"][0].inputs[0], first.detach())
    torch.testing.assert_close(recorder["relu"][0].output, first.detach().relu())
    once, twice = recorder["shared"]
    torch.testing.assert_close(twice.inputs[0], 2 * once.inputs[0])
    record = recorder["attention"][0]
    assert len(record.inputs) == 2
    assert set(record.kwargs) == {"value"}
    assert torch.equal(record.output[0], output)
    assert recorder[""][0].output.grad_fn is None
    assert list(recorder) == ["first", "relu", "shared", "attention", ""]
    with pytest.raises(KeyError, match="name must be one of 'first', 'relu', 'shared', 'attention', '', got 'block'"):
        recorder["block"]


def test_recorded_gradients_of_each_call(net, x):
    """Compared with autograd on the same computation without modules."""
    with Recorder(net, ["first", "relu", "shared", "block.1"]) as recorder:
        net(x).square().sum().backward()
    first = net.first(x)
    h = first.relu()
    parts = [h.clone(), (2 * h).clone()]
    outputs = [net.shared(part) for part in parts]
    tanh = net.block(outputs[0] + outputs[1])
    total = tanh + (outputs[0] + outputs[1])
    loss = net.attention(total, total, value=total)[0].square().sum()
    expected = torch.autograd.grad(loss, [first, h, *parts, *outputs, tanh])
    once, twice = recorder["shared"]
    received = [
        recorder["first"][0].grad_outputs[0], recorder["relu"][0].grad_outputs[0], once.grad_inputs[0],
        twice.grad_inputs[0], once.grad_outputs[0], twice.grad_outputs[0], recorder["block.1"][0].grad_outputs[0],
    ]  # fmt: skip
    torch.testing.assert_close(received, list(expected))
    assert recorder["first"][0].grad_inputs == []  # x requires no grad


def test_limit_keeps_the_newest(x):
    net = nn.Sequential(nn.Linear(3, 2))
    with Recorder(net, "0", limit=3) as recorder:
        for k in range(10):
            net(x + k)
    assert (len(recorder), recorder.dropped) == (3, 7)
    torch.testing.assert_close([record.inputs[0] for record in recorder["0"]], [x + 7, x + 8, x + 9])
    recorder.clear()
    assert (len(recorder), recorder.dropped) == (0, 0)


def test_number_of_handles_is_bounded(x):
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    with Recorder(net, "*", limit=1) as recorder, GradientWatcher(net) as watcher:
        for _ in range(300):
            net(x).sum().backward()
        assert len(recorder._handles) < 200
        assert len(watcher._handles) < 200


def test_what_to_record(net, x):
    with Recorder(net, "first", what="outputs") as recorder:
        net(x).sum().backward()
    (record,) = recorder["first"]
    assert (record.inputs, record.kwargs, record.grad_inputs, record.grad_outputs) == (None, None, [], [])
    assert record.output is not None
    with pytest.raises(ValueError, match="what must be one or more of inputs, outputs, gradients, got"):
        Recorder(net, "first", what="weights")
    with pytest.raises(ValueError, match="limit must be a positive int, got 0"):
        Recorder(net, "first", limit=0)


def test_nested_values_and_other_objects():
    class Odd(nn.Module):
        def forward(self, values, mode, extra=None):
            return {"sum": values[0] + values[1]["b"], "mode": mode, "thing": extra}

    odd = Odd()
    with Recorder(odd, "", to_cpu=True) as recorder:
        odd((torch.ones(2), {"b": torch.ones(2, requires_grad=True)}), "train", extra=object())
    (record,) = recorder[""]
    assert record.inputs[1] == "train"
    assert record.kwargs == {"extra": object}
    assert record.output["sum"].tolist() == [2, 2]
    assert pickle.loads(pickle.dumps(recorder))[""][0].output["mode"] == "train"


def test_no_grad_and_autocast(net, x):
    with Recorder(net, "first") as recorder, torch.no_grad():
        net(x)
    assert recorder["first"][0].grad_outputs == []
    with Recorder(net, "first") as recorder, torch.autocast("cpu", torch.bfloat16, enabled=True):
        F.linear(torch.ones(1, 3), torch.ones(4, 3))
        assert torch.is_autocast_enabled("cpu")
        first = nn.Tanh()
        with Recorder(first, "") as inner:
            first(torch.ones(2, dtype=torch.bfloat16, requires_grad=True)).sum().backward()
    assert inner[""][0].output.dtype == torch.bfloat16
    assert inner[""][0].grad_outputs[0].dtype == torch.bfloat16


def test_call_that_raises_has_no_output(net, x):
    with Recorder(net, ["first", "relu"]) as recorder:
        with pytest.raises(RuntimeError):
            net(torch.zeros(2, 5, 9))
        net(x)
    assert recorder["first"][0].output is None
    assert recorder["first"][1].output is not None
    assert len(recorder["relu"]) == 1


def test_nothing_is_recorded_after_exit(net, x):
    with Recorder(net, "first") as recorder:
        output = net(x)
    output.sum().backward()
    net(x)
    assert len(recorder) == 1
    assert recorder["first"][0].grad_outputs == [None]


def test_gradient_of_the_base_is_not_recorded():
    """The output is a view that is not modified in place; other gradients of its base do not belong to it."""

    class Flat(nn.Module):
        def forward(self, x):
            return x.flatten()

    flat, source = Flat(), torch.randn(2, 3, requires_grad=True)
    with Recorder(flat, "") as recorder:
        base = source * 2
        flat(base)
        base.sum().backward()
    assert recorder[""][0].grad_outputs == [None]


def test_calls_from_threads(x):
    net = nn.Sequential(nn.Linear(3, 2))
    with Recorder(net, "0", limit=100) as recorder:
        threads = [threading.Thread(target=lambda k=k: [net(x + k) for _ in range(10)]) for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(recorder) == 30
    for record in recorder["0"]:
        torch.testing.assert_close(record.output, F.linear(record.inputs[0], net[0].weight, net[0].bias).detach())

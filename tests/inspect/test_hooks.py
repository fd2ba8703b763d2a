"""Recorder, ActivationPenalty and GradientWatcher: what they see is right, and they leave nothing behind."""

import copy
import gc
import io
import pickle
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pointgrad.inspect import ActivationPenalty, GradientWatcher, Recorder


class Net(nn.Module):
    """Every difficulty at once: an in-place layer behind a view, a shared layer, tuples, keywords, nested layers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.relu = nn.ReLU(inplace=True)
        self.shared = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        h = self.relu(self.first(x))
        h = self.shared(h) + self.shared(2 * h)
        h = self.block(h) + h
        return self.attention(h, h, value=h)[0]


KINDS = {
    "recorder": lambda net: Recorder(net, "*"),
    "penalty": lambda net: ActivationPenalty(net, "*"),
    "watcher": GradientWatcher,
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def hooks_of(module):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    kinds += ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")
    left = [getattr(layer, kind) for layer in module.modules() for kind in kinds]
    return [each for each in left + [p._backward_hooks for p in module.parameters()] if each]


@pytest.fixture
def net():
    return Net()


@pytest.fixture
def x():
    return torch.randn(2, 5, 3)


# What holds for all three


@every_kind
def test_changes_nothing_and_leaves_nothing(make, net, x):
    expected = net(x)
    expected.square().sum().backward()
    grads = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    with make(net):
        assert hooks_of(net)
        output = net(x)
        output.square().sum().backward()
    assert torch.equal(output, expected)
    for parameter, grad in zip(net.parameters(), grads, strict=True):
        torch.testing.assert_close(parameter.grad, grad)
    assert not hooks_of(net)
    assert not output._backward_hooks


@every_kind
def test_leaves_when_an_exception_passes(make, net, x):
    with pytest.raises(KeyError), make(net):
        {net(x): 1}["missing"]
    assert not hooks_of(net)
    with make(net), pytest.raises(RuntimeError):
        net(torch.zeros(2, 5, 9))  # inside a layer
    assert not hooks_of(net)


@every_kind
def test_entered_again_and_twice_at_once(make, net, x):
    hooks = make(net)
    with hooks:
        count = len(hooks_of(net))
        with hooks:
            assert len(hooks_of(net)) == count
        assert len(hooks_of(net)) == count
        net(x)
    assert not hooks_of(net)
    with hooks, make(net):
        net(x)
    assert not hooks_of(net)


@every_kind
def test_a_copy_of_the_module_is_not_hooked(make, net, x):
    with make(net) as hooks:
        net(x)
        file = io.BytesIO()
        torch.save(net, file)
        file.seek(0)
        copies = [copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(file, weights_only=False)]
        seen = {Recorder: len, ActivationPenalty: lambda h: h._waiting, GradientWatcher: lambda h: h._clock}[
            type(hooks)
        ](hooks)
        for each in copies:
            torch.testing.assert_close(each(x), net(x).detach() * 1.0)
            assert not any(p._backward_hooks for p in each.parameters())
        if isinstance(hooks, Recorder):
            assert len(hooks) + hooks.dropped == 4 * seen  # one call before, and three of the original
        if isinstance(hooks, ActivationPenalty):
            assert hooks._waiting == 4 * seen
        if isinstance(hooks, GradientWatcher):
            assert hooks._clock == 4 * seen


@every_kind
def test_the_hooks_themselves_can_be_copied(make, net, x):
    with make(net) as hooks:
        net(x).sum().backward()
        copies = [copy.deepcopy(hooks), pickle.loads(pickle.dumps(hooks))]
    for each in copies:
        with pytest.raises(RuntimeError, match="is a copy, which is attached to no module"), each:
            pass
        if isinstance(each, Recorder):
            assert torch.equal(each["first"][0].output, hooks["first"][0].output)
        if isinstance(each, GradientWatcher):
            assert each.norms() == hooks.norms()
            assert each.first() is None


class Kept:
    """A tensor that a graph saved; it goes with the graph."""

    def __init__(self, value):
        self.value = value


@every_kind
def test_the_graph_is_not_kept(make, net, x):
    saved = []

    def pack(value):
        kept = Kept(value.detach())
        saved.append(weakref.ref(kept))
        return kept

    with make(net) as hooks:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.value):
            output = net(x)
        assert any(reference() is not None for reference in saved)
        if isinstance(hooks, ActivationPenalty):
            hooks.loss()
        del output
        gc.collect()
        assert all(reference() is None for reference in saved)


@pytest.mark.parametrize("make", [Recorder, ActivationPenalty])
def test_layers_that_are_not_there(make, net):
    with pytest.raises(ValueError, match=r"Net has no layer named 'frist'; near names: first"):
        make(net, "frist")
    with pytest.raises(
        ValueError, match=r"Net has no layer of type Conv2d; its types: Linear, MultiheadAttention, Net"
    ):
        make(net, nn.Conv2d)
    with pytest.raises(ValueError, match="is never called itself, only what it contains: choose 'layers"):
        make(nn.ModuleDict({"layers": nn.ModuleList([nn.ReLU()])}), "layers")
    with pytest.raises(ValueError, match="must choose at least one layer"):
        make(net, [])
    with pytest.raises(TypeError, match=r"names or types of torch.nn.Module, got 3"):
        make(net, [3])
    with pytest.raises(TypeError, match=r"module must be a torch.nn.Module, got function"):
        make(F.relu, "x")


# Recorder


def test_values_are_those_that_passed(net, x):
    with Recorder(net, ["first", "relu", "shared", "attention", ""]) as recorder:
        output = net(x)
    first = F.linear(x, net.first.weight, net.first.bias)
    (record,) = recorder["first"]
    assert torch.equal(record.inputs[0], x)
    torch.testing.assert_close(record.output, first.detach())  # though relu changed it in place
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
    with pytest.raises(KeyError, match="'block' is not recorded, only 'first'"):
        recorder["block"]


def test_gradients_are_those_of_each_call(net, x):
    """Against autograd on the same computation, written out."""
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
    assert recorder["first"][0].grad_inputs == []  # x needs none


def test_limit_keeps_the_newest(x):
    net = nn.Sequential(nn.Linear(3, 2))
    with Recorder(net, "0", limit=3) as recorder:
        for k in range(10):
            net(x + k)
    assert (len(recorder), recorder.dropped) == (3, 7)
    torch.testing.assert_close([record.inputs[0] for record in recorder["0"]], [x + 7, x + 8, x + 9])
    recorder.clear()
    assert (len(recorder), recorder.dropped) == (0, 0)


def test_handles_do_not_pile_up(x):
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
    with pytest.raises(ValueError, match="what must be some of inputs, outputs, gradients, got"):
        Recorder(net, "first", what="weights")
    with pytest.raises(ValueError, match="limit must be a positive int, got 0"):
        Recorder(net, "first", limit=0)


def test_any_nesting_and_other_things():
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


def test_without_gradients_and_with_autocast(net, x):
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


def test_a_call_that_raises_has_no_output(net, x):
    with Recorder(net, ["first", "relu"]) as recorder:
        with pytest.raises(RuntimeError):
            net(torch.zeros(2, 5, 9))
        net(x)
    assert recorder["first"][0].output is None
    assert recorder["first"][1].output is not None
    assert len(recorder["relu"]) == 1


def test_nothing_is_recorded_after_leaving(net, x):
    with Recorder(net, "first") as recorder:
        output = net(x)
    output.sum().backward()
    net(x)
    assert len(recorder) == 1
    assert recorder["first"][0].grad_outputs == [None]


def test_a_gradient_that_only_the_base_gets():
    """The output is a view, not changed in place; gradients of its base elsewhere are not its own."""

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
        team = [threading.Thread(target=lambda k=k: [net(x + k) for _ in range(10)]) for k in range(3)]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
    assert len(recorder) == 30
    for record in recorder["0"]:
        torch.testing.assert_close(record.output, F.linear(record.inputs[0], net[0].weight, net[0].bias).detach())


# ActivationPenalty


def test_penalty_has_the_gradient_of_the_formula(net, x):
    with ActivationPenalty(net, ["first", "shared"], lambda y: y.square().mean()) as penalty:
        net(x)
        penalty.loss().backward()
    received = [net.first.weight.grad.clone(), net.shared.weight.grad.clone()]
    first = net.first(x)
    h = first.relu()
    expected = first.square().mean() + net.shared(h).square().mean() + net.shared(2 * h).square().mean()
    torch.testing.assert_close(received, list(torch.autograd.grad(expected, [net.first.weight, net.shared.weight])))


def test_each_step_has_its_own_penalty(x):
    net = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    with ActivationPenalty(net, nn.Tanh) as penalty:
        for calls in (1, 3, 2):
            inputs = [x * k for k in range(1, calls + 1)]
            expected = sum(net[1](net[0](each)).abs().mean() for each in inputs)
            penalty.reset()
            for each in inputs:
                net(each)
            torch.testing.assert_close(penalty.loss(), expected)
        with pytest.raises(RuntimeError, match="no chosen layer was called since the last loss"):
            penalty.loss()


def test_penalty_without_gradients_is_zero(net, x):
    with ActivationPenalty(net, "first") as penalty:
        with torch.no_grad():
            net(x)
            assert penalty.loss().item() == 0
        net.eval()
        net(x)
        assert penalty.loss().requires_grad  # evaluation mode alone stops no gradient


def test_penalty_of_every_tensor_a_layer_returns():
    net = nn.LSTM(3, 2)
    x = torch.randn(4, 1, 3)
    output, (hidden, cell) = net(x)
    with ActivationPenalty(net, "", lambda y: y.sum()) as penalty:
        net(x)
        torch.testing.assert_close(penalty.loss(), output.sum() + hidden.sum() + cell.sum())


def test_penalties_that_nobody_collects(x, monkeypatch):
    monkeypatch.setattr("pointgrad.inspect.hooks.penalty.LIMIT", 5)
    net = nn.Sequential(nn.Linear(3, 2))
    with ActivationPenalty(net, "0") as penalty:
        for _ in range(5):
            net(x)
        with pytest.raises(RuntimeError, match="5 penalties wait for loss"):
            net(x)
        penalty.reset()
        net(x)
    assert penalty._total is None


def test_penalty_must_be_a_scalar(x):
    net = nn.Sequential(nn.Linear(3, 2))
    with (
        ActivationPenalty(net, "0", lambda y: y.abs()),
        pytest.raises(ValueError, match=r"must return a scalar, got \(2, 5, 2\)"),
    ):
        net(x)


# GradientWatcher


def test_norms(net, x):
    with GradientWatcher(net) as watcher, Recorder(net, "*") as recorder:
        (0.5 * net(x).sum()).backward()
        net(x).sum().backward()
    norms = {each.name: each for each in watcher.norms()}
    assert list(norms) == [name for name, _ in net.named_modules()]
    last = recorder["block.0"][-1].grad_outputs[0].norm().item()
    assert norms["block.0"].output == pytest.approx(last, rel=1e-5)
    assert norms["block.0"].largest_output == pytest.approx(last, rel=1e-5)
    whole = net.first.weight.grad.norm().item() / 1.5  # of both passes together
    assert norms["first"].parameters["weight"] == pytest.approx(whole, rel=1e-4)
    assert norms["attention.out_proj"].output is None  # attention uses its weight and does not call it
    assert watcher.first() is None
    assert str(watcher).splitlines()[-1] == "no NaN or infinity"


class Broken(nn.Module):
    """Makes a NaN or infinity where it is told to."""

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
    if where == "parameter":  # x * g overflows where neither does alone
        net.one.weight.data.fill_(1e25)
        net.two.weight.data.fill_(1e-25)
    with GradientWatcher(net) as watcher:
        net(x.abs() if where == "parameter" else x).mul(
            torch.nan if where == "upstream" else 1e20 if where == "parameter" else 1
        ).sum().backward()
        net(x).sum()  # later ones do not count
    found = watcher.first()
    assert (found.name, found.direction, found.what, found.produced) == (name, direction, what, produced)
    assert str(found).startswith(f"{direction}: ")
    assert str(watcher).splitlines()[-1] == str(found)


def test_a_mask_is_no_infinity():
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


# torch.compile


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # torch's own, when it breaks a graph
def test_attached_before_compiling(x):
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    expected = net[1](net[0](x)).abs().mean()
    torch._dynamo.reset()
    fast = torch.compile(net, fullgraph=True, backend="aot_eager")
    with ActivationPenalty(fast, nn.ReLU) as penalty:
        for calls in (1, 2, 3):
            for _ in range(calls):
                fast(x)
            loss = penalty.loss()
            torch.testing.assert_close(loss, calls * expected)
            net.zero_grad()
            loss.backward()
            torch.testing.assert_close(
                net[0].weight.grad, calls * torch.autograd.grad(net[1](net[0](x)).abs().mean(), net[0].weight)[0]
            )
            penalty.reset()
    fast(x)
    assert not penalty._called  # nor does the compiled code go on
    torch._dynamo.reset()
    fast = torch.compile(net, backend="aot_eager")
    with Recorder(net, "1") as recorder, GradientWatcher(net) as watcher:
        fast(x).sum().backward()
    torch.testing.assert_close(recorder["1"][0].output, net[1](net[0](x)).detach())
    assert recorder["1"][0].grad_outputs[0] is not None
    assert watcher.first() is None
    fast(x)
    assert len(recorder) == 1
    torch._dynamo.reset()


def test_attached_after_compiling_says_so(x):
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    torch._dynamo.reset()
    fast = torch.compile(net, backend="aot_eager")
    fast(x)
    with ActivationPenalty(net, nn.ReLU) as penalty:
        fast(x)
        with pytest.raises(
            RuntimeError, match="or it was compiled before, and compiled code does not look for new hooks"
        ):
            penalty.loss()
    torch._dynamo.reset()

"""Properties that Recorder, ActivationPenalty and GradientWatcher share."""

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pointgrad.inspect import ActivationPenalty, GradientWatcher, Recorder

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


@every_kind
def test_results_are_unchanged_and_hooks_are_removed(make, net, x):
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
def test_hooks_are_removed_after_an_exception(make, net, x):
    with pytest.raises(KeyError), make(net):
        {net(x): 1}["missing"]
    assert not hooks_of(net)
    with make(net), pytest.raises(RuntimeError):
        net(torch.zeros(2, 5, 9))  # inside a layer
    assert not hooks_of(net)


@every_kind
def test_context_is_reentrant(make, net, x):
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
def test_copies_of_the_module_are_not_hooked(make, net, x):
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
            assert len(hooks) + hooks.dropped == 4 * seen  # one call before, three by the original module
        if isinstance(hooks, ActivationPenalty):
            assert hooks._waiting == 4 * seen
        if isinstance(hooks, GradientWatcher):
            assert hooks._clock == 4 * seen


@every_kind
def test_hooks_can_be_copied(make, net, x):
    with make(net) as hooks:
        net(x).sum().backward()
        copies = [copy.deepcopy(hooks), pickle.loads(pickle.dumps(hooks))]
    for each in copies:
        with pytest.raises(RuntimeError, match="is a copy without a module"), each:
            pass
        if isinstance(each, Recorder):
            assert torch.equal(each["first"][0].output, hooks["first"][0].output)
        if isinstance(each, GradientWatcher):
            assert each.norms() == hooks.norms()
            assert each.first() is None


class Kept:
    """A saved tensor that is freed with its graph."""

    def __init__(self, value):
        self.value = value


@every_kind
def test_graph_is_not_kept_alive(make, net, x):
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
def test_missing_layers(make, net):
    with pytest.raises(ValueError, match=r"Net has no layer named 'frist'; similar names: first"):
        make(net, "frist")
    types = "Linear, MultiheadAttention, Net"
    with pytest.raises(ValueError, match=f"Net has no layer of type Conv2d; its layers have types {types}"):
        make(net, nn.Conv2d)
    with pytest.raises(
        ValueError, match="'layers' of ModuleDict is a container, which is never called; select 'layers"
    ):
        make(nn.ModuleDict({"layers": nn.ModuleList([nn.ReLU()])}), "layers")
    with pytest.raises(ValueError, match="must select at least one layer"):
        make(net, [])
    with pytest.raises(TypeError, match=r"names or subclasses of torch.nn.Module, got 3"):
        make(net, [3])
    with pytest.raises(TypeError, match=r"module must be a torch.nn.Module, got function"):
        make(F.relu, "x")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # from graph breaks in torch
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
    assert not penalty._called  # the compiled code no longer calls the hook
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


def test_attached_after_compiling_is_an_error(x):
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    torch._dynamo.reset()
    fast = torch.compile(net, backend="aot_eager")
    fast(x)
    with ActivationPenalty(net, nn.ReLU) as penalty:
        fast(x)
        with pytest.raises(RuntimeError, match="or it was compiled earlier, and compiled code ignores new hooks"):
            penalty.loss()
    torch._dynamo.reset()

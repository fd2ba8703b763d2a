"""The autograd graph: nodes, edges and names."""

import doctest
import gc
import importlib
import json
import re
import sys
import weakref
from dataclasses import dataclass
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pointgrad
from pointgrad.catalog import CASES, Make
from pointgrad.inspect import Graph, graph
from tests.inspect.networks import Attention, Residual, Scale, named


def links(found: Graph) -> set[tuple[str, str]]:
    return {(found.nodes[edge.source].name, found.nodes[edge.target].name) for edge in found.edges}


def test_small_graph():
    x = torch.rand(2, 3, requires_grad=True)
    weight = torch.rand(3, 4, requires_grad=True)
    hidden = (x @ weight).tanh()
    found = graph((hidden * hidden).sum(), {"x": x, "weight": weight})

    assert [(node.kind, node.name) for node in found.nodes] == [
        ("input", "x"), ("input", "weight"), ("operator", "mm"), ("operator", "tanh"), ("operator", "mul"),
        ("operator", "sum"), ("output", "output"),
    ]  # fmt: skip
    assert links(found) == {
        ("x", "mm"), ("weight", "mm"), ("mm", "tanh"), ("tanh", "mul"), ("mul", "sum"), ("sum", "output"),
    }  # fmt: skip
    assert len(found.edges) == 7  # tanh -> mul twice
    assert named(found, "tanh").uses == 2
    assert named(found, "mm").grad_fn == "MmBackward0"
    assert named(found, "mm").results == (((2, 4), "float32"),)
    assert named(found, "sum").results == (((), "float32"),)

    # mm saves its inputs, tanh its result, mul the same tensor twice.
    kept = {(node.name, saved.name): saved for node in found.nodes for saved in node.saved}
    assert {(key, saved.shape, saved.bytes, saved.owner) for key, saved in kept.items()} == {
        (("mm", "self"), (2, 3), 24, "x"), (("mm", "mat2"), (3, 4), 48, "weight"),
        (("tanh", "result"), (2, 4), 32, ""), (("mul", "self"), (2, 4), 32, ""), (("mul", "other"), (2, 4), 32, ""),
    }  # fmt: skip
    tanh = named(found, "tanh")
    assert kept["mul", "self"].first == kept["mul", "other"].first == tanh.index
    assert (tanh.holds, named(found, "mul").holds, named(found, "mm").holds) == (32, 0, 0)
    assert (found.held_bytes, found.existing_bytes, found.saved_bytes) == (32, 72, 104)
    assert found.largest() == [tanh]


def test_nodes_are_in_topological_order():
    found = graph(Residual(3)(torch.rand(2, 8)), Residual(3))
    assert all(edge.source < edge.target for edge in found.edges)
    assert [node.index for node in found.nodes] == list(range(len(found.nodes)))


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=lambda case: case.name)
def test_every_pointgrad_operator(case):
    arguments = case.sample.build(Make())
    inputs = case.op.sources(arguments)
    found = graph([result for result in case({**arguments, **inputs}) if result.requires_grad], inputs)
    assert set(inputs) == {node.name for node in found.nodes if node.kind == "input"}
    assert not [node.name for node in found.nodes if "Backward" in node.name]
    ElementTree.fromstring(found.svg())


def test_operator_names():
    x = torch.rand(1, 2, 8, 8, requires_grad=True)
    calls = {
        "max_pool2d_with_indices": F.max_pool2d(x, 2), "log_softmax": x.log_softmax(1), "softmax": x.softmax(1),
        "native_layer_norm": F.layer_norm(x, (8,)), "add": x + 1, "index": x[[0]], "clone": x.clone(),
        "scaled_dot_product_flash_attention_for_cpu": F.scaled_dot_product_attention(x, x, x),
        "pointgrad::gather": pointgrad.gather(x[0], torch.zeros(2, 3, dtype=torch.long)),
        "Scale": Scale.apply(x, torch.ones(())), "linalg_det": torch.linalg.det(x),
    }  # fmt: skip
    for name, output in calls.items():
        operators = [node for node in graph(output).nodes if node.kind == "operator"]
        assert operators[-1].name == name
        assert operators[-1].custom == (name in ("pointgrad::gather", "Scale"))


def test_settings_are_readable():
    softmax = named(graph(torch.rand(2, 3, requires_grad=True).softmax(-1)), "softmax")
    assert softmax.settings == {"dim": "-1"}  # torch returns 18446744073709551615


def test_custom_function():
    x, factor = torch.rand(3, requires_grad=True), torch.tensor(2.0)
    node = named(graph(Scale.apply(x, factor), {"x": x}), "Scale")
    assert [(saved.name, saved.shape, saved.owner) for saved in node.saved] == [
        ("0", (3,), "x"), ("1", (), ""), ("ctx.hidden", (3,), ""),
    ]  # fmt: skip
    assert "attribute of ctx" in node.saved[2].note
    assert node.holds == 4 + 12


def test_parameter_names_and_number_of_uses():
    net = Attention(2)
    found = graph(net(torch.randint(0, 11, (2, 7))), net)
    parameters = {node.name: node.uses for node in found.nodes if node.kind == "parameter"}
    assert parameters == {name: 2 if name == "embedding.weight" else 1 for name, _ in net.named_parameters()}
    assert "used more than once: embedding.weight (2 times)" in str(found)


def test_parameter_with_two_names():
    net = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    net["b"].weight = net["a"].weight
    found = graph(net["b"](net["a"](torch.rand(2, 3))), net)
    (shared,) = [node for node in found.nodes if node.kind == "parameter"]
    assert (shared.name, shared.uses) == ("a.weight = b.weight", 2)


def test_location_in_the_module():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    found = graph(net(torch.rand(5, 3)).sum(), {"net": net})
    near = [(node.name, node.near) for node in found.nodes if node.kind == "operator"]
    assert near == [
        ("t", "in net.0"), ("addmm", "in net.0"), ("relu", "after net.0"), ("t", "in net.2"), ("addmm", "in net.2"),
        ("sum", "after net.2"),
    ]  # fmt: skip


def test_unreached_parameters():
    net = nn.ModuleDict({"used": nn.Linear(2, 2), "idle": nn.Linear(2, 2)})
    net["used"].bias.requires_grad_(False)
    x = torch.rand(1, 2)
    found = graph(net["used"](x), [net, {"x": x}])
    assert found.unreached == {
        "used.bias": "frozen: requires_grad is False", "idle.weight": "not used", "idle.bias": "not used",
    }  # fmt: skip
    assert "no gradient reaches used.bias (frozen" in str(found)


def test_input_names():
    x, y = torch.rand(2, requires_grad=True), torch.rand(2)

    def names(given):
        return [node.name for node in graph(x * y, given).nodes if node.kind == "input"]

    assert names(x) == ["input"]
    assert names([y, x]) == ["input1"]
    assert names({"batch": {"x": x}}) == ["batch.x"]
    assert names(None) == ["input 1"]
    assert graph(x * y, (x, y)).existing_bytes == 8  # y is an input
    assert graph(x * y, x).held_bytes == 8  # y is not known, so it counts as held only for backward


@dataclass
class Record:
    loss: Tensor
    index: Tensor


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def test_nested_outputs():
    x = torch.rand(2, requires_grad=True)
    output = {"a": [x.exp(), 3], "b": Record(x.sum(), torch.zeros(2)), "c": Pair(x.sin(), None), "leaf": x}
    found = graph(output, {"x": x})
    outputs = [node.name for node in found.nodes if node.kind == "output"]
    assert outputs == ["output.a[0]", "output.b.loss", "output.c.first", "output.leaf"]
    assert ("x", "output.leaf") in links(found)


def test_results_of_one_operator_are_distinguished():
    first, second = torch.rand(2, 3, requires_grad=True).unbind(0)
    found = graph((second, first))
    unbind = named(found, "unbind")
    assert [edge.result for edge in found.edges if edge.source == unbind.index] == [1, 0]
    assert len(unbind.results) == 2


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout):
    x = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)], layout=layout, requires_grad=True)
    found = graph(F.relu(x), x)
    assert [node.results[0][0] for node in found.nodes if node.kind != "operator"] == [(2, -1, -1)] * 2
    ElementTree.fromstring(found.svg())


def test_compiled_function():
    torch._dynamo.reset()
    x = torch.rand(3, requires_grad=True)
    found = graph(torch.compile(lambda x: x.exp().sin(), backend="aot_eager")(x), {"x": x})
    assert [node.name for node in found.nodes] == ["x", "CompiledFunction", "output"]
    assert found.nodes[1].custom
    assert found.held_bytes > 0


def test_second_derivative():
    x = torch.rand(3, requires_grad=True)
    (grad,) = torch.autograd.grad(x.sigmoid().sum(), x, create_graph=True)
    found = graph(grad, {"x": x})
    assert {"sigmoid", "sigmoid_backward"} <= {node.name for node in found.nodes}
    assert ("sigmoid", "sigmoid_backward") in links(found)


def test_graph_holds_no_tensors():
    class Token:
        pass

    class Hold(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.token = tokens[0]
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad

    tokens = [Token()]
    alive = weakref.ref(tokens[0])
    output = Hold.apply(torch.rand(3, requires_grad=True)).exp()
    found = graph(output)
    tokens.clear()
    gc.collect()
    assert alive() is not None
    del output
    gc.collect()
    assert alive() is None
    assert found.nodes
    json.loads(found.json())


def test_gradients_are_unchanged():
    net, x = Residual(2), torch.rand(3, 8)
    expected = torch.autograd.grad(net(x).sum(), list(net.parameters()))
    output = net(x).sum()
    graph(output, net).html()
    torch.testing.assert_close(torch.autograd.grad(output, list(net.parameters())), expected, rtol=0, atol=0)


def test_graph_deeper_than_the_recursion_limit():
    x = y = torch.rand(1, requires_grad=True)
    for _ in range(50_000):
        y = y + 1
    assert sys.getrecursionlimit() < 50_000
    with pytest.warns(RuntimeWarning, match="the graph is 50001 nodes deep"):
        found = graph(y, x)
    assert len(found.nodes) == 50_002
    assert len(found.edges) == 50_001

    # torch would free the chain recursively, so free the nodes one by one from the end.
    nodes = [y.grad_fn]
    while nodes[-1].next_functions:
        nodes.append(nodes[-1].next_functions[0][0])
    del y
    nodes.reverse()
    while nodes:
        nodes.pop()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (torch.rand(2), "output must require grad, got a tensor without grad_fn: it was computed under torch.no_grad"),
        ([torch.arange(3)], "output must require grad, got a tensor of dtype int64, which is not differentiable"),
        (None, "output must require grad, got NoneType without tensors"),
        ({"loss": 3.0}, "output must require grad, got dict without tensors"),
    ],
)
def test_output_without_graph(output, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        graph(output)


def test_wrong_type_of_names():
    output = torch.rand(2, requires_grad=True) * 1
    with pytest.raises(TypeError, match=r"inputs_or_module must be a module, a tensor, .* got str"):
        graph(output, "x")


@pytest.mark.parametrize("module", ["graph", "nodes", "names", "saved", "layout", "picture", "calls"])
def test_documented_examples_run(module):
    assert doctest.testmod(importlib.import_module(f"pointgrad.inspect.{module}")).failed == 0

"""The autograd graph: what it says is checked against torch's own hooks on saved tensors, and by hand."""

import doctest
import gc
import importlib
import json
import re
import sys
import weakref
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pointgrad
from pointgrad.catalog import CASES, Make
from pointgrad.inspect import Graph, Node, graph
from pointgrad.inspect.picture import TALLEST, draw


class Residual(nn.Module):
    def __init__(self, blocks: int, width: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width))
            for _ in range(blocks)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


class Attention(nn.Module):
    """One embedding used at both ends."""

    def __init__(self, layers: int, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, width)
        self.mix = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for mix, norm in zip(self.mix, self.norm, strict=True):
            query, key, value = mix(norm(x)).chunk(3, -1)
            x = x + (query @ key.transpose(-1, -2)).softmax(-1) @ value
        return x @ self.embedding.weight.t()


class Convolutions(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(36, 5),
        )


class Scale(torch.autograd.Function):
    """Saves one tensor as it should be, and hides another on its ctx."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        ctx.hidden = x * factor
        ctx.number = 3
        return ctx.hidden + 0

    @staticmethod
    def backward(ctx, grad):
        x, factor = ctx.saved_tensors
        return grad * factor, (grad * x).sum()


def named(found: Graph, name: str) -> Node:
    (node,) = [node for node in found.nodes if node.name == name]
    return node


def links(found: Graph) -> set[tuple[str, str]]:
    return {(found.nodes[edge.source].name, found.nodes[edge.target].name) for edge in found.edges}


def test_a_graph_by_hand():
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

    # mm keeps its inputs, tanh its result, mul the same tensor twice.
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


def test_inputs_come_before_what_uses_them():
    found = graph(Residual(3)(torch.rand(2, 8)), Residual(3))
    assert all(edge.source < edge.target for edge in found.edges)
    assert [node.index for node in found.nodes] == list(range(len(found.nodes)))


def storages(tensors) -> dict[int, int]:
    return {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}


def lstm_or_gru(kind):
    def build():
        net = kind(4, 5, num_layers=2)
        return net, (torch.rand(6, 2, 4, requires_grad=True),), lambda x: net(x)[0]

    return build


def of(module, *inputs):
    return lambda: (module, inputs, module)


def cloud():
    points, features = torch.rand(64, 3, requires_grad=True), torch.rand(64, 4, requires_grad=True)
    layer = nn.Linear(7, 8)

    def abstraction(points, features):
        centers = pointgrad.gather(points, pointgrad.farthest_point_sampling(points, 16))
        found = pointgrad.knn(points, 4, centers)
        grouped = pointgrad.group(features, found.index, points=points, centers=centers)
        return layer(grouped).relu().amax(-2), found.distance2

    return layer, (points, features), abstraction


NETWORKS = {
    "residual": of(Residual(3), torch.rand(5, 8, requires_grad=True)),
    "attention": of(Attention(2), torch.randint(0, 11, (2, 7))),
    "convolutions": of(Convolutions(), torch.rand(2, 3, 8, 8)),
    "evaluating": of(Convolutions().eval(), torch.rand(2, 3, 8, 8, requires_grad=True)),
    "dropout": of(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1)), torch.rand(3, 4)),
    "multihead": of(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.rand(2, 5, 8)),
    "lstm": lstm_or_gru(nn.LSTM),
    "gru": lstm_or_gru(nn.GRU),
    "cloud": cloud,
}


@pytest.mark.parametrize("build", NETWORKS.values(), ids=NETWORKS)
def test_bytes_are_those_torch_saves(build):
    """Every tensor that autograd packs, from torch's own hooks; memory counted once."""
    module, inputs, call = build()
    packed = []
    torch.manual_seed(1)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: packed.append(tensor) or tensor, lambda tensor: tensor
    ):
        hooked = call(*inputs)
    expected = storages(packed)
    outputs = hooked if isinstance(hooked, tuple) else (hooked,)
    existing = storages([*module.parameters(), *module.buffers(), *inputs, *outputs])

    torch.manual_seed(1)
    found = graph(call(*inputs), (module, *inputs))
    assert found.saved_bytes == sum(expected.values())
    assert found.held_bytes == sum(size for key, size in expected.items() if key not in existing)
    assert found.held_bytes == sum(node.holds for node in found.nodes)
    assert found.held_bytes == sum(held for _, _, held in found.by_operator())


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=lambda case: case.name)
def test_every_operator_of_ours(case):
    arguments = case.sample.build(Make())
    inputs = case.op.sources(arguments)
    found = graph([result for result in case({**arguments, **inputs}) if result.requires_grad], inputs)
    assert set(inputs) == {node.name for node in found.nodes if node.kind == "input"}
    assert not [node.name for node in found.nodes if "Backward" in node.name]
    ElementTree.fromstring(found.svg())


def test_names_of_operators():
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
    assert softmax.settings == {"dim": "-1"}  # torch says 18446744073709551615


def test_custom_function():
    x, factor = torch.rand(3, requires_grad=True), torch.tensor(2.0)
    node = named(graph(Scale.apply(x, factor), {"x": x}), "Scale")
    assert [(saved.name, saved.shape, saved.owner) for saved in node.saved] == [
        ("0", (3,), "x"), ("1", (), ""), ("ctx.hidden", (3,), ""),
    ]  # fmt: skip
    assert "attribute of ctx" in node.saved[2].note
    assert node.holds == 4 + 12


def test_parameters_by_name_and_repeated_use():
    net = Attention(2)
    found = graph(net(torch.randint(0, 11, (2, 7))), net)
    parameters = {node.name: node.uses for node in found.nodes if node.kind == "parameter"}
    assert parameters == {name: 2 if name == "embedding.weight" else 1 for name, _ in net.named_parameters()}
    assert "used repeatedly: embedding.weight (2 times)" in str(found)


def test_one_parameter_under_two_names():
    net = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    net["b"].weight = net["a"].weight
    found = graph(net["b"](net["a"](torch.rand(2, 3))), net)
    (shared,) = [node for node in found.nodes if node.kind == "parameter"]
    assert (shared.name, shared.uses) == ("a.weight = b.weight", 2)


def test_where_in_the_module():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    found = graph(net(torch.rand(5, 3)).sum(), {"net": net})
    near = [(node.name, node.near) for node in found.nodes if node.kind == "operator"]
    assert near == [
        ("t", "in net.0"), ("addmm", "in net.0"), ("relu", "after net.0"), ("t", "in net.2"), ("addmm", "in net.2"),
        ("sum", "after net.2"),
    ]  # fmt: skip


def test_what_gets_no_gradient():
    net = nn.ModuleDict({"used": nn.Linear(2, 2), "idle": nn.Linear(2, 2)})
    net["used"].bias.requires_grad_(False)
    x = torch.rand(1, 2)
    found = graph(net["used"](x), [net, {"x": x}])
    assert found.unreached == {
        "used.bias": "frozen: requires_grad is False", "idle.weight": "not used", "idle.bias": "not used",
    }  # fmt: skip
    assert "no gradient reaches used.bias (frozen" in str(found)


def test_names_of_inputs():
    x, y = torch.rand(2, requires_grad=True), torch.rand(2)

    def names(given):
        return [node.name for node in graph(x * y, given).nodes if node.kind == "input"]

    assert names(x) == ["input"]
    assert names([y, x]) == ["input1"]
    assert names({"batch": {"x": x}}) == ["batch.x"]
    assert names(None) == ["input 1"]
    assert graph(x * y, (x, y)).existing_bytes == 8  # y is kept, and exists anyway
    assert graph(x * y, x).held_bytes == 8  # y is not known, so backward is the only known holder


@dataclass
class Record:
    loss: Tensor
    index: Tensor


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def test_nests_of_outputs():
    x = torch.rand(2, requires_grad=True)
    output = {"a": [x.exp(), 3], "b": Record(x.sum(), torch.zeros(2)), "c": Pair(x.sin(), None), "leaf": x}
    found = graph(output, {"x": x})
    outputs = [node.name for node in found.nodes if node.kind == "output"]
    assert outputs == ["output.a[0]", "output.b.loss", "output.c.first", "output.leaf"]
    assert ("x", "output.leaf") in links(found)


def test_results_of_one_operator_are_told_apart():
    first, second = torch.rand(2, 3, requires_grad=True).unbind(0)
    found = graph((second, first))
    unbind = named(found, "unbind")
    assert [edge.result for edge in found.edges if edge.source == unbind.index] == [1, 0]
    assert len(unbind.results) == 2


def test_memory_is_counted_whole_and_once():
    x, one = torch.rand(4, 1, requires_grad=True), torch.ones((), requires_grad=True)
    wide = x.sin().expand(4, 1000)  # four numbers, seen 4000 times
    found = graph(wide * one, (x, one))
    assert (found.held_bytes, found.existing_bytes) == (16, 16 + 4)  # sin keeps x; mul keeps wide and one
    large = torch.rand(1000)
    found = graph(x[:2, 0] * large[:2], x)  # a view of two numbers keeps the thousand
    assert named(found, "mul").holds == 4000
    assert [saved.shape for saved in named(found, "mul").saved] == [(2,)]


def test_sparse_memory():
    matrix = torch.eye(8).to_sparse()
    dense = torch.rand(8, 2, requires_grad=True)
    found = graph(torch.sparse.mm(matrix, dense), dense)
    assert found.held_bytes == 8 * (2 * 8 + 4)  # two int64 indices and a float each


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout):
    x = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)], layout=layout, requires_grad=True)
    found = graph(F.relu(x), x)
    assert [node.results[0][0] for node in found.nodes if node.kind != "operator"] == [(2, -1, -1)] * 2
    ElementTree.fromstring(found.svg())


def test_freed():
    x = torch.rand(3, requires_grad=True)
    output = Scale.apply(x.exp(), torch.ones(())).sum()
    output.backward()
    found = graph(output, x)
    notes = {node.name: [saved.note for saved in node.saved if saved.stale] for node in found.nodes if node.saved}
    assert notes == {"exp": ["freed"], "Scale": ["freed"]}
    assert found.held_bytes == 12  # what Scale hid on its ctx is not freed
    assert "2 saved tensors freed: backward ran already" in str(found)
    assert found.svg().count(">freed<") == 2


def test_modified_in_place():
    x = torch.rand(3, requires_grad=True)
    hidden = x * 2
    output = hidden.sin() + Scale.apply(x, torch.ones(())).sum()
    hidden.add_(1)
    found = graph(output, x)
    (saved,) = named(found, "sin").saved
    assert saved.stale
    assert saved.note == "modified in place: at version 1, saved at 0; backward will raise"
    assert saved.shape in ((3,), None)
    assert not any(entry.stale for entry in named(found, "Scale").saved)
    assert "sin.self: modified in place" in str(found)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_modified_in_place_in_a_custom_function():
    x = torch.rand(3, requires_grad=True)
    hidden, factor = x * 2, torch.ones(())
    output = Scale.apply(hidden, factor)
    hidden.mul_(2)
    stale = [saved for saved in named(graph(output, x), "Scale").saved if saved.stale]
    assert [saved.note for saved in stale] == ["modified in place: at version 1, saved at 0; backward will raise"]


def raw_saved_tensors_tell_their_hooks() -> bool:
    return hasattr(torch.rand(1, requires_grad=True).exp().grad_fn._raw_saved_result, "unpack_hook")


needs_hooks = pytest.mark.skipif(
    not raw_saved_tensors_tell_their_hooks(), reason="this torch does not tell whether a saved tensor has hooks"
)


@needs_hooks
def test_hooks_are_not_run():
    def fail(packed):
        raise AssertionError("unpacked")

    x = torch.rand(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: {"kept": [tensor.double()]}, fail):
        output = Scale.apply(x.exp(), torch.ones(()))
    found = graph(output, x)
    assert named(found, "exp").saved[0].note == "packed by a hook"
    assert named(found, "exp").holds == 24
    assert [saved.note for saved in named(found, "Scale").saved[:2]] == ["packed by a hook"] * 2


@needs_hooks
def test_checkpoint():
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    x = torch.rand(32, 64, requires_grad=True)
    plain = graph(net(x), (net, x))
    kept = graph(checkpoint(net, x, use_reentrant=False), (net, x))
    assert [node.name for node in kept.nodes] == [node.name for node in plain.nodes]
    assert (plain.held_bytes, kept.held_bytes) == (32 * 64 * 4, 0)
    assert "computed again in backward" in named(kept, "relu").saved[0].note
    reentrant = graph(checkpoint(net, x, use_reentrant=True), (net, x))
    assert [node.name for node in reentrant.nodes if node.kind == "operator"] == ["CheckpointFunction"]


def test_compiled():
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


def test_it_holds_no_tensors():
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


def test_it_changes_nothing():
    net, x = Residual(2), torch.rand(3, 8)
    expected = torch.autograd.grad(net(x).sum(), list(net.parameters()))
    output = net(x).sum()
    graph(output, net).html()
    torch.testing.assert_close(torch.autograd.grad(output, list(net.parameters())), expected, rtol=0, atol=0)


def test_a_long_chain():
    """Deeper than Python's stack."""
    x = y = torch.rand(1, requires_grad=True)
    for _ in range(50_000):
        y = y + 1
    assert sys.getrecursionlimit() < 50_000
    with pytest.warns(RuntimeWarning, match="this graph is 50001 nodes deep"):
        found = graph(y, x)
    assert len(found.nodes) == 50_002
    assert len(found.edges) == 50_001

    # torch would free it recursively, so it is freed here one by one, from the end.
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
        ([torch.arange(3)], "output must require grad, got a tensor of int64, and integers have no derivative"),
        (None, "output must require grad, got NoneType without a tensor in it"),
        ({"loss": 3.0}, "output must require grad, got dict without a tensor in it"),
    ],
)
def test_no_graph(output, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        graph(output)


def test_wrong_names():
    output = torch.rand(2, requires_grad=True) * 1
    with pytest.raises(TypeError, match=r"inputs_or_module must be a module, a tensor, .* got str"):
        graph(output, "x")


# The picture.


def overlaps(drawing) -> list:
    rows: dict[float, list] = {}
    for box in drawing.boxes:
        rows.setdefault(box.y, []).append(box)
    found = []
    for row in rows.values():
        row.sort(key=lambda box: box.x)
        found += [(a, b) for a, b in pairwise(row) if a.x + a.width / 2 >= b.x - b.width / 2]
    assert all(box.height <= TALLEST for box in drawing.boxes)
    ys = sorted(rows)
    assert all(b - a > TALLEST for a, b in pairwise(ys))  # so boxes of different rows do not meet
    return found


def boxes_under_lines(drawing) -> list:
    """Boxes that a line passes on its way between two others. Lines are vertical within a row."""
    rows: dict[float, list] = {}
    for box in drawing.boxes:
        rows.setdefault(box.y, []).append(box)
    found = []
    for line in drawing.lines:
        ends = (drawing.boxes[line.source], drawing.boxes[line.target])
        for (x, top), (x_below, bottom) in pairwise(line.points):
            for y, row in rows.items():
                if top <= y <= bottom:
                    assert x == x_below
                    found += [box for box in row if box not in ends and abs(box.x - x) <= box.width / 2]
    return found


def test_a_chain_is_straight():
    net = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(4, 4), nn.ReLU())))
    drawing = draw(graph(net(torch.rand(2, 4)), net))
    names = ("addmm", "relu", "output")
    assert len({box.x for box in drawing.boxes if box.node.name in names}) == 1
    assert not overlaps(drawing)


def test_skip_connections_go_around():
    net = Residual(4)
    drawing = draw(graph(net(torch.rand(2, 8, requires_grad=True)), net))
    spine = [box.x for box in drawing.boxes if box.node.name in ("add", "addmm", "gelu", "native_layer_norm")]
    assert len(set(spine)) == 1
    assert not boxes_under_lines(drawing)


@pytest.fixture(scope="module")
def large() -> Graph:
    torch.manual_seed(0)
    net = Attention(64)
    found = graph(net(torch.randint(0, 11, (2, 7))), net)
    assert len(found.nodes) > 1000
    return found


def test_a_large_network_does_not_overlap(large):
    drawing = draw(large)
    assert not overlaps(drawing)
    assert not boxes_under_lines(drawing)
    assert not drawing.cut
    assert {box.node.index for box in drawing.boxes} == {node.index for node in large.nodes}


def test_lines_too_long_are_cut_not_lost():
    """Every step of a recurrence is used at the end as well."""
    cell, state, outputs = nn.RNNCell(2, 2), torch.zeros(1, 2), []
    for _ in range(150):
        state = cell(torch.rand(1, 2), state)
        outputs.append(state.sin())
    found = graph(torch.stack(outputs), cell)
    drawing = draw(found)
    assert drawing.cut
    assert len(drawing.cut) + sum(line.count for line in drawing.lines) == len(found.edges)
    assert not overlaps(drawing)
    assert f"{len(drawing.cut)} long lines not drawn" in found.svg()


def star() -> Tensor:
    return torch.cat([torch.rand(1, requires_grad=True).exp() for _ in range(200)])


def dense() -> Tensor:
    found = [torch.rand(2, requires_grad=True)]
    for _ in range(60):
        found.append(torch.stack(found[-10:]).sum(0))
    return found[-1]


def tangled() -> Tensor:
    found = [torch.rand(2, requires_grad=True) for _ in range(5)]
    for first, second in torch.randint(0, 2**31, (400, 2)).tolist():
        found.append(found[first % len(found)] * found[-1 - second % 20 % len(found)])
    return sum(found[-5:])


@pytest.mark.parametrize("build", [star, dense, tangled])
def test_awkward_graphs_do_not_overlap(build):
    drawing = draw(graph(build()))
    assert not overlaps(drawing)
    assert not boxes_under_lines(drawing)


def test_a_shared_parameter_is_drawn_at_each_use():
    net = Attention(1)
    found = graph(net(torch.randint(0, 11, (2, 7))), net)
    uses = [box.use for box in draw(found).boxes if box.node.name == "embedding.weight"]
    assert uses == [1, 2]
    assert "use 2 of 2" in found.svg()
    weight = nn.Parameter(torch.rand(2))
    squared = graph(weight * weight, {"weight": weight}).svg()  # both uses are one operator's: one box, two lines
    assert "2 uses" in squared
    assert "&#215;2" in squared


AWKWARD = 'a<b>&"c"\'</script>]]>"DATA"<!--PICTURE-->\u2028'


def external(text: str) -> list[str]:
    text = text.replace('xmlns="http://www.w3.org/2000/svg"', "").replace('xmlns="http://www.w3.org/1999/xhtml"', "")
    return re.findall(r"https?:|//\w|@import|url\(|<link|<iframe|\bsrc=|\bhref=|fetch\(|XMLHttpRequest", text)


def test_svg_is_self_contained():
    x = torch.rand(2, requires_grad=True)
    picture = graph(x.exp(), {AWKWARD: x}).svg()
    root = ElementTree.fromstring(picture)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert any(AWKWARD in (title.text or "") for title in root.iter("{http://www.w3.org/2000/svg}title"))
    assert not external(picture)
    assert "<script" not in picture


def test_page_is_self_contained():
    x = torch.rand(2, requires_grad=True)
    page = graph(x.exp(), {AWKWARD: x}).html()
    root = ElementTree.fromstring(page)
    (script,) = root.iter("{http://www.w3.org/1999/xhtml}script")
    data = json.loads(re.search(r"^const data = (.*);$", script.text, re.MULTILINE)[1])
    assert data["nodes"][0]["name"] == AWKWARD
    assert page.count("</script>") == 1
    assert not external(page)


def test_page_has_every_node(large):
    page = large.html()
    root = ElementTree.fromstring(page)
    drawn = {int(group.get("data-node")) for group in root.iter() if group.get("data-node")}
    assert drawn == {node.index for node in large.nodes}


def test_write(tmp_path):
    found = graph(torch.rand(2, requires_grad=True).exp())
    for suffix, begin in ((".svg", "<svg"), (".html", "<!DOCTYPE html>"), (".json", "{")):
        assert found.write(tmp_path / f"graph{suffix}").read_text(encoding="utf-8").startswith(begin)
    with pytest.raises(ValueError, match=r"path must end in .svg, .html, .json, got 'graph.png'"):
        found.write("graph.png")


@pytest.mark.parametrize("module", ["graph", "nodes", "names", "saved", "layout", "picture", "calls"])
def test_documented_examples_run(module):
    assert doctest.testmod(importlib.import_module(f"pointgrad.inspect.{module}")).failed == 0

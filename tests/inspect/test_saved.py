"""Memory saved for backward, compared with torch's hooks on saved tensors."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pointgrad
from pointgrad.inspect import graph
from tests.inspect.networks import Attention, Residual, Scale, named


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
def test_bytes_agree_with_saved_tensors_hooks(build):
    """The graph counts the memory of every tensor that autograd saves, once."""
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


def test_storages_are_counted_whole_and_once():
    x, one = torch.rand(4, 1, requires_grad=True), torch.ones((), requires_grad=True)
    wide = x.sin().expand(4, 1000)  # a storage of four values
    found = graph(wide * one, (x, one))
    assert (found.held_bytes, found.existing_bytes) == (16, 16 + 4)  # sin saves x; mul saves wide and one
    large = torch.rand(1000)
    found = graph(x[:2, 0] * large[:2], x)  # a view of two values keeps the whole storage
    assert named(found, "mul").holds == 4000
    assert [saved.shape for saved in named(found, "mul").saved] == [(2,)]


def test_sparse_memory():
    matrix = torch.eye(8).to_sparse()
    dense = torch.rand(8, 2, requires_grad=True)
    found = graph(torch.sparse.mm(matrix, dense), dense)
    assert found.held_bytes == 8 * (2 * 8 + 4)  # two int64 indices and a float32 per value


def test_freed_tensors():
    x = torch.rand(3, requires_grad=True)
    output = Scale.apply(x.exp(), torch.ones(())).sum()
    output.backward()
    found = graph(output, x)
    notes = {node.name: [saved.note for saved in node.saved if saved.stale] for node in found.nodes if node.saved}
    assert notes == {"exp": ["freed"], "Scale": ["freed"]}
    assert found.held_bytes == 12  # the attribute of ctx is not freed
    assert "2 saved tensors freed: backward has already run" in str(found)
    assert found.svg().count(">freed<") == 2


def test_modified_in_place():
    x = torch.rand(3, requires_grad=True)
    hidden = x * 2
    output = hidden.sin() + Scale.apply(x, torch.ones(())).sum()
    hidden.add_(1)
    found = graph(output, x)
    (saved,) = named(found, "sin").saved
    assert saved.stale
    assert saved.note == "modified in place: saved at version 0, now at version 1; backward will raise"
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
    (stale,) = [saved for saved in named(graph(output, x), "Scale").saved if saved.stale]
    assert stale.note == "modified in place: saved at version 0, now at version 1; backward will raise"


def exposes_unpack_hooks() -> bool:
    return hasattr(torch.rand(1, requires_grad=True).exp().grad_fn._raw_saved_result, "unpack_hook")


needs_hooks = pytest.mark.skipif(
    not exposes_unpack_hooks(), reason="this version of torch does not expose the hooks of saved tensors"
)


@needs_hooks
def test_unpack_hooks_do_not_run():
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
    assert "recomputed in backward" in named(kept, "relu").saved[0].note
    reentrant = graph(checkpoint(net, x, use_reentrant=True), (net, x))
    assert [node.name for node in reentrant.nodes if node.kind == "operator"] == ["CheckpointFunction"]

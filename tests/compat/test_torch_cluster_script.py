"""TorchScript and torch.compile with the functions of pointgrad.compat.torch_cluster."""

import inspect
import io

import pytest
import torch

import pointgrad.compat.torch_cluster as torch_cluster
from tests.compat.torch_cluster_loops import ragged

X, BATCH = ragged([9, 4, 12])
Y, BATCH_Y = ragged([3, 5, 2])
ARGUMENTS = {
    "knn": (X, Y, 3, BATCH, BATCH_Y),
    "knn_graph": (X, 3, BATCH),
    "radius": (X, Y, 4.0, BATCH, BATCH_Y, 5),
    "radius_graph": (X, 4.0, BATCH, True),
    "nearest": (X, Y, BATCH, BATCH_Y),
    "grid_cluster": (X, torch.tensor([2.0, 2, 3])),
}


def test_every_function_is_tested():
    assert set(torch_cluster.__all__) == {*ARGUMENTS, "fps", "__version__"}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_scripted_function_equals_the_function(name):
    function = getattr(torch_cluster, name)
    scripted = torch.jit.script(function)
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    # A saved TorchScript function has no default values.
    parameters = list(inspect.signature(function).parameters.values())
    arguments = ARGUMENTS[name] + tuple(p.default for p in parameters[len(ARGUMENTS[name]) :])
    expected = function(*arguments)
    assert expected.numel() > 0
    for compiled in (scripted, torch.jit.load(file)):
        assert torch.equal(compiled(*arguments), expected)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_compiled_without_graph_breaks(name):
    function = getattr(torch_cluster, name)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(lambda *args: function(*args) * 2, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(*ARGUMENTS[name]), function(*ARGUMENTS[name]) * 2)


def sample(x: torch.Tensor, batch: torch.Tensor, ratio: torch.Tensor):
    return (
        torch_cluster.fps(x, batch, random_start=False),
        torch_cluster.fps(x, batch, 0.3, False),
        torch_cluster.fps(x, batch, ratio, False, 3),
        torch_cluster.fps(x, ratio=0.3, random_start=False, ptr=torch.tensor([0, 9, 25])),
        torch_cluster.fps(x, None, ratio, False, None, [0, 9, 25]),
    )


def test_sampling_scripted_and_compiled():
    ratio = torch.tensor(0.4)
    expected = sample(X, BATCH, ratio)
    assert [len(index) for index in expected] == [13, 3 + 2 + 4, 4 + 2 + 5, 3 + 5, 4 + 7]
    scripted = torch.jit.script(sample)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(sample, fullgraph=True, backend="aot_eager")
        for function in (scripted, compiled):
            for received, wanted in zip(function(X, BATCH, ratio), expected, strict=True):
                assert torch.equal(received, wanted)


def test_scripted_random_starts_differ():
    @torch.jit.script
    def starts(x):
        return [torch_cluster.fps(x, None, 0.01)[0] for _ in range(20)]

    x = torch.rand(100, 3)
    torch.manual_seed(0)
    first = torch.stack(starts(x))
    assert len(first.unique()) > 5
    torch.manual_seed(0)
    assert torch.equal(first, torch.stack(starts(x)))


@pytest.mark.parametrize("name", ["graclus_cluster", "random_walk"])
def test_scripted_graph_functions_raise(name):
    """Programs that never call them can be scripted."""
    scripted = torch.jit.script(getattr(torch_cluster, name))
    index = torch.tensor([0, 1])
    arguments = (index, index) if name == "graclus_cluster" else (index, index, index, 3)
    with pytest.raises(torch.jit.Error, match=f"does not provide {name}"):
        scripted(*arguments)

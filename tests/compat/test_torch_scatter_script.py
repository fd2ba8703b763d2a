"""TorchScript and torch.compile with the functions of pointgrad.compat.torch_scatter."""

import importlib
import inspect
import io
from typing import Optional

import pytest
import torch

import pointgrad.compat.torch_scatter as torch_scatter
from pointgrad.compat.torch_scatter.utils import broadcast

INDEX = torch.tensor([0, 0, 1, 3, 3, 3, 4])
POINTERS = torch.tensor([0, 2, 3, 3, 7])

# The arguments after src of every function.
ARGUMENTS = {name: (INDEX, 0, None, 5) for name in torch_scatter.__all__ if name.startswith("scatter")}
ARGUMENTS |= {name: (POINTERS,) for name in torch_scatter.__all__ if name.endswith("_csr")}
ARGUMENTS |= {name: (INDEX, None, 5) for name in torch_scatter.__all__ if name.endswith("_coo")}
ARGUMENTS |= {
    "gather_coo": (INDEX,),
    "scatter_softmax": (INDEX, 0, 5),
    "scatter_log_softmax": (INDEX, 0, 1e-12, 5),
}
NAMES = sorted(set(torch_scatter.__all__) - {"__version__"})


def test_every_function_is_tested():
    assert set(NAMES) == set(ARGUMENTS)


def with_defaults(function, arguments):
    """All arguments after src: a saved TorchScript function has no default values."""
    return *arguments, *(p.default for p in list(inspect.signature(function).parameters.values())[1 + len(arguments) :])


def results(function, src, arguments):
    """The result as a tuple, its gradient and its second derivative."""
    src = src.clone().requires_grad_()
    values = function(src, *arguments)
    values = values if isinstance(values, tuple) else (values,)
    (grad,) = torch.autograd.grad((values[0] ** 2).sum(), src, create_graph=True)
    return *values, grad, torch.autograd.grad((grad**2).sum(), src)[0]


@pytest.mark.parametrize("name", NAMES)
def test_scripted_function_equals_the_function(name):
    function, rows = getattr(torch_scatter, name), 4 if name == "gather_csr" else 7
    src = torch.randn(rows, 3, dtype=torch.float64)
    arguments = with_defaults(function, ARGUMENTS[name])
    expected = results(function, src, arguments)
    scripted = torch.jit.script(function)
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    for compiled in (scripted, torch.jit.load(file)):
        for received, wanted in zip(results(compiled, src, arguments), expected, strict=True):
            assert torch.equal(received, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_without_graph_breaks(name):
    function, rows = getattr(torch_scatter, name), 4 if name == "gather_csr" else 7
    src = torch.randn(rows, 3, dtype=torch.float64)
    # Without `out`, the length of the result of gather_csr depends on the values.
    arguments = (POINTERS, torch.zeros(7, 3, dtype=torch.float64)) if name == "gather_csr" else ARGUMENTS[name]
    expected = function(src, *arguments)
    received = torch.compile(function, fullgraph=True, backend="aot_eager")(src, *arguments)
    torch.testing.assert_close(received, expected)


def test_scripted_function_writes_to_out():
    def accumulate(src: torch.Tensor, index: torch.Tensor, size: int):
        total, best = torch.zeros(size), torch.zeros(size)
        torch_scatter.scatter_sum(src, index, 0, total)
        torch_scatter.scatter(src, index, 0, total)
        _, arg = torch_scatter.scatter_max(src, index, 0, out=best)
        torch_scatter.segment_csr(src, torch.tensor([0, 1, 3]), best[1:])
        return total, best, arg

    src, index = torch.tensor([3.0, 1, 5]), torch.tensor([0, 0, 2])
    scripted = torch.jit.script(accumulate)
    for _ in range(3):  # the executor optimizes after the first calls
        total, best, arg = scripted(src, index, 3)
        assert total.tolist() == [8, 0, 10]
        assert best.tolist() == [3, 3, 6]
        assert arg.tolist() == [0, 3, 2]


def test_scripted_class_with_reductions():
    """torch_sparse defines such a class when it is imported."""

    class Storage:
        def __init__(self, index: torch.Tensor, value: Optional[torch.Tensor], size: int):  # noqa: UP045
            self.index, self.value, self.size = index, value, size

        def counts(self) -> torch.Tensor:
            return torch_scatter.scatter_add(torch.ones_like(self.index), self.index, dim=0, dim_size=self.size)

        def reduced(self, pointers: torch.Tensor, reduce: str) -> torch.Tensor:
            value = self.value
            assert value is not None
            merged = torch_scatter.segment_csr(value, pointers, reduce=reduce)
            return merged + torch_scatter.scatter(value, self.index, 0, None, self.size, reduce)

        def row(self, pointers: torch.Tensor) -> torch.Tensor:
            return torch_scatter.gather_csr(torch.arange(self.size), pointers)

    storage = torch.jit.script(Storage)(INDEX[:4], torch.tensor([1.0, 2, 4, 8]), 4)
    assert storage.counts().tolist() == [2, 1, 0, 1]
    assert storage.reduced(torch.tensor([0, 2, 3, 3, 4]), "mean").tolist() == [3, 8, 0, 16]
    assert storage.row(torch.tensor([0, 2, 3, 3, 4])).tolist() == [0, 0, 1, 3]


def test_scripted_broadcast():
    other = torch.empty(2, 3, 4)
    scripted = torch.jit.script(broadcast)
    for index, dim in ((torch.arange(3), -2), (torch.arange(6).reshape(2, 3), 1), (torch.arange(4), 2)):
        assert torch.equal(scripted(index, other, dim), broadcast(index, other, dim))


def test_modules_can_be_reloaded():
    module = importlib.import_module("pointgrad.compat.torch_scatter.segment_coo")
    scripted = torch.jit.script(importlib.reload(module).gather_coo)
    assert scripted(torch.arange(3), torch.tensor([2, 0])).tolist() == [2, 0]


def test_errors_of_scripted_functions():
    scripted = torch.jit.script(torch_scatter.scatter)
    with pytest.raises(Exception, match=r"reduce must be .*, got 'median'"):
        scripted(torch.rand(3), torch.zeros(3).long(), reduce="median")
    with pytest.raises(Exception, match=r"index must be -1 or in \[0, 3\), got 5"):
        scripted(torch.rand(3), torch.tensor([0, 5, 1]), dim_size=3)

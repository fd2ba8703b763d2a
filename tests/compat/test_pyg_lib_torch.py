"""The operators in `torch.ops.pyg` under autograd, TorchScript, torch.compile and torch.export; a program."""

import doctest
import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import pointgrad.compat
import pointgrad.compat.pyg_lib.ops.scatter_reduce
from pointgrad.compat import pyg_lib
from pointgrad.compat.pyg_lib import ops

pyg = torch.ops.pyg

# As in pyg-lib 0.9.0: `TORCH_LIBRARY_FRAGMENT(pyg, m)` in pyg_lib/csrc.
SCHEMAS = """
fps(Tensor src, Tensor ptr, float ratio=0.5, bool random_start=True) -> Tensor
knn(Tensor x, Tensor y, Tensor? ptr_x=None, Tensor? ptr_y=None, int k=1, bool cosine=False, int num_workers=1) -> Tensor
radius(Tensor x, Tensor y, Tensor? ptr_x=None, Tensor? ptr_y=None, float r=1., int max_num_neighbors=32, int num_workers=1, bool ignore_same_index=False) -> Tensor
nearest(Tensor x, Tensor y, Tensor? ptr_x=None, Tensor? ptr_y=None) -> Tensor
grid_cluster(Tensor pos, Tensor size, Tensor? start=None, Tensor? end=None) -> Tensor
scatter_sum(Tensor src, Tensor index, int dim=-1, Tensor? out=None, int? dim_size=None) -> Tensor
scatter_mul(Tensor src, Tensor index, int dim=-1, Tensor? out=None, int? dim_size=None) -> Tensor
scatter_mean(Tensor src, Tensor index, int dim=-1, Tensor? out=None, int? dim_size=None) -> Tensor
scatter_min(Tensor src, Tensor index, int dim=-1, Tensor? out=None, int? dim_size=None) -> (Tensor, Tensor)
scatter_max(Tensor src, Tensor index, int dim=-1, Tensor? out=None, int? dim_size=None) -> (Tensor, Tensor)
segment_sum_coo(Tensor src, Tensor index, Tensor? out=None, int? dim_size=None) -> Tensor
segment_mean_coo(Tensor src, Tensor index, Tensor? out=None, int? dim_size=None) -> Tensor
segment_min_coo(Tensor src, Tensor index, Tensor? out=None, int? dim_size=None) -> (Tensor, Tensor)
segment_max_coo(Tensor src, Tensor index, Tensor? out=None, int? dim_size=None) -> (Tensor, Tensor)
gather_coo(Tensor src, Tensor index, Tensor? out=None) -> Tensor
segment_sum_csr(Tensor src, Tensor indptr, Tensor? out=None) -> Tensor
segment_mean_csr(Tensor src, Tensor indptr, Tensor? out=None) -> Tensor
segment_min_csr(Tensor src, Tensor indptr, Tensor? out=None) -> (Tensor, Tensor)
segment_max_csr(Tensor src, Tensor indptr, Tensor? out=None) -> (Tensor, Tensor)
gather_csr(Tensor src, Tensor indptr, Tensor? out=None) -> Tensor
softmax_csr(Tensor src, Tensor ptr, int dim=0) -> Tensor
index_sort(Tensor indices, int? max=None) -> (Tensor, Tensor)
sampled_op(Tensor left, Tensor right, Tensor? left_index, Tensor? right_index, str op) -> Tensor
grouped_matmul(Tensor[] input, Tensor[] other) -> Tensor[]
segment_matmul(Tensor input, Tensor ptr, Tensor other) -> Tensor
spline_basis(Tensor pseudo, Tensor kernel_size, Tensor is_open_spline, int degree=1) -> (Tensor, Tensor)
spline_weighting(Tensor x, Tensor weight, Tensor basis, Tensor weight_index) -> Tensor
random_walk(Tensor rowptr, Tensor col, Tensor seed, int walk_length, float p, float q) -> Tensor
"""  # noqa: E501


def test_schemas():
    for schema in SCHEMAS.split("\n")[1:-1]:
        name = schema.partition("(")[0]
        assert str(getattr(pyg, name).default._schema) == f"pyg::{schema}"


# -- calls of every operator, which TorchScript can compile as well ----------------------------------------------------


def points(x: Tensor, ptr: Tensor) -> list[Tensor]:
    sample = pyg.fps(x, ptr, 0.5, False)
    edges = pyg.knn(x, x, ptr, ptr, 2, False, 1)
    near = pyg.radius(x, x, ptr, ptr, 0.5, 4, 1, True)
    cluster = pyg.nearest(x, x[sample])
    voxel = pyg.grid_cluster(x, torch.full([3], 0.25, dtype=x.dtype))
    return [sample, edges, near, cluster, voxel, x[edges[0]] - x[edges[1]]]


def scatter(x: Tensor, index: Tensor) -> list[Tensor]:
    low, low_at = pyg.scatter_min(x, index, 0, None, 4)
    high, high_at = pyg.scatter_max(x, index, 0, None, 4)
    total = pyg.scatter_sum(x, index, 0, None, 4) + pyg.scatter_mean(x, index, 0, None, 4)
    added = pyg.scatter_sum(x, index, 0, torch.ones(4, 3, dtype=x.dtype))
    return [low, low_at, high, high_at, total, added, pyg.scatter_mul(x, index, 0, None, 4)]


def scatter_without_size(x: Tensor, index: Tensor) -> list[Tensor]:
    return [pyg.scatter_sum(x, index, 0), pyg.scatter_max(x, index, 0)[0], pyg.segment_mean_coo(x, index)]


def segments(x: Tensor, index: Tensor, ptr: Tensor) -> list[Tensor]:
    coo = pyg.segment_sum_coo(x, index, None, 4) * pyg.segment_mean_coo(x, index, None, 4)
    csr = pyg.segment_sum_csr(x, ptr) * pyg.segment_mean_csr(x, ptr)
    low, low_at = pyg.segment_min_coo(x, index, None, 4)
    high, high_at = pyg.segment_max_coo(x, index, None, 4)
    first, first_at = pyg.segment_min_csr(x, ptr)
    last, last_at = pyg.segment_max_csr(x, ptr)
    spread = pyg.gather_csr(csr, ptr, torch.zeros_like(x))
    return [coo, csr, low, low_at, high, high_at, first, first_at, last, last_at, pyg.gather_coo(coo, index), spread]


def others(x: Tensor, index: Tensor, ptr: Tensor, weight: Tensor) -> list[Tensor]:
    order = pyg.index_sort(index)[1]
    sampled = pyg.sampled_op(x, x, index, order, "mul") / pyg.sampled_op(x, x, order, None, "sub").exp()
    products = pyg.grouped_matmul([x, x[:3]], [weight[0], weight[1]])
    soft = pyg.softmax_csr(x, ptr)
    return [order, sampled, products[0], products[1], soft, pyg.segment_matmul(x, ptr, weight)]


def splines(x: Tensor, weight: Tensor, kernel_size: Tensor, is_open: Tensor) -> list[Tensor]:
    basis, weight_index = pyg.spline_basis(x[:, :2], kernel_size, is_open, 2)
    return [basis, weight_index, pyg.spline_weighting(x, weight, basis, weight_index)]


torch.manual_seed(0)
X = torch.rand(8, 3, dtype=torch.float64)
INDEX, PTR = torch.tensor([0, 0, 0, 1, 1, 3, 3, 3]), torch.tensor([0, 3, 8])
WEIGHT = torch.rand(2, 3, 4, dtype=torch.float64)
SPLINE = torch.rand(12, 3, 2, dtype=torch.float64), torch.tensor([4, 3]), torch.tensor([1, 0], dtype=torch.uint8)
CALLS = {
    points: (X, PTR),
    scatter: (X, INDEX),
    scatter_without_size: (X, INDEX),
    segments: (X, INDEX, PTR),
    others: (X, INDEX, PTR, WEIGHT),
    splines: (X, *SPLINE),
}
calls = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)


def results(call, arguments):
    """Results, and the gradient of a function of the differentiable ones."""
    arguments = [value.clone().requires_grad_(value.is_floating_point()) for value in arguments]
    found = call(*arguments)
    loss = sum(value.sin().sum() for value in found if value.requires_grad)
    inputs = [value for value in arguments if value.requires_grad]
    return list(found), torch.autograd.grad(loss, inputs)


@calls
def test_gradients(call):
    """Finite differences, of first and second order."""
    inputs = [value.clone().requires_grad_() for value in CALLS[call] if value.is_floating_point()]

    def function(*floats):
        given = iter(floats)
        arguments = [next(given) if value.is_floating_point() else value for value in CALLS[call]]
        return tuple(value for value in call(*arguments) if value.is_floating_point())

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


@calls
def test_script(call):
    scripted = torch.jit.script(call)
    for _ in range(3):  # the second and third calls run optimized code
        torch.testing.assert_close(results(scripted, CALLS[call]), results(call, CALLS[call]))


def test_script_keeps_writes_to_out():
    def fill(x: Tensor, index: Tensor) -> Tensor:
        out = torch.zeros([4, 3], dtype=x.dtype)
        pyg.scatter_sum(x, index, 0, out)
        return out

    torch.testing.assert_close(torch.jit.script(fill)(X, INDEX), fill(X, INDEX))


@calls
def test_compile(call):
    """Without graph breaks. Results whose size depends on values need torch's own setting for this."""
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch.testing.assert_close(results(compiled, CALLS[call]), results(call, CALLS[call]))


@calls
def test_export(call):
    class Module(torch.nn.Module):
        def forward(self, *arguments):
            return call(*arguments)

    exported = torch.export.export(Module(), CALLS[call], strict=False).module()
    torch.testing.assert_close(list(exported(*CALLS[call])), call(*CALLS[call]))


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (pyg.fps, (X, PTR, 0.5, False)),
        (pyg.knn, (X, X, PTR, PTR, 2)),
        (pyg.radius, (X, X, None, None, 0.5)),
        (pyg.nearest, (X, X[:4])),
        (pyg.grid_cluster, (X, torch.ones(3))),
        (pyg.segment_matmul, (X.clone().requires_grad_(), PTR, WEIGHT.clone().requires_grad_())),
    ],
    ids=lambda value: str(value) if callable(value) else "",
)
def test_opcheck(operator, arguments):
    torch.library.opcheck(operator.default, arguments)


def test_meta():
    """Shapes that do not depend on values are known on the device "meta"."""
    x = X.to("meta")
    assert pyg.grid_cluster(x, torch.ones(3, device="meta")).shape == (8,)
    assert pyg.nearest(x, x[:3]).device.type == "meta"
    assert pyg.segment_matmul(x, PTR.to("meta"), WEIGHT.to("meta")).shape == (8, 4)
    with pytest.raises(ValueError, match=r"^pos must be \(N,\) or \(N, D\), got \(\)$"):
        pyg.grid_cluster(x[0, 0], x[0])


def test_functions_can_be_scripted():
    def call(x: Tensor, index: Tensor, ptr: Tensor) -> list[Tensor]:
        edges = ops.knn(x, x, 2, ptr, ptr)
        total = ops.scatter_sum(x, index, 0, dim_size=4) + ops.segment_mean_coo(x, index, dim_size=4)
        best, _ = ops.scatter_max(x, index, dim=0)
        product = ops.segment_matmul(x, ptr, torch.ones([2, 3, 4], dtype=x.dtype), torch.ones([2, 4], dtype=x.dtype))
        reduced = ops.scatter(x, index, 0, dim_size=4, reduce="mean") + ops.segment_csr(x, ptr)[:1]
        soft = ops.scatter_softmax(x, index, 0) + ops.scatter_log_softmax(x, index, 0)
        spread = ops.scatter_std(x, index, 0, dim_size=4) + ops.scatter_logsumexp(x, index, 0, dim_size=4)
        sampled, summed = ops.fps(x, ptr, random_start=False), ops.segment_coo(x, index, dim_size=4)
        return [edges, sampled, total, best, ops.softmax_csr(x, ptr), product, reduced, soft, spread, summed]

    torch.testing.assert_close(torch.jit.script(call)(X, INDEX, PTR), call(X, INDEX, PTR))


def test_examples():
    for module in (pyg_lib.ops._groups, pyg_lib.ops._matmul, pyg_lib.ops._points, pyg_lib.ops.scatter_reduce):
        result = doctest.testmod(module, extraglobs={"torch": torch})
        assert result.attempted > 0
        assert result.failed == 0


# -- programs ----------------------------------------------------------------------------------------------------------


def test_unchanged_program(default_place, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyg_lib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "argv", ["model.py", "--steps", "10", "--device", default_place.device])
    pointgrad.compat.install("pyg_lib")
    try:
        assert sys.modules["pyg_lib"] is pyg_lib
        runpy.run_path(str(Path(__file__).parent / "foreign" / "pyg_lib_model.py"), run_name="__main__")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "pyg_lib"]:
            del sys.modules[name]
    losses = [float(line) for line in capsys.readouterr().out.split()]
    assert len(losses) == 10
    assert losses[-1] < 0.8 * losses[0]

"""Scatter reductions, signatures and errors of pointgrad.compat.torch_scatter, and comparisons with the original."""

import importlib
import inspect
import sys

import pytest
import torch

from pointgrad.compat import torch_scatter
from pointgrad.compat.torch_scatter import (
    gather_coo,
    gather_csr,
    scatter,
    scatter_max,
    scatter_mean,
    scatter_min,
    scatter_softmax,
    segment_coo,
    segment_csr,
)
from pointgrad.compat.torch_scatter.utils import broadcast
from tests.compat.torch_scatter_loops import (
    FLOATS,
    INTEGERS,
    LAYOUTS,
    REDUCTIONS,
    close,
    inf,
    nan,
    reduce_by_loop,
    values_like,
)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize(("shape", "index_shape", "dim"), LAYOUTS, ids=str)
def test_scatter_equals_a_plain_loop(shape, index_shape, dim, reduce, default_place):
    src = values_like(torch.float32, shape, default_place.device)
    index = torch.randint(0, 5, index_shape, device=default_place.device)
    received = scatter(src, index, dim, dim_size=6, reduce=reduce)
    expected, arg = reduce_by_loop(src, index, dim, 6, reduce)
    close(received, expected, torch.float32)
    assert received.is_contiguous()
    if reduce in ("min", "max"):
        function = scatter_max if reduce == "max" else scatter_min
        both = function(src, index, dim, dim_size=6)
        assert type(both) is tuple
        assert torch.equal(both[0], received)
        assert both[1].dtype == torch.int64
        assert torch.equal(both[1].cpu(), arg)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_scatter_keeps_the_dtype(dtype, reduce, default_place):
    src = values_like(dtype, (9, 2), default_place.device)
    index = torch.randint(0, 4, (9,), device=default_place.device)
    expected, _ = reduce_by_loop(src, index, 0, 4, reduce)
    close(scatter(src, index, 0, dim_size=4, reduce=reduce), expected, dtype)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_default_number_of_groups(reduce):
    src, index = torch.rand(3, 6), torch.tensor([0, 4, 0, 1, 1, 0])
    assert scatter(src, index, reduce=reduce).shape == (3, 5)
    assert torch.equal(scatter(src, index, reduce=reduce), scatter(src, index, dim_size=5, reduce=reduce))


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("bad", [3, 2**40, -2])
def test_index_out_of_range(bad, reduce):
    """The original reads and writes out of bounds."""
    index = torch.tensor([0, bad, 1])
    for src in (torch.rand(3), torch.rand(3, 4), torch.rand(2, 3, 4)):
        with pytest.raises(ValueError, match="index must be"):
            scatter(src, index, src.dim() - (2 if src.dim() > 1 else 1), dim_size=3, reduce=reduce)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_index_minus_one_is_ignored(reduce, default_place):
    src = torch.rand(3, 2, device=default_place.device, requires_grad=True)
    index = torch.tensor([1, -1, 1], device=default_place.device)
    received = scatter(src, index, 0, dim_size=2, reduce=reduce)
    torch.testing.assert_close(received, scatter(src[::2], index[::2], 0, dim_size=2, reduce=reduce))
    (grad,) = torch.autograd.grad(received.sum(), src)
    assert (grad[1] == 0).all()


def test_non_contiguous_input(default_place):
    src = torch.rand(5, 8, 6, device=default_place.device)
    index = torch.randint(0, 4, (16,), device=default_place.device)[::2]
    for view in (src.transpose(0, 2).contiguous().transpose(0, 2), src.flip(0), src[:1].expand(5, 8, 6)):
        for reduce in REDUCTIONS:
            expected = scatter(view.contiguous(), index.contiguous(), 1, dim_size=4, reduce=reduce)
            torch.testing.assert_close(scatter(view, index, 1, dim_size=4, reduce=reduce), expected)


def test_expanded_index_is_not_copied(default_place):
    """The result of `broadcast` is handled like a vector, without a copy per channel."""
    src = torch.rand(4, 9, 3, device=default_place.device)
    index = torch.randint(0, 5, (9,), device=default_place.device)
    rows = sys.modules["pointgrad.compat.torch_scatter._rows"]
    assert rows.by_index(src, broadcast(index, src, 1), 1).values.shape == (4, 9, 3)
    for reduce in REDUCTIONS:
        expected = scatter(src, index, 1, reduce=reduce)
        torch.testing.assert_close(scatter(src, broadcast(index, src, 1), 1, reduce=reduce), expected)
        torch.testing.assert_close(scatter(src, broadcast(index, src, 1).contiguous(), 1, reduce=reduce), expected)


def test_broadcast_aligns_from_the_left():
    other = torch.empty(2, 3, 4)
    assert broadcast(torch.arange(3), other, -2)[1, :, 2].tolist() == [0, 1, 2]
    assert broadcast(torch.arange(6).reshape(2, 3), other, 1)[1, :, 2].tolist() == [3, 4, 5]
    assert broadcast(torch.arange(4), other, 2)[1, 2].tolist() == [0, 1, 2, 3]


def test_mean_of_small_integers_does_not_overflow():
    """The original counts and sums in the dtype of the values."""
    src = torch.full((300,), 100, dtype=torch.uint8)
    assert scatter_mean(src, torch.zeros(300, dtype=torch.int64)).tolist() == [100]


def test_mean_of_integers_is_rounded():
    src, index = torch.tensor([-3, -4, 3, 4]), torch.tensor([0, 0, 1, 1])
    assert scatter_mean(src, index).tolist() == [-4, 3]
    assert segment_coo(src, index, reduce="mean").tolist() == [-3, 3]  # towards 0, as in the original
    assert segment_csr(src, torch.tensor([0, 2, 4]), reduce="mean").tolist() == [-3, 3]


def test_maximum_of_minus_infinity(default_place):
    """The original treats the group as empty."""
    src = torch.tensor([-inf, -inf, 1.0], device=default_place.device)
    index = torch.tensor([0, 0, 2], device=default_place.device)
    best, arg = scatter_max(src, index)
    assert best.tolist() == [-inf, 0, 1]
    assert arg.tolist() == [0, 3, 2]
    assert [x.tolist() for x in scatter_min(-src, index)] == [[inf, 0, -1], [0, 3, 2]]
    assert scatter_min(torch.tensor([255], dtype=torch.uint8), torch.tensor([0]))[0].tolist() == [255]
    lowest = torch.iinfo(torch.int64).min
    assert scatter_max(torch.tensor([lowest]), torch.tensor([0]))[0].tolist() == [lowest]


def test_nan_is_not_skipped(default_place):
    """In the original the maximum of 1 and NaN is 1, and that of NaN alone is 0."""
    src = torch.tensor([1, nan, nan, 2], device=default_place.device)
    index = torch.tensor([0, 0, 1, 2], device=default_place.device)
    for function in (scatter_max, scatter_min):
        best, arg = function(src, index)
        assert best.isnan().tolist() == [True, True, False]
        assert arg.tolist() == [1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int16], ids=str)
@pytest.mark.parametrize("index_shape", [(7,), (2, 7, 3)])
def test_out_is_updated(index_shape, dtype, default_place):
    src = values_like(dtype, (2, 7, 3), default_place.device)
    index = torch.randint(0, 5, index_shape, device=default_place.device)
    start = values_like(dtype, (2, 6, 3), default_place.device)
    total, _ = reduce_by_loop(src, index, 1, 6, "sum")
    product, _ = reduce_by_loop(src, index, 1, 6, "mul")
    count, _ = reduce_by_loop(torch.ones_like(src), index, 1, 6, "sum")
    before = start.cpu().to(total.dtype)
    rounding = None if dtype.is_floating_point else "floor"
    expected = {
        "sum": before + total,
        "add": before + total,
        "mul": before * product,
        "mean": torch.div(before + total, count.clamp(min=1), rounding_mode=rounding),
    }
    for reduce, wanted in expected.items():
        out = start.clone()
        assert scatter(src, index, 1, out, reduce=reduce) is out
        close(out, wanted, dtype)
    for reduce, function in (("min", scatter_min), ("max", scatter_max)):
        best, arg = reduce_by_loop(src, index, 1, 6, reduce)
        better = (arg < 7) & ((best > before) if reduce == "max" else (best < before))
        out = start.clone()
        received, places = function(src, index, 1, out)
        assert received is out
        close(out, torch.where(better, best, before), dtype)
        assert torch.equal(places.cpu(), torch.where(better, arg, 7))


def test_out_may_be_a_view():
    """The original's minima, maxima, products and segments write to a copy and return it."""
    for reduce in REDUCTIONS:
        base = torch.ones(3, 4)
        out = base.T
        received = scatter(torch.full((2, 3), 5.0), torch.tensor([0, 0]), 0, out, reduce=reduce)
        assert received is out
        assert (base[:, 0] == {"sum": 11, "mul": 25, "mean": 5.5, "min": 1, "max": 5}[reduce]).all()
        assert (base[:, 1:] == 1).all()
    base = torch.ones(3, 2)
    assert segment_csr(torch.full((2, 3), 5.0), torch.tensor([0, 2, 2]), base.T).tolist() == [[10] * 3, [0] * 3]
    assert base.tolist() == [[10, 0]] * 3


def test_gradients_of_out():
    src, index = torch.tensor([3.0, 1, 5], requires_grad=True), torch.tensor([0, 0, 1])
    start = torch.tensor([2.0, 7, 4], requires_grad=True)
    upstream = torch.tensor([1.0, 10, 100])
    expected = {
        "sum": ([1, 1, 10], [1, 10, 100]),
        "mean": ([0.5, 0.5, 10], [0.5, 10, 100]),
        "max": ([1, 0, 0], [0, 10, 100]),
        "min": ([0, 1, 10], [0, 0, 100]),
        "mul": ([2, 6, 70], [3, 50, 100]),
    }
    for reduce, grads in expected.items():
        received = scatter(src, index, 0, start.clone(), reduce=reduce)
        received = torch.autograd.grad(received, (src, start), upstream)
        assert [grad.tolist() for grad in received] == [list(map(float, grad)) for grad in grads]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scatter(torch.rand(3), torch.zeros(4).long()), r"index must be \(3,\) or broadcastable to src \(3,\)"),
        (lambda: scatter(torch.rand(3, 2), torch.zeros(3, 3).long()), "index must be"),
        (lambda: scatter(torch.rand(3), torch.zeros(3, 1).long()), "index must be"),
        (lambda: scatter(torch.rand(3), torch.zeros(3).long(), 1), r"dim must be in \[-1, 1\), got 1"),
        (lambda: scatter(torch.rand(3), torch.zeros(3).long(), reduce="median"), "reduce must be .*, got 'median'"),
        (lambda: scatter(torch.rand(3), torch.zeros(3).long(), dim_size=-1), "dim_size must be at least 0, got -1"),
        (
            lambda: scatter(torch.rand(3, 2), torch.zeros(3).long(), 0, torch.zeros(2, 3)),
            r"out must be like src \(3, 2\), with any size in dimension 0, got \(2, 3\)",
        ),
        (
            lambda: segment_csr(torch.rand(3, 2), torch.tensor([0, 3]), torch.zeros(2, 2)),
            r"out must be like src \(3, 2\), with size 1 in dimension 0, got \(2, 2\)",
        ),
        (lambda: segment_csr(torch.rand(3), torch.tensor([[0, 3]])), r"indptr must be \(n,\), or"),
        (lambda: segment_csr(torch.rand(3), torch.tensor([0, 3]), reduce="mul"), "reduce must be .*, got 'mul'"),
        (lambda: segment_coo(torch.rand(3), torch.zeros(3).long(), reduce="mul"), "reduce must be .*, got 'mul'"),
        (
            lambda: gather_csr(torch.rand(3), torch.tensor([0, 3])),
            r"src must be of size 1, the number of ranges, in dimension 0",
        ),
        (lambda: gather_coo(torch.rand(3), torch.tensor([0, 3])), r"index must be .* in \[0, 3\), got 3"),
        (
            lambda: scatter_softmax(torch.arange(3), torch.zeros(3).long()),
            "src must have a floating-point dtype for scatter_softmax",
        ),
    ],
)
def test_bad_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scatter([1.0], torch.zeros(1).long()), "src must be a torch.Tensor, got list"),
        (lambda: scatter(torch.rand(3), torch.zeros(3)), "index must be int64 or int32, got float32"),
        (lambda: scatter(torch.rand(3) + 0j, torch.zeros(3).long()), "src must be .*, got complex64"),
        (lambda: scatter(torch.rand(3), torch.zeros(3).long(), 0, torch.zeros(2).long()), "out must have the dtype of"),
        (lambda: segment_csr(torch.rand(3), torch.tensor([0.0, 3])), "indptr must be int64 or int32, got float32"),
        (lambda: segment_csr(torch.rand(3) + 0j, torch.tensor([0, 3])), "src must be .*, got complex64"),
    ],
)
def test_bad_types(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_signatures():
    by_index = "src, index, dim=-1, out=None, dim_size=None"
    csr, coo = "src, indptr, out=None", "src, index, out=None, dim_size=None"
    expected = {f"scatter_{name}": by_index for name in ("sum", "add", "mul", "mean", "min", "max")}
    expected |= {f"segment_{name}_csr": csr for name in ("sum", "add", "mean", "min", "max")}
    expected |= {
        f"segment_{n}_coo": "src, index, out=None, dim_size=None" for n in ("sum", "add", "mean", "min", "max")
    }
    expected |= {
        "scatter": f"{by_index}, reduce='sum'",
        "segment_csr": f"{csr}, reduce='sum'",
        "segment_coo": f"{coo}, reduce='sum'",
        "gather_csr": csr,
        "gather_coo": "src, index, out=None",
        "scatter_softmax": "src, index, dim=-1, dim_size=None",
        "scatter_log_softmax": "src, index, dim=-1, eps=1e-12, dim_size=None",
        "scatter_logsumexp": f"{by_index}, eps=1e-12",
        "scatter_std": f"{by_index}, unbiased=True",
    }
    assert set(expected) | {"__version__"} == set(torch_scatter.__all__)
    for name, arguments in expected.items():
        parameters = inspect.signature(getattr(torch_scatter, name)).parameters.values()
        assert ", ".join(str(p.replace(annotation=p.empty)) for p in parameters) == arguments


def test_docstring_examples():
    import doctest

    for name in ("scatter", "segment_csr", "segment_coo", "utils", "composite.softmax", "composite.logsumexp"):
        module = importlib.import_module(f"pointgrad.compat.torch_scatter.{name}")
        result = doctest.testmod(module, extraglobs={"torch": torch})
        assert result.failed == 0
        assert result.attempted > 0


@pytest.fixture(scope="module")
def original():
    return pytest.importorskip("torch_scatter", exc_type=ImportError)


def test_names_and_signatures_match_the_original(original):
    names = set(original.__all__) - {"torch_scatter"}  # listed, but missing in the original
    assert names == set(torch_scatter.__all__)
    for name in names - {"__version__"}:
        ours = inspect.signature(getattr(torch_scatter, name)).parameters
        theirs = inspect.signature(getattr(original, name)).parameters
        assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in theirs.values()]
    for module in ("scatter", "segment_csr", "segment_coo", "utils", "composite", "composite.softmax"):
        theirs = importlib.import_module(f"torch_scatter.{module}")
        ours = importlib.import_module(f"pointgrad.compat.torch_scatter.{module}")
        public = {key for key, value in vars(theirs).items() if inspect.isfunction(value)}
        assert public <= set(vars(ours)) | {"scatter_sum", "scatter_max", "broadcast"}


@pytest.mark.parametrize("with_out", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize(("shape", "index_shape", "dim"), LAYOUTS, ids=str)
def test_scatter_matches_the_original(shape, index_shape, dim, dtype, with_out, original):
    src, index = values_like(dtype, shape), torch.randint(0, 5, index_shape)
    size = list(shape)
    size[dim] = 6
    start = values_like(dtype, size)
    for reduce in REDUCTIONS:
        name = f"scatter_{reduce}"
        arguments = [{"out": start.clone()} if with_out else {"dim_size": 6} for _ in range(2)]
        expected = getattr(original, name)(src, index, dim, **arguments[0])
        received = getattr(torch_scatter, name)(src, index, dim, **arguments[1])
        torch.testing.assert_close(received, expected)
    if dtype.is_floating_point and not with_out:
        for name in ("scatter_softmax", "scatter_log_softmax", "scatter_logsumexp", "scatter_std"):
            for function in ({}, {"dim_size": 6}):
                expected = getattr(original, name)(src, index, dim, **function)
                torch.testing.assert_close(getattr(torch_scatter, name)(src, index, dim, **function), expected)
    if dtype == torch.float64:
        src.requires_grad_()
        for reduce in REDUCTIONS:
            results = [p.scatter(src + 0.01, index, dim, reduce=reduce) for p in (original, torch_scatter)]
            upstream = torch.randn_like(results[0])
            torch.testing.assert_close(*(torch.autograd.grad(result, src, upstream) for result in results))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64], ids=str)
def test_segments_match_the_original(dtype, original):
    src = values_like(dtype, (2, 7, 3))
    indptr = torch.tensor([[0, 3, 3, 7], [1, 2, 4, 6]])
    index = torch.tensor([[0, 0, 1, 1, 1, 3, 3], [0, 1, 2, 2, 2, 2, 4]])
    for reduce in ("sum", "mean", "min", "max"):
        for pointers in (indptr, indptr[:1]):
            expected = getattr(original, f"segment_{reduce}_csr")(src, pointers)
            torch.testing.assert_close(getattr(torch_scatter, f"segment_{reduce}_csr")(src, pointers), expected)
        expected = getattr(original, f"segment_{reduce}_coo")(src, index)
        torch.testing.assert_close(getattr(torch_scatter, f"segment_{reduce}_coo")(src, index), expected)
    assert torch.equal(gather_coo(src, index.clamp(max=6)), original.gather_coo(src, index.clamp(max=6)))
    pointers = torch.tensor([[0, 3, 3, 7], [0, 2, 4, 7]])
    assert torch.equal(gather_csr(src[:, :3], pointers), original.gather_csr(src[:, :3], pointers))


def test_parameters_of_tests_and_placeholders():
    testing = importlib.import_module("pointgrad.compat.torch_scatter.testing")
    assert testing.devices[0] == torch.device("cpu")
    assert testing.tensor(None, torch.float, testing.devices[0]) is None
    for dtype in {*testing.dtypes, *testing.grad_dtypes}:
        assert testing.tensor([1, 2], dtype, testing.devices[0]).dtype == dtype
    for reduce in testing.reductions:
        scatter(torch.rand(2), torch.tensor([0, 1]), reduce=reduce)
    with pytest.raises(AttributeError, match="has no attribute missing"):
        testing.missing  # noqa: B018
    placeholder = importlib.import_module("pointgrad.compat.torch_scatter.placeholder")
    assert placeholder.cuda_version_placeholder() == -1
    for name in ("scatter", "scatter_arg", "segment_csr", "segment_csr_arg", "gather_csr", "segment_coo_arg"):
        with pytest.raises(ImportError, match="use the functions of torch_scatter"):
            getattr(placeholder, f"{name}_placeholder")(torch.rand(2), torch.tensor([0, 1]), None)


def test_dim_size_as_tensor():
    """As in `dim_size=index.max() + 1`."""
    src, index = torch.rand(4, 3), torch.tensor([0, 1, 1, 0])
    for reduce in REDUCTIONS:
        received = scatter(src, index, 0, dim_size=index.max() + 1, reduce=reduce)
        assert torch.equal(received, scatter(src, index, 0, dim_size=2, reduce=reduce))


def test_values_of_tensor_subclasses_are_checked():
    """PyG passes its own subclass of Tensor as an index."""

    class Index(torch.Tensor):
        pass

    index = torch.tensor([0, 5, 1]).as_subclass(Index)
    with pytest.raises(ValueError, match=r"^index must be -1 or in \[0, 2\), got 5$"):
        torch_scatter.scatter_mul(torch.rand(3), index, 0, dim_size=2)

"""pointgrad.functional compared with torch: results, derivatives, special values and dtypes."""

import doctest
import inspect
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import pointgrad.functional as P

INF = float("inf")
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def floats(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def running(channels, like):
    return torch.linspace(-1, 1, channels).to(like), torch.linspace(0.5, 2, channels).to(like)


# Calls that work with both pointgrad.functional and torch, and the shapes of their differentiable inputs.
CALLS = {
    "softmax": (lambda f, x: f.softmax(x, 1), [(3, 5)]),
    "softmax-first": (lambda f, x: f.softmax(x, 0), [(3, 5, 2)]),
    "softmax-scalar": (lambda f, x: f.softmax(x, 0), [()]),
    "softmax-empty": (lambda f, x: f.softmax(x, 1), [(3, 0)]),
    "softmax-dtype": (lambda f, x: f.softmax(x, -1, dtype=torch.float64), [(3, 5)]),
    "log_softmax": (lambda f, x: f.log_softmax(x, -1), [(2, 3, 4)]),
    "log_softmax-first": (lambda f, x: f.log_softmax(x, 0), [(4, 3)]),
    "log_softmax-scalar": (lambda f, x: f.log_softmax(x, -1), [()]),
    "log_softmax-empty": (lambda f, x: f.log_softmax(x, 0), [(0, 3)]),
    "log": (lambda f, x: f.log(x.abs() + 0.5), [(3, 4)]),
    "relu": (lambda f, x: f.relu(x), [(3, 4)]),
    "relu-inplace": (lambda f, x: f.relu(x * 1.5, inplace=True), [(3, 4)]),
    "mean": (lambda f, x: f.mean(x), [(3, 4)]),
    "mean-scalar": (lambda f, x: f.mean(x, 0), [()]),
    "mean-dims": (lambda f, x: f.mean(x, (0, -1)), [(3, 4, 2)]),
    "mean-keepdim": (lambda f, x: f.mean(x, 1, True), [(3, 4, 2)]),
    "mean-all-kept": (lambda f, x: f.mean(x, (), keepdim=True), [(3, 4)]),
    "mean-dtype": (lambda f, x: f.mean(x, [1], dtype=torch.float64), [(3, 4)]),
    "cat": (lambda f, x, y: f.cat([x, y]), [(2, 3), (4, 3)]),
    "cat-last": (lambda f, x, y, z: f.cat((x, y, z), -1), [(2, 3), (2, 0), (2, 1)]),
    "cat-nothing": (lambda f, x, y: f.cat([x, y], 1), [(0,), (2, 3)]),
    "cosine": (lambda f, x, y: f.cosine_similarity(x, y), [(3, 5), (3, 5)]),
    "cosine-broadcast": (lambda f, x, y: f.cosine_similarity(x, y, dim=-1), [(4, 1, 3), (2, 3)]),
    "cosine-broadcast-dim": (lambda f, x, y: f.cosine_similarity(x, y, dim=0), [(1, 3), (2, 4, 3)]),
    "cosine-scalar": (lambda f, x, y: f.cosine_similarity(x, y, dim=0), [(), ()]),
    "cosine-nothing": (lambda f, x, y: f.cosine_similarity(x, y), [(3, 0), (3, 0)]),
    "cosine-eps": (lambda f, x, y: f.cosine_similarity(x, y, 1, 1e-3), [(3, 5), (1, 5)]),
    "linear": (lambda f, x, a, b: f.linear(x, a, b), [(3, 4), (2, 4), (2,)]),
    "linear-vector": (lambda f, x, a, b: f.linear(x, a, b), [(4,), (2, 4), (2,)]),
    "linear-batched": (lambda f, x, a: f.linear(x, a), [(2, 3, 5, 4), (2, 4)]),
    "linear-one-output": (lambda f, x, a: f.linear(x, a), [(2, 3, 4), (4,)]),
    "linear-broadcast-bias": (lambda f, x, a, b: f.linear(x, a, b), [(3, 4), (2, 4), (1,)]),
    "linear-empty": (lambda f, x, a, b: f.linear(x, a, b), [(0, 4), (2, 4), (2,)]),
    "linear-no-inputs": (lambda f, x, a, b: f.linear(x, a, b), [(3, 0), (2, 0), (2,)]),
    "group": (lambda f, x, w, b: f.group_norm(x, 2, w, b), [(3, 4, 5), (4,), (4,)]),
    "group-rows": (lambda f, x: f.group_norm(x, 2, eps=0.1), [(3, 6)]),
    "group-all": (lambda f, x, w: f.group_norm(x, 1, w), [(1, 4, 2, 3), (4,)]),
    "group-empty": (lambda f, x, w, b: f.group_norm(x, 2, w, b), [(0, 4, 3), (4,), (4,)]),
    "layer": (lambda f, x, w, b: f.layer_norm(x, (5,), w, b), [(2, 3, 5), (5,), (5,)]),
    "layer-dims": (lambda f, x, w: f.layer_norm(x, (3, 4), w), [(2, 3, 4), (3, 4)]),
    "layer-all": (lambda f, x: f.layer_norm(x, [6]), [(6,)]),
    "batch": (lambda f, x, w, b: f.batch_norm(x, None, None, w, b, True), [(6, 4), (4,), (4,)]),
    "batch-positions": (lambda f, x, b: f.batch_norm(x, None, None, None, b, True, eps=0.1), [(2, 3, 4, 2), (3,)]),
    "batch-one-channel": (lambda f, x: f.batch_norm(x, None, None, training=True), [(5, 1)]),
    "batch-evaluation": (lambda f, x, w, b: f.batch_norm(x, *running(3, x), w, b), [(4, 3, 2), (3,), (3,)]),
    "nll": (lambda f, x: f.nll_loss(x, torch.tensor([1, 0, 3])), [(3, 4)]),
    "cross_entropy": (lambda f, x: f.cross_entropy(x, torch.tensor([1, 0, 3])), [(3, 4)]),
}  # fmt: skip
every_call = pytest.mark.parametrize(("call", "shapes"), CALLS.values(), ids=CALLS)


class Torch:
    """torch.nn.functional, or torch for functions that it does not have."""

    def __getattr__(self, name):
        return getattr(F, name, None) or getattr(torch, name)


THEIRS = Torch()


def results(call, functions, inputs):
    """The result and the gradients of all inputs for a fixed upstream gradient."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    output = call(functions, *inputs)
    upstream = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).reshape(output.shape).to(output.dtype)
    return output, *torch.autograd.grad(output, inputs, upstream)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@every_call
def test_agrees_with_torch(call, shapes, dtype):
    inputs = [floats(*shape, dtype=dtype) for shape in shapes]
    actual, desired = results(call, P, inputs), results(call, THEIRS, inputs)
    for received, expected in zip(actual, desired, strict=True):
        assert received.dtype == expected.dtype
        assert received.shape == expected.shape
    if dtype in (torch.float64, torch.float32):
        torch.testing.assert_close(actual, desired)
        return
    # In 16 bits, the error is at most that of torch plus one rounding error of the result.
    truth = results(call, THEIRS, [x.double() for x in inputs])
    for received, expected, exact in zip(actual, desired, truth, strict=True):
        if exact.numel():
            rounding = torch.finfo(dtype).eps * exact.abs().max()
            assert (received - exact).abs().max() <= (expected - exact).abs().max() + rounding


@every_call
def test_first_and_second_derivatives(call, shapes):
    inputs = [floats(*shape).requires_grad_() for shape in shapes]
    if not call(P, *inputs).numel() or not any(x.numel() for x in inputs):
        return  # nothing to differentiate; test_agrees_with_torch compares the shapes of gradients
    assert gradcheck(lambda *x: call(P, *x), inputs)
    assert gradgradcheck(lambda *x: call(P, *x), inputs)


@every_call
def test_compile(call, shapes):
    inputs = [floats(*shape, dtype=torch.float32) for shape in shapes]
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: call(P, *x), fullgraph=True, backend="aot_eager")
    received = results(lambda _, *x: compiled(*x), P, inputs)
    torch.testing.assert_close(received, results(call, P, inputs))


SIZED = {
    "softmax": lambda n: P.softmax(torch.rand(n, 3), 1),
    "mean": lambda n: P.mean(torch.rand(n, 3), 0),
    "cat": lambda n: P.cat([torch.rand(n, 3), torch.rand(2, 3)]),
    "linear": lambda n: P.linear(torch.rand(n, 3), torch.rand(2, 3)),
    "cosine": lambda n: P.cosine_similarity(torch.rand(n, 3), torch.rand(1, 3)),
    "cross_entropy": lambda n: P.cross_entropy(torch.rand(n, 3), torch.zeros(n, dtype=torch.int64)),
    "probabilities": lambda n: P.cross_entropy(torch.rand(n, 3), torch.rand(n, 3), label_smoothing=0.1),
    "group": lambda n: P.group_norm(torch.rand(n, 4, n + 1), 2, torch.rand(4)),
    "layer": lambda n: P.layer_norm(torch.rand(n, 4), (4,)),
    "batch": lambda n: P.batch_norm(torch.rand(n, 4), torch.zeros(4), torch.ones(4), training=True),
    "nll": lambda n: P.nll_loss(torch.rand(n, 3), torch.zeros(n, dtype=torch.int64)),
}


@pytest.mark.parametrize("call", SIZED.values(), ids=SIZED)
def test_dynamic_shapes_do_not_recompile(call):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: call(x.shape[0]), fullgraph=True, dynamic=True, backend="aot_eager")
    compiled(torch.rand(6))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for size in (7, 11, 30):
            compiled(torch.rand(size))


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "log", "relu", "mean-dims", "cat-last", "cosine-broadcast",
                                  "linear", "linear-batched", "group", "layer-dims", "batch",
                                  "batch-evaluation"])  # fmt: skip
def test_export_and_per_sample_gradients(name):
    call, shapes = CALLS[name]
    inputs = tuple(floats(*shape) for shape in shapes)

    class Module(torch.nn.Module):
        def forward(self, *x):
            return call(P, *x)

    torch.testing.assert_close(torch.export.export(Module(), inputs).module()(*inputs), call(THEIRS, *inputs))
    batch = tuple(floats(6, *shape) for shape in shapes)

    def per_sample(functions):
        argnums = tuple(range(len(batch)))
        return torch.func.vmap(torch.func.grad(lambda *x: call(functions, *x).pow(2).sum(), argnums))(*batch)

    torch.testing.assert_close(per_sample(P), per_sample(THEIRS))


def test_signatures():
    for name in (
        "softmax",
        "log_softmax",
        "nll_loss",
        "cross_entropy",
        "relu",
        "group_norm",
        "layer_norm",
        "batch_norm",
    ):
        actual, desired = (inspect.signature(getattr(f, name)).parameters.values() for f in (P, F))
        assert [(p.name, p.default, p.kind) for p in actual] == [(p.name, p.default, p.kind) for p in desired], name
    # The signatures of torch's builtins are only in their documentation.
    for name, desired in (
        ("linear", "(input, weight, bias=None)"),
        ("cosine_similarity", "(x1, x2, dim=1, eps=1e-08)"),
        ("mean", "(input, dim=None, keepdim=False, *, dtype=None)"),
        ("cat", "(tensors, dim=0)"),
        ("log", "(input)"),
    ):
        bare = inspect.signature(getattr(P, name))
        parameters = [p.replace(annotation=inspect.Parameter.empty) for p in bare.parameters.values()]
        assert str(bare.replace(parameters=parameters, return_annotation=inspect.Signature.empty)) == desired


def test_documented_examples_run():
    names = {"torch": torch, **vars(P)}
    ran = 0
    functions = [value for value in vars(P).values() if inspect.isfunction(value)]
    for value in functions:
        for example in doctest.DocTestFinder(recurse=False).find(value, value.__name__, globs=names):
            result = doctest.DocTestRunner().run(example)
            assert result.failed == 0
            ran += result.attempted > 0
    assert ran == len(functions)


# Special values

ROWS = st.lists(st.sampled_from([0.0, 1.0, -2.5, 1e20, -1e20, 88.8, -104.0, 3e38, -INF]), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ROWS, st.sampled_from([torch.float64, torch.float32]))
def test_softmax_is_defined_for_minus_infinity(row, dtype):
    x = torch.tensor(row, dtype=dtype, requires_grad=True)
    nothing = all(value == -INF for value in row)
    for name in ("softmax", "log_softmax"):
        y = getattr(P, name)(x, 0)
        expected = torch.full_like(x, 0 if name == "softmax" else -INF) if nothing else getattr(F, name)(x, 0)
        torch.testing.assert_close(y, expected, rtol=0, atol=0)
        (grad,) = torch.autograd.grad(y, x, torch.linspace(1, 2, len(row), dtype=dtype))
        assert grad.isfinite().all()
        if nothing:
            assert (grad == 0).all()


@pytest.mark.parametrize("bad", [INF, float("nan")])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_infinity_and_nan_agree_with_torch(name, bad):
    x = torch.tensor([[1.0, bad, 2.0], [0.0, 1.0, 2.0]])
    torch.testing.assert_close(getattr(P, name)(x, 1), getattr(F, name)(x, 1), equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rows_of_minus_infinity(dtype):
    x = torch.tensor([[-INF, -INF], [-INF, 1.0]], dtype=dtype, requires_grad=True)
    assert P.softmax(x, 1).tolist() == [[0, 0], [0, 1]]
    assert P.log_softmax(x, 1).tolist() == [[-INF, -INF], [-INF, 0]]
    for y in (P.softmax(x, 1), P.log_softmax(x, 1)):
        (first,) = torch.autograd.grad(y, x, torch.tensor([[1, 2], [3, 4]], dtype=dtype), create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        assert first[0].tolist() == second[0].tolist() == [0, 0]
        assert second.isfinite().all()


def test_gradient_of_zero_vectors():
    """Below eps, the length is a constant."""
    x = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[1.0, 2.0, 2.0]], dtype=torch.float64)
    result = P.cosine_similarity(x, y, eps=1e-3)
    assert result.item() == 0
    (grad,) = torch.autograd.grad(result, x)
    torch.testing.assert_close(grad, y / 3 / 1e-3)
    short = (1e-4 * y).requires_grad_()
    assert gradcheck(lambda a, b: P.cosine_similarity(a, b, eps=1e-3), (short, floats(1, 3).requires_grad_()), eps=1e-7)
    both = torch.zeros(1, 3, requires_grad=True)
    (grad,) = torch.autograd.grad(P.cosine_similarity(both, both), both)
    assert grad.tolist() == [[0, 0, 0]]


def test_half_precision_lengths_do_not_overflow():
    x = torch.full((1, 4), 6e4, dtype=torch.float16)
    assert P.cosine_similarity(x, x).item() == 1  # torch: 0


def test_special_values_of_log_and_relu():
    x = torch.tensor([0.0, -1.0, 2.0, float("nan"), INF], requires_grad=True)
    for ours, theirs in ((P.log, torch.log), (P.relu, F.relu)):
        torch.testing.assert_close(ours(x), theirs(x), equal_nan=True)
        grads = [torch.autograd.grad(f(x).sum(), x)[0] for f in (ours, theirs)]
        torch.testing.assert_close(*grads, equal_nan=True)


def test_mean_of_no_elements():
    x = torch.zeros(0, 2, requires_grad=True)
    assert P.mean(x, 0).isnan().all()
    assert torch.autograd.grad(P.mean(x), x)[0].shape == (0, 2)
    assert P.mean(x, 1).shape == (0,)


# Dtypes


def test_integers_agree_with_torch():
    whole = torch.tensor([1, 2, 3])
    torch.testing.assert_close(P.log(whole), torch.log(whole))
    torch.testing.assert_close(P.log(whole > 1), torch.log(whole > 1))
    torch.testing.assert_close(P.relu(whole - 2), F.relu(whole - 2))
    torch.testing.assert_close(P.relu(whole - 2, inplace=True), F.relu(whole - 2))
    torch.testing.assert_close(P.mean(whole, dtype=torch.float64), torch.mean(whole, dtype=torch.float64))
    torch.testing.assert_close(P.softmax(whole, 0, dtype=torch.float32), F.softmax(whole, 0, dtype=torch.float32))
    torch.testing.assert_close(P.cat([whole, whole.float()]), torch.cat([whole, whole.float()]))


@pytest.mark.parametrize("name", ["log", "mean-dims", "cat", "linear", "linear-batched"])
def test_complex(name):
    call, shapes = CALLS[name]
    if name == "log":
        call = lambda f, x: f.log(x)  # noqa: E731
    inputs = [torch.randn(*shape, dtype=torch.complex128, requires_grad=True) for shape in shapes]
    torch.testing.assert_close(call(P, *inputs), call(THEIRS, *inputs))
    assert gradcheck(lambda *x: call(P, *x), inputs)
    assert gradgradcheck(lambda *x: call(P, *x), inputs)


def test_gradients_have_the_dtype_of_their_tensor():
    wide, narrow, half = (floats(2, 3, dtype=d).requires_grad_() for d in (torch.float64, torch.float32, torch.float16))
    joined = P.cat([wide, narrow, half])
    assert joined.dtype == torch.float64
    for source, grad in zip((wide, narrow, half), torch.autograd.grad(joined.sum(), (wide, narrow, half)), strict=True):
        assert grad.dtype == source.dtype
        assert grad.tolist() == [[1, 1, 1], [1, 1, 1]]
    similarity = P.cosine_similarity(wide, half)
    assert similarity.dtype == torch.float64
    assert [g.dtype for g in torch.autograd.grad(similarity.sum(), (wide, half))] == [torch.float64, torch.float16]


@pytest.mark.parametrize("name", [*CALLS])
def test_autocast_agrees_with_torch(name):
    call, shapes = CALLS[name]
    for dtype in (torch.float32, torch.bfloat16):
        inputs = [floats(*shape, dtype=dtype) for shape in shapes]
        with torch.autocast("cpu", torch.bfloat16):
            actual, desired = results(call, P, inputs), results(call, THEIRS, inputs)
        assert [x.dtype for x in actual] == [x.dtype for x in desired]
        torch.testing.assert_close(actual, desired, rtol=2e-2, atol=2e-2)


def test_non_contiguous_and_expanded():
    for name, (call, shapes) in CALLS.items():
        plain = [floats(*shape) for shape in shapes]
        inputs = [x.mT.contiguous().mT if x.dim() > 1 else x for x in plain]
        torch.testing.assert_close(results(call, P, inputs), results(call, THEIRS, plain), msg=name)
        spread = [x[:1].expand_as(x) if x.dim() > 1 and x.shape[0] else x for x in plain]
        torch.testing.assert_close(call(P, *spread), call(THEIRS, *spread), msg=name)


def test_deprecated_arguments_warn_as_in_torch():
    y, target = floats(2, 3), torch.tensor([0, 2])
    with pytest.warns(UserWarning, match="Implicit dimension choice for softmax has been deprecated"):
        torch.testing.assert_close(P.softmax(y), F.softmax(y, 1))
    for kwargs in ({"size_average": False}, {"reduce": False}, {"size_average": True}, {"reduce": True}):
        for name in ("nll_loss", "cross_entropy"):
            with pytest.warns(UserWarning, match="size_average and reduce are deprecated"):
                actual = getattr(P, name)(y, target, **kwargs)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.testing.assert_close(actual, getattr(F, name)(y, target, **kwargs))

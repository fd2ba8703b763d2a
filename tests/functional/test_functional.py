"""pointgrad.functional against torch.nn.functional and torch: results, derivatives, nasty values, in-place rules."""

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


# Calls of one signature: ours and torch's, and the shapes of what is differentiated.
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
    "nll": (lambda f, x: f.nll_loss(x, torch.tensor([1, 0, 3])), [(3, 4)]),
    "cross_entropy": (lambda f, x: f.cross_entropy(x, torch.tensor([1, 0, 3])), [(3, 4)]),
}  # fmt: skip
every_call = pytest.mark.parametrize(("call", "shapes"), CALLS.values(), ids=CALLS)


class Torch:
    """torch.nn.functional, and torch where it has no such function."""

    def __getattr__(self, name):
        return getattr(F, name, None) or getattr(torch, name)


THEIRS = Torch()


def results(call, functions, inputs):
    """The result and the gradients of all inputs under a fixed random upstream gradient."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    output = call(functions, *inputs)
    upstream = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).reshape(output.shape).to(output.dtype)
    return output, *torch.autograd.grad(output, inputs, upstream)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@every_call
def test_as_torch(call, shapes, dtype):
    inputs = [floats(*shape, dtype=dtype) for shape in shapes]
    mine, theirs = results(call, P, inputs), results(call, THEIRS, inputs)
    for received, expected in zip(mine, theirs, strict=True):
        assert received.dtype == expected.dtype
        assert received.shape == expected.shape
    if dtype in (torch.float64, torch.float32):
        torch.testing.assert_close(mine, theirs)
        return
    # In 16 bits: no worse than torch's own error by more than one rounding of the result.
    truth = results(call, THEIRS, [x.double() for x in inputs])
    for received, expected, exact in zip(mine, theirs, truth, strict=True):
        if exact.numel():
            rounding = torch.finfo(dtype).eps * exact.abs().max()
            assert (received - exact).abs().max() <= (expected - exact).abs().max() + rounding


@every_call
def test_both_derivatives(call, shapes):
    inputs = [floats(*shape).requires_grad_() for shape in shapes]
    if not call(P, *inputs).numel() or not any(x.numel() for x in inputs):
        return  # nothing to differentiate; the shapes of the gradients are compared above
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
    "nll": lambda n: P.nll_loss(torch.rand(n, 3), torch.zeros(n, dtype=torch.int64)),
}


@pytest.mark.parametrize("call", SIZED.values(), ids=SIZED)
def test_compiled_once_for_all_sizes(call):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: call(x.shape[0]), fullgraph=True, dynamic=True, backend="aot_eager")
    compiled(torch.rand(6))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for size in (7, 11, 30):
            compiled(torch.rand(size))


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "log", "relu", "mean-dims", "cat-last", "cosine-broadcast",
                                  "linear", "linear-batched"])  # fmt: skip
def test_export_and_transforms(name):
    """torch.export, and per-sample gradients by torch.func."""
    call, shapes = CALLS[name]
    inputs = tuple(floats(*shape) for shape in shapes)

    class Module(torch.nn.Module):
        def forward(self, *x):
            return call(P, *x)

    torch.testing.assert_close(torch.export.export(Module(), inputs).module()(*inputs), call(THEIRS, *inputs))
    batch = tuple(floats(6, *shape) for shape in shapes)

    def per_sample(functions):
        places = tuple(range(len(batch)))
        return torch.func.vmap(torch.func.grad(lambda *x: call(functions, *x).pow(2).sum(), places))(*batch)

    torch.testing.assert_close(per_sample(P), per_sample(THEIRS))


def test_signatures():
    for name in ("softmax", "log_softmax", "nll_loss", "cross_entropy", "relu"):
        mine, theirs = (inspect.signature(getattr(f, name)).parameters.values() for f in (P, F))
        assert [(p.name, p.default, p.kind) for p in mine] == [(p.name, p.default, p.kind) for p in theirs], name
    # torch's builtins say theirs in their documentation only.
    for name, theirs in (
        ("linear", "(input, weight, bias=None)"),
        ("cosine_similarity", "(x1, x2, dim=1, eps=1e-08)"),
        ("mean", "(input, dim=None, keepdim=False, *, dtype=None)"),
        ("cat", "(tensors, dim=0)"),
        ("log", "(input)"),
    ):
        bare = inspect.signature(getattr(P, name))
        parameters = [p.replace(annotation=inspect.Parameter.empty) for p in bare.parameters.values()]
        assert str(bare.replace(parameters=parameters, return_annotation=inspect.Signature.empty)) == theirs


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


# Nasty values.

ROWS = st.lists(st.sampled_from([0.0, 1.0, -2.5, 1e20, -1e20, 88.8, -104.0, 3e38, -INF]), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ROWS, st.sampled_from([torch.float64, torch.float32]))
def test_softmax_is_defined_for_all_but_infinity(row, dtype):
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
def test_infinity_and_nan_as_torch(name, bad):
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


def test_zero_vectors_have_a_gradient():
    """The derivative of what is computed: below eps the length is a constant."""
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


def test_edges_of_log_and_relu():
    x = torch.tensor([0.0, -1.0, 2.0, float("nan"), INF], requires_grad=True)
    for mine, theirs in ((P.log, torch.log), (P.relu, F.relu)):
        torch.testing.assert_close(mine(x), theirs(x), equal_nan=True)
        grads = [torch.autograd.grad(f(x).sum(), x)[0] for f in (mine, theirs)]
        torch.testing.assert_close(*grads, equal_nan=True)


def test_mean_of_nothing():
    x = torch.zeros(0, 2, requires_grad=True)
    assert P.mean(x, 0).isnan().all()
    assert torch.autograd.grad(P.mean(x), x)[0].shape == (0, 2)
    assert P.mean(x, 1).shape == (0,)


# Types.


def test_integers_as_torch():
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


def test_gradients_in_each_tensor_s_own_dtype():
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
def test_autocast_as_torch(name):
    call, shapes = CALLS[name]
    for dtype in (torch.float32, torch.bfloat16):
        inputs = [floats(*shape, dtype=dtype) for shape in shapes]
        with torch.autocast("cpu", torch.bfloat16):
            mine, theirs = results(call, P, inputs), results(call, THEIRS, inputs)
        assert [x.dtype for x in mine] == [x.dtype for x in theirs]
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


def test_non_contiguous_and_expanded():
    for name, (call, shapes) in CALLS.items():
        plain = [floats(*shape) for shape in shapes]
        inputs = [x.mT.contiguous().mT if x.dim() > 1 else x for x in plain]
        torch.testing.assert_close(results(call, P, inputs), results(call, THEIRS, plain), msg=name)
        spread = [x[:1].expand_as(x) if x.dim() > 1 and x.shape[0] else x for x in plain]
        torch.testing.assert_close(call(P, *spread), call(THEIRS, *spread), msg=name)


# What is kept, and what may be overwritten.


def saved_bytes(call) -> int:
    """The bytes kept for backward, inputs included."""
    kept = {}

    def pack(tensor):
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    return sum(kept.values())


def test_what_is_saved():
    x, a = floats(30, 20, dtype=torch.float32).requires_grad_(), floats(10, 20, dtype=torch.float32)
    full = 30 * 20 * 4
    assert saved_bytes(lambda: P.softmax(x, 1)) == full
    assert saved_bytes(lambda: P.relu(x)) == full
    assert saved_bytes(lambda: P.log(x)) == full
    assert saved_bytes(lambda: P.mean(x)) == 0
    assert saved_bytes(lambda: P.cat([x, x])) == 0
    assert saved_bytes(lambda: P.linear(x, a)) == 10 * 20 * 4  # the weight, for the input's gradient
    assert saved_bytes(lambda: P.linear(x.detach(), a.requires_grad_())) == full
    assert saved_bytes(lambda: P.nll_loss(x, torch.zeros(30, dtype=torch.int64), reduction="sum")) == 30 * 8


def test_inplace_returns_its_argument():
    x = floats(3, 4)
    assert P.relu(x, inplace=True) is x
    assert (x >= 0).all()
    view = (y := floats(3, 4).requires_grad_() * 1)[:, :2]
    P.relu(view, inplace=True)
    expected = torch.cat([F.relu(y.detach()[:, :2]), y.detach()[:, 2:]], 1)
    torch.testing.assert_close(y.detach(), expected)


def test_inplace_through_views():
    source = floats(3, 4).requires_grad_()

    def half(relu):
        y = source * 2
        relu(y[:, 1:3], inplace=True)
        return torch.autograd.grad(y.pow(2).sum(), source)[0]

    torch.testing.assert_close(half(P.relu), half(F.relu))


@pytest.mark.parametrize("view", [False, True])
def test_inplace_refuses_leaves_before_it_writes(view):
    leaf = floats(4).requires_grad_()
    before = leaf.detach().clone()
    for relu in (P.relu, F.relu):
        with pytest.raises(RuntimeError, match=r"leaf Variable that requires grad is being used in an in-place op"):
            relu(leaf[1:] if view else leaf, inplace=True)
    assert torch.equal(leaf.detach(), before)
    with torch.no_grad():
        assert P.relu(leaf, inplace=True).min() >= 0


@pytest.mark.parametrize(
    ("saves", "raises"),
    [
        (lambda x: P.softmax(x, 0), True),  # its output
        (lambda x: P.log_softmax(x, 0), True),
        (lambda x: P.relu(x), True),  # its output: relu would leave it as it is, but a counter cannot know that
        (lambda x: P.mean(x, 1), False),
        (lambda x: P.cat([x, x]), False),
        (lambda x: P.linear(x, torch.ones(2, 4, dtype=x.dtype)), False),  # the weight, not the output
        (lambda x: P.log(x.abs()), False),  # its input
    ],
)
def test_overwriting_an_output(saves, raises):
    x = floats(3, 4).requires_grad_()
    y = saves(x * 1)
    P.relu(y, inplace=True)
    if raises:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(y.sum(), x)
    else:
        torch.autograd.grad(y.sum(), x)


@pytest.mark.parametrize(
    ("uses", "raises"),
    [
        (lambda x: P.log(x), True),
        (lambda x: P.cosine_similarity(x, x), True),
        (lambda x: P.linear(x, torch.ones(2, 4, dtype=x.dtype, requires_grad=True)), True),
        (lambda x: P.cross_entropy(x, torch.tensor([0, 1, 2])), True),
        (lambda x: P.softmax(x, 1), False),
        (lambda x: P.nll_loss(x, torch.tensor([0, 1, 2])), False),
        (lambda x: P.mean(x), False),
        (lambda x: P.cat([x, x]), False),
    ],
)
def test_overwriting_an_input(uses, raises):
    """As in PyTorch, which keeps the same of all but cross_entropy: there it keeps the softmax."""
    x = floats(3, 4).requires_grad_()
    y = x * 1
    result = uses(y)
    y.add_(1)
    if raises:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(result.sum(), x)
    else:
        torch.autograd.grad(result.sum(), x)


# Errors: name, contract, received.

x = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: P.softmax([1.0], 0), TypeError, "input must be a torch.Tensor, got list"),
        (lambda: P.softmax(x.long(), 0), TypeError, "input must be float32, float64, float16 or bfloat16, got int64"),
        (lambda: P.softmax(x, 2), ValueError, "dim must be in [-2, 2), got 2"),
        (lambda: P.log_softmax(x, 0.5), TypeError, "dim must be an int, got float 0.5"),
        (lambda: P.log(3.0), TypeError, "input must be a torch.Tensor, got float 3.0"),
        (lambda: P.relu(x > 0), TypeError, "input must be float32, float64, float16, bfloat16, int64, int32, int16, int8 or uint8, got bool"),  # noqa: E501
        (lambda: P.mean(x.long()), TypeError, "input must be float32, float64, float16, bfloat16, complex64 or complex128, got int64"),  # noqa: E501
        (lambda: P.mean(x, dtype=torch.int64), ValueError, "dtype must be floating or complex, got torch.int64"),
        (lambda: P.mean(x, 2), ValueError, "dim must be in [-2, 2), got 2"),
        (lambda: P.mean(x, (0, -2)), ValueError, "dim must be distinct dimensions, got (0, -2)"),
        (lambda: P.cat([]), TypeError, "tensors must be a non-empty sequence of tensors, got list"),
        (lambda: P.cat([x, 1]), TypeError, "tensors[1] must be a torch.Tensor, got int 1"),
        (lambda: P.cat([x[0, 0]]), ValueError, "tensors must have at least one dimension, got ()"),
        (lambda: P.cat([x, x[:1]], 1), ValueError, "tensors[1] must be (2, 3) except in dimension 1, got (1, 3)"),
        (lambda: P.cat([x], 2), ValueError, "dim must be in [-2, 2), got 2"),
        (lambda: P.linear(x, x[:, :2]), ValueError, "weight must be (O, 3) or (3,) with this input, got (2, 2)"),
        (lambda: P.linear(x, x.double()), TypeError, "weight must have the dtype of input, float32, got float64"),
        (lambda: P.linear(x, x[0], x[0]), ValueError, "bias must be None with a weight (I,), got a tensor"),
        (lambda: P.linear(x[0, 0], x), ValueError, "input must be (..., I), got ()"),
        (lambda: P.cosine_similarity(x, x[:, :2]), ValueError, "x2 must be broadcastable with x1 (2, 3), got (2, 2)"),
        (lambda: P.cosine_similarity(x, x.long()), TypeError, "x2 must be float32, float64, float16 or bfloat16, got int64"),  # noqa: E501
        (lambda: P.cosine_similarity(x[0], x[0]), ValueError, "dim must be in [-1, 1), got 1"),
    ],
)  # fmt: skip
def test_errors(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_deprecated_arguments_warn_as_torch():
    y, target = floats(2, 3), torch.tensor([0, 2])
    with pytest.warns(UserWarning, match="Implicit dimension choice for softmax has been deprecated"):
        torch.testing.assert_close(P.softmax(y), F.softmax(y, 1))
    for kwargs in ({"size_average": False}, {"reduce": False}, {"size_average": True}, {"reduce": True}):
        for name in ("nll_loss", "cross_entropy"):
            with pytest.warns(UserWarning, match="size_average and reduce are deprecated"):
                mine = getattr(P, name)(y, target, **kwargs)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.testing.assert_close(mine, getattr(F, name)(y, target, **kwargs))

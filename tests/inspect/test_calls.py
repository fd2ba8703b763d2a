"""Traces of calls, compared with the autograd graph of the same call without tracing."""

import gc
import weakref
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pointgrad
from pointgrad.catalog import CASES, Make
from pointgrad.inspect import Calls, calls, graph


def rows(found: Calls) -> list[tuple[int, str, str, str]]:
    return [(call.level, call.name, call.backward, call.grad_fn) for call in found]


def only(found: Calls, name: str):
    (call,) = [call for call in found if call.name == name]
    return call


def scaled_by(factor):
    """Functions whose forwards share a code object."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * factor

        @staticmethod
        def backward(ctx, grad):
            return grad * factor

    Scaled.__name__ = f"Times{factor}"
    return Scaled


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.exp() * 0 + x * 2

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def test_cross_entropy():
    found = calls(F.cross_entropy, torch.rand(4, 5, requires_grad=True), torch.tensor([0, 1, 2, 3]))
    chain = [row for row in rows(found) if not row[1].startswith("aten::to")]
    assert chain == [
        (0, "torch.nn.functional.cross_entropy", "", ""),
        (1, "aten::cross_entropy_loss", "composed", ""),
        (2, "aten::log_softmax.int", "composed", ""),
        (3, "aten::_log_softmax", "own", "LogSoftmaxBackward0"),
        (2, "aten::nll_loss_nd", "composed", ""),
        (3, "aten::nll_loss", "composed", ""),
        (4, "aten::nll_loss_forward", "own", "NllLossBackward0"),
    ]
    assert only(found, "aten::cross_entropy_loss").why == "of aten::log_softmax.int, aten::nll_loss_nd"
    assert only(found, "torch.nn.functional.cross_entropy").result == "() float32"


def test_modules_are_named():
    net = nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.ReLU()))
    found = calls(net, torch.rand(2, 3))
    assert [(call.level, call.name) for call in found if call.kind == "module"] == [
        (0, "Sequential"), (1, "0 (Sequential)"), (2, "0.0 (Linear)"), (2, "0.1 (ReLU)"),
    ]  # fmt: skip
    addmm = only(found, "aten::addmm")
    assert (addmm.level, addmm.result, addmm.grad_fn) == (5, "(2, 4) float32", "AddmmBackward0")
    inner = calls(lambda x: net[0](x), torch.rand(2, 3))
    assert [call.name for call in inner if call.kind == "module"] == ["Sequential", "Linear", "ReLU"]


@pytest.mark.parametrize(
    ("fn", "name", "backward", "why"),
    [
        (lambda x: x.argmax(), "aten::argmax", "none", "returns int64: not differentiable"),
        (lambda x: x > 0, "aten::gt.Scalar", "none", "returns bool: not differentiable"),
        (lambda x: x.detach(), "aten::detach", "none", "stops the gradient"),
        (lambda x: torch.zeros_like(x), "aten::zeros_like", "none", "uses only the shape of its input"),
        (lambda x: x.new_zeros(3), "aten::new_zeros", "none", "uses only the shape of its input"),
        (lambda x: torch.rand(3), "aten::rand", "none", "has no tensor inputs"),
        (lambda x: x.sum().item(), "aten::_local_scalar_dense", "none", "returns no tensor"),
        (lambda x: x.detach().exp(), "aten::exp", "own", "not recorded: no input requires grad"),
        (torch.no_grad()(lambda x: x.exp()), "aten::exp", "own", "not recorded: under torch.no_grad()"),
        (torch.inference_mode()(lambda x: x.exp()), "aten::exp", "own", "not recorded: under torch.inference_mode()"),
        (lambda x: x.exp(), "aten::exp", "own", ""),
        (lambda x: x.to(torch.float32), "aten::to.dtype", "composed", "of no operators: returns its input"),
        (
            lambda x: torch.result_type(x, x),
            "aten::result_type.Tensor",
            "composed",
            "of no operators: returns no tensor",
        ),
        (lambda x: x.reshape(-1), "aten::reshape", "composed", "of aten::view"),
        (lambda x: x.t().reshape(-1), "aten::reshape", "composed", "of aten::clone, aten::_unsafe_view"),
        (lambda x: torch.histc(x), "aten::histc", "none", "torch declares it not differentiable"),
        (
            lambda x: torch.histogram(x, 3),
            "aten::histogram.bin_ct",
            "missing",
            "not implemented in torch: backward raises",
        ),
        (lambda x: x.round(), "aten::round", "own", ""),  # a node with a zero derivative
        (
            lambda x: torch.no_grad()(x.clone().mul_)(2),
            "aten::mul_.Tensor",
            "own",
            "not recorded: under torch.no_grad()",
        ),
    ],
)
def test_which_backward(fn, name, backward, why):
    call = only(calls(fn, torch.rand(2, 3, requires_grad=True)), name)
    assert (call.backward, call.why) == (backward, why)
    assert bool(call.grad_fn) == (backward in ("own", "missing") and not why.startswith("not recorded"))


def test_in_place_on_a_view():
    def fill(x):
        y = x.clone()
        y[0].mul_(2)
        return y

    call = only(calls(fill, torch.rand(2, 3, requires_grad=True)), "aten::mul_.Tensor")
    assert call.grad_fn.endswith("CopySlices")
    assert call.why == "in-place on a view: recorded on the base tensor"


def test_our_operators():
    points = torch.rand(9, 3, requires_grad=True)

    def sample(points):
        index = pointgrad.farthest_point_sampling(points, 4)
        return pointgrad.gather(points, index)

    found = calls(sample, points)
    gather, sampling = only(found, "pointgrad::gather"), only(found, "pointgrad::farthest_point_sampling")
    assert (gather.backward, gather.result) == ("custom", "(4, 3) float32")
    assert "gather" in gather.grad_fn
    assert (sampling.backward, sampling.grad_fn, sampling.why) == ("none", "", "registered without a backward")
    assert "pointgrad::gather" in str(found)
    assert "GeneratedBackwardFor" not in str(found)


def test_autograd_function():
    x = torch.rand(3, requires_grad=True)
    found = calls(lambda x: Double.apply(Double.apply(x)).sum(), x)
    functions = [call for call in found if call.kind == "autograd.Function"]
    assert [(call.level, call.name, call.backward, call.grad_fn) for call in functions] == [
        (0, "Double", "custom", "DoubleBackward")
    ] * 2
    inside = [call for call in found if call.name == "aten::exp"]
    assert [call.why for call in inside] == ["not recorded: inside Double, which has its own backward"] * 2
    assert only(found, "aten::sum").level == 1
    assert calls(Double.apply, x)[0].grad_fn == "DoubleBackward"
    frozen = calls(Double.apply, x.detach())[0]
    assert (frozen.grad_fn, frozen.why) == ("", "not recorded: no input requires grad")


def grad_fns(found: Calls) -> Counter:
    return Counter(call.grad_fn for call in found if call.grad_fn)


def recorded(output) -> Counter:
    nodes = graph(output).nodes
    return Counter(node.grad_fn for node in nodes if node.kind == "operator")


FUNCTIONS = {
    "linear": (nn.Linear(3, 4), [(2, 5, 3)]),
    "attention": (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), [(2, 5, 8)]),
    "convolutions": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)), [(2, 3, 8, 8)]),
    "einsum": (lambda a, b: torch.einsum("bij,bjk->ik", a, b), [(2, 3, 4), (2, 4, 5)]),
    "norms": (lambda x: F.group_norm(x, 2).norm() + F.cosine_similarity(x, x * 2).sum(), [(2, 4, 5)]),
    "losses": (lambda a, b: F.huber_loss(a, b) + F.binary_cross_entropy_with_logits(a, b), [(4,), (4,)]),
    "indexing": (lambda x: x[1:, None, [0, 1]].mT.flatten(), [(3, 4)]),
    "second derivative": (
        lambda x: torch.autograd.grad(x.sigmoid(), x, torch.ones(3), create_graph=True)[0].sum(), [(3,)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("fn", "shapes"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_recorded_nodes_are_those_of_an_untraced_run(fn, shapes):
    inputs = [torch.rand(shape, requires_grad=True) for shape in shapes]
    assert grad_fns(calls(fn, *inputs)) == recorded(fn(*inputs))


@pytest.mark.parametrize("case", [case for case in CASES if case.differentiable], ids=lambda case: case.name)
def test_every_pointgrad_operator(case):
    arguments = case.sample.build(Make())
    arguments |= case.op.sources(arguments)
    found = calls(case, arguments)
    outputs = [result for result in case(arguments) if result.requires_grad]
    assert recorded(outputs) <= grad_fns(found)  # some nodes do not reach an output
    assert not [call for call in found if call.backward == "missing"]


def test_tracing_changes_no_result_or_gradient():
    net = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    x = torch.rand(5, 3, requires_grad=True)
    kept = []

    def run(x):
        y = x.clone()
        y[0].mul_(2)
        kept.append(net(y).sum())

    calls(run, x)
    run(x)
    (seen, plain) = kept
    assert torch.equal(seen, plain)
    expected = torch.autograd.grad(plain, [x, *net.parameters()])
    torch.testing.assert_close(torch.autograd.grad(seen, [x, *net.parameters()]), expected, rtol=0, atol=0)


def test_autocast_casts_are_listed():
    with torch.autocast("cpu", torch.bfloat16):
        found = calls(F.linear, torch.rand(2, 3, requires_grad=True), torch.rand(4, 3))
    assert only(found, "torch.nn.functional.linear").result == "(2, 4) bfloat16"
    assert "aten::_to_copy" in {call.name for call in found}


def test_errors_propagate_and_hooks_are_removed():
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        calls(lambda x: nn.Linear(3, 4)(x), torch.rand(2, 5))
    from torch.nn.modules import module

    assert not module._global_forward_pre_hooks
    assert not module._global_forward_hooks
    x = torch.rand(2, requires_grad=True)
    assert x.exp().grad_fn is not None  # autograd is enabled again


def test_keyword_arguments_and_operators():
    found = calls(torch.softmax, torch.rand(2, 3, requires_grad=True), dim=-1)
    assert [call.name for call in found.operators] == ["aten::_softmax"]


def test_fn_must_be_callable():
    with pytest.raises(TypeError, match="fn must be callable, got Tensor"):
        calls(torch.rand(2))


def test_functions_with_the_same_forward_code_are_distinguished():
    twice, thrice = scaled_by(2).apply, scaled_by(3).apply  # bound before recording
    found = calls(lambda x: thrice(twice(x)), torch.rand(3, requires_grad=True))
    assert [call.name for call in found if call.kind == "autograd.Function"] == ["Times2", "Times3"]


def functions(found: Calls) -> list[tuple[str, str, str]]:
    return [(call.name, call.grad_fn, call.why) for call in found if call.kind == "autograd.Function"]


class DeletesInput(Double):
    @staticmethod
    def forward(ctx, x):
        y = x.detach()
        del x
        return y * 2


class Largest(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *rows):
        place = rows[0].argmax()
        ctx.mark_non_differentiable(place)
        return place


class CallsParent(Double):
    @staticmethod
    def forward(ctx, x):
        return Double.forward(ctx, x) + 1


class Identity(Double):
    @staticmethod
    def forward(ctx, x):
        return x


class Separate(Double):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


@pytest.mark.parametrize(
    ("function", "grad_fn"),
    [
        (DeletesInput, "DeletesInputBackward"),
        (Largest, ""),
        (CallsParent, "CallsParentBackward"),
        (Separate, "SeparateBackward"),
    ],
)
def test_kinds_of_forward(function, grad_fn):
    found = calls(function.apply, torch.rand(3, requires_grad=True))
    assert functions(found) == [(function.__name__, grad_fn, "")]


@pytest.mark.skipif(
    "apply" not in vars(torch.autograd.Function) or not hasattr(torch.autograd.Function.apply, "__code__"),
    reason="this torch has no Python frame for a Function that runs no operator",
)
def test_function_that_returns_its_input():
    assert functions(calls(Identity.apply, torch.rand(3, requires_grad=True))) == [("Identity", "IdentityBackward", "")]


def test_forward_called_as_a_plain_function():
    found = calls(lambda x: Double.forward(None, x), torch.rand(3, requires_grad=True))
    assert functions(found) == []
    assert only(found, "aten::exp").grad_fn == "ExpBackward0"


def test_results_are_freed_without_the_garbage_collector():
    """A reference to a stack frame keeps its results alive, and torch copies results with other references."""
    made = []

    def fn(x):
        made.append(weakref.ref((x * 2).untyped_storage()))
        return torch.zeros_like(x)

    gc.disable()
    try:
        found = calls(fn, torch.rand(3))
        assert [call.name for call in found.operators] == ["aten::mul.Tensor", "aten::zeros_like"]
        assert made[0]() is None
    finally:
        gc.enable()

"""cross_entropy and nll_loss against torch, beyond the samples of the catalogue."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck

import pointgrad
from pointgrad.functional import cross_entropy, log_softmax, nll_loss

INF = float("inf")
SHAPES = [(5,), (4, 5), (2, 5, 3, 4), (3, 1), (2, 67), (2, 3, 70)]


def classes_for(shape, count):
    return torch.randint(0, count, shape[:1] + shape[2:] if len(shape) > 1 else ())


def with_grad(call, *inputs, **options):
    """The result, and the gradients under an upstream gradient that depends on the shape only."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    output = call(*inputs, **options)
    torch.manual_seed(5)
    return output, *torch.autograd.grad(output, inputs, torch.randn_like(output))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_classes_agree_with_torch(shape, reduction, place):
    count = shape[min(1, len(shape) - 1)]
    x = torch.randn(shape, dtype=torch.float64, device=place.device)
    target = classes_for(shape, count).to(place.device)
    weights = (None, torch.rand(count, dtype=torch.float64, device=place.device))
    for weight, smoothing, ignored in itertools.product(weights, (0.0, 0.3), (-100, 1)):
        options = {"target": target, "weight": weight, "reduction": reduction, "ignore_index": ignored}
        actual, desired = (
            with_grad(f, x, label_smoothing=smoothing, **options) for f in (cross_entropy, F.cross_entropy)
        )
        torch.testing.assert_close(actual, desired, equal_nan=True)
        actual, desired = (with_grad(f, x, **options) for f in (nll_loss, F.nll_loss))
        torch.testing.assert_close(actual, desired, equal_nan=True)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_probabilities_agree_with_torch(shape, reduction, place):
    axis = min(1, len(shape) - 1)
    x = torch.randn(shape, dtype=torch.float64, device=place.device)
    target = torch.randn(shape, dtype=torch.float64, device=place.device).softmax(axis)
    weight = torch.rand(shape[axis], dtype=torch.float64, device=place.device)
    for smoothing in (0.0, 0.3):
        options = {"label_smoothing": smoothing, "reduction": reduction}
        for inputs in ((x, target), (x, target, weight)):
            actual, desired = (with_grad(f, *inputs, **options) for f in (cross_entropy, F.cross_entropy))
            torch.testing.assert_close(actual, desired)


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.bfloat16, torch.float32),
                                    (torch.float64, torch.float16)], ids=str)  # fmt: skip
def test_mixed_dtypes_of_probabilities(dtypes, place):
    x = torch.randn(4, 5, device=place.device).to(dtypes[0])
    target = torch.randn(4, 5, device=place.device).softmax(1).to(dtypes[1])
    loss, *grads = with_grad(cross_entropy, x, target)
    expected = F.cross_entropy(x, target)
    assert loss.dtype == expected.dtype
    assert [grad.dtype for grad in grads] == [*dtypes]
    exact = F.cross_entropy(x.double(), target.double())
    assert abs(loss.double() - exact) <= abs(expected.double() - exact) + torch.finfo(loss.dtype).eps * exact


def test_layouts_need_no_copy(place):
    """Equal results for classes last in memory, classes before contiguous positions, or neither."""
    x = torch.randn(2, 5, 7, device=place.device)
    target = torch.randint(0, 5, (2, 7), device=place.device)
    expected = with_grad(F.cross_entropy, x, target=target, reduction="none")
    for layout in (x, x.mT.contiguous().mT, x.movedim(0, -1).contiguous().movedim(-1, 0)):
        assert torch.equal(layout, x)
        actual = with_grad(cross_entropy, layout, target=target, reduction="none")
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_from_zero(dtype, place):
    """The largest logit is subtracted before anything is rounded."""
    x = torch.tensor([[0.0, 1.0, 2.0]], dtype=dtype, device=place.device)
    target = torch.tensor([1], device=place.device)
    expected = with_grad(cross_entropy, x, target=target)
    for shift in (2.0**20, -(2.0**20)):
        torch.testing.assert_close(with_grad(cross_entropy, x + shift, target=target), expected)
    huge = torch.tensor([[1e20, -1e20]], dtype=dtype, device=place.device)
    loss, grad = with_grad(cross_entropy, huge, target=target)
    assert loss.item() == pytest.approx(2e20)
    assert (grad[0, 0] == -grad[0, 1]).item()
    assert grad.abs().min() > 0


def test_minus_infinity(place):
    x = torch.tensor([[-INF, -INF, -INF], [-INF, 1.0, 1.0], [-INF, 1.0, 1.0]], device=place.device)
    target = torch.tensor([1, 1, 0], device=place.device)
    loss, grad = with_grad(cross_entropy, x, target=target, reduction="none")
    torch.testing.assert_close(loss.cpu(), torch.tensor([INF, 0.6931472, INF]))
    assert grad[0].tolist() == [0, 0, 0]
    assert grad.isfinite().all()
    ones = torch.ones(3, device=place.device)
    x.requires_grad_()
    (first,) = torch.autograd.grad(cross_entropy(x, target, reduction="none"), x, ones, create_graph=True)
    (second,) = torch.autograd.grad(first, x, torch.ones_like(first))
    assert second.isfinite().all()
    # A class with target 0 adds nothing to the loss, even at -inf, where PyTorch returns NaN (0 times infinity).
    soft = torch.tensor([[0.0, 0.5, 0.5]], device=place.device)
    assert cross_entropy(x[1:2], soft).item() == pytest.approx(0.6931472)


def test_ignored_rows_add_nothing(place):
    """Ignored rows may hold NaN, and all rows may be ignored, where the mean is 0 / 0."""
    x = torch.tensor([[float("nan"), 1.0], [0.0, 0.0]], device=place.device)
    loss, grad = with_grad(cross_entropy, x, target=torch.tensor([-100, 0], device=place.device))
    assert loss.item() == pytest.approx(0.6931472)
    assert grad[0].tolist() == [0, 0]
    loss, grad = with_grad(cross_entropy, x, target=torch.tensor([-100, -100], device=place.device))
    assert loss.isnan()
    assert grad.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("loss", [cross_entropy, nll_loss])
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_weights_without_classes(loss, reduction, place):
    """Found by fuzzing: all targets are ignored, and there is no weight to look up."""
    logits = torch.zeros(3, 0, device=place.device, requires_grad=True)
    target = torch.full((3,), -100, device=place.device)
    out = loss(logits, target, torch.zeros(0, device=place.device), reduction=reduction)
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.autograd.grad(out.sum(), logits)[0].shape == (3, 0)


@pytest.mark.parametrize("positions", [(), (5,)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_mean_over_weights_of_zero(smoothing, positions, place):
    """Found by fuzzing: the gradient of such a mean is infinite before it is multiplied by zero."""
    logits = torch.randn(2, 3, *positions, device=place.device, requires_grad=True)
    target, weight = torch.ones(2, *positions, device=place.device).long(), torch.tensor([1.0, 0.0, 2.0])
    out = cross_entropy(logits, target, weight.to(place.device), label_smoothing=smoothing)
    received = torch.autograd.grad(out, logits)
    with pointgrad.backend("reference"):
        expected = torch.autograd.grad(
            cross_entropy(logits, target, weight.to(place.device), label_smoothing=smoothing), logits
        )
    torch.testing.assert_close(received, expected, equal_nan=True)
    assert not received[0].isfinite().any()


def test_cross_entropy_equals_nll_of_log_softmax(place):
    x = torch.randn(3, 4, 6, dtype=torch.float64, device=place.device)
    target = torch.randint(0, 4, (3, 6), device=place.device)
    weight = torch.rand(4, dtype=torch.float64, device=place.device)
    torch.testing.assert_close(cross_entropy(x, target, weight), nll_loss(log_softmax(x, 1), target, weight))


def test_saves_the_logits_and_two_numbers_per_row():
    x, target = torch.randn(50, 40, requires_grad=True), torch.randint(0, 40, (50,))
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.update({t.data_ptr(): t}), t)[1], lambda t: t):
        cross_entropy(x, target, reduction="sum")
    assert x.data_ptr() in kept
    del kept[x.data_ptr()]
    assert {t.numel() for t in kept.values()} == {50}
    assert sum(t.numel() * t.element_size() for t in kept.values()) == 50 * (8 + 4 + 4)


def test_sums_of_many_rows_in_low_precision(place):
    """Rows are summed in float32: a mean of 16-bit losses is right to one rounding."""
    if place.interpreted:
        pytest.skip("too many rows for the interpreter")
    x = torch.randn(70000, 3, device=place.device).bfloat16()
    target = torch.randint(0, 3, (70000,), device=place.device)
    exact = F.cross_entropy(x.double(), target)
    for loss in (cross_entropy(x, target), nll_loss(log_softmax(x.float(), 1), target)):
        assert abs(loss.double() - exact) <= torch.finfo(torch.bfloat16).eps / 2 * exact
    assert cross_entropy(x, target, reduction="sum").isfinite()


def test_autocast(place):
    x = torch.randn(4, 5, device=place.device).bfloat16()
    target = torch.randint(0, 5, (4,), device=place.device)
    for ours, theirs in ((cross_entropy, F.cross_entropy), (nll_loss, F.nll_loss)):
        with torch.autocast(place.device, torch.bfloat16):
            loss, grad = with_grad(ours, x, target=target)
            expected = theirs(x, target)
        assert loss.dtype == expected.dtype == torch.float32
        assert grad.dtype == torch.bfloat16
        # On a GPU, PyTorch rounds the log-softmax to 16 bits.
        torch.testing.assert_close(loss.double(), theirs(x.double(), target), rtol=1e-6, atol=1e-6)


def test_integer_targets(place):
    x = torch.randn(3, 4, device=place.device)
    target = torch.tensor([0, 3, 1], device=place.device)
    expected = F.cross_entropy(x, target)
    for dtype in (torch.int32, torch.uint8):
        torch.testing.assert_close(cross_entropy(x, target.to(dtype)), expected)
    # A target (1,) is allowed for logits (C,), as in later versions of PyTorch.
    torch.testing.assert_close(cross_entropy(x[0], target[:1]), F.cross_entropy(x[:1], target[:1]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="on the CPU a class out of range is an error")
def test_out_of_range_is_ignored_on_a_gpu():
    x = torch.randn(3, 4, device="cuda")
    wrong, ignored = torch.tensor([2, 4, -7], device="cuda"), torch.tensor([2, -100, -100], device="cuda")
    for loss in (cross_entropy, nll_loss):
        torch.testing.assert_close(with_grad(loss, x, target=wrong), with_grad(loss, x, target=ignored))


def test_third_derivative():
    """The second derivative is plain PyTorch, so a third exists."""
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 2])

    def gradient(x):
        return torch.autograd.grad(cross_entropy(x, target), x, create_graph=True)[0]

    assert gradcheck(gradient, x)
    assert gradgradcheck(gradient, x)


def test_inductor():
    x, target = torch.randn(6, 5, requires_grad=True), torch.randint(0, 5, (6,))

    def call(x):
        return cross_entropy(x * 2, target, label_smoothing=0.1) + pointgrad.functional.mean(x)

    torch._dynamo.reset()
    received = torch.autograd.grad(torch.compile(call, fullgraph=True)(x), x)
    torch.testing.assert_close(received, torch.autograd.grad(call(x), x))

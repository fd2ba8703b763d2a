"""Properties specific to unfold, fold, convolutions and max pooling; test_contract.py tests the rest.

PyTorch's own operators of the same names are the oracle: they share no code with ours.
"""

import doctest

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import pointgrad.functional
from pointgrad.functional import conv1d, conv2d, fold, max_pool2d, unfold
from pointgrad.ops.conv import reference

nan, inf = float("nan"), float("inf")
CONVOLUTIONS = {1: (conv1d, F.conv1d), 2: (conv2d, F.conv2d)}

# Image, kernel_size, dilation, padding, stride: pairs or numbers; overlapping, separate, larger than the image.
WINDOWS = {
    "plain": ((2, 3, 6, 5), 3, 1, 0, 1),
    "padded": ((2, 3, 6, 5), 3, 1, 1, 1),
    "one pixel": ((1, 2, 1, 1), 1, 1, 0, 1),
    "pairs": ((2, 2, 7, 9), (2, 3), (3, 2), (2, 1), (1, 3)),
    "apart": ((1, 2, 11, 10), 2, 1, 0, (4, 5)),
    "wide margin": ((1, 1, 2, 3), (3, 5), 1, (4, 5), 2),
    "rows only": ((1, 2, 8, 4), (3, 1), (2, 1), (1, 0), (2, 1)),
    "without batch": ((3, 5, 6), (2, 4), 1, 1, 2),
}
windows = pytest.mark.parametrize(("shape", "kernel", "dilation", "padding", "stride"), WINDOWS.values(), ids=WINDOWS)

# Axes, input, weight, stride, padding, dilation, groups.
PRODUCTS = {
    "plain": (2, (2, 3, 6, 5), (4, 3, 3, 3), 1, 0, 1, 1),
    "1 x 1": (2, (2, 3, 4, 4), (5, 3, 1, 1), 2, 0, 1, 1),
    "pairs": (2, (1, 2, 8, 9), (3, 2, 2, 3), (2, 3), (1, 2), (3, 1), 1),
    "groups": (2, (2, 6, 5, 5), (4, 3, 3, 2), 1, 1, 1, 2),
    "depthwise": (2, (2, 4, 6, 6), (8, 1, 3, 3), 2, 1, 1, 4),
    "same": (2, (1, 2, 5, 6), (2, 2, 3, 2), 1, "same", (2, 3), 1),
    "valid": (2, (1, 2, 5, 6), (2, 2, 3, 2), 1, "valid", 1, 1),
    "without batch": (2, (4, 5, 5), (2, 2, 3, 3), 1, 1, 1, 2),
    "line": (1, (2, 3, 9), (4, 3, 3), 2, 1, 2, 1),
    "line in groups": (1, (2, 4, 9), (6, 2, 4), 1, "same", 1, 2),
    "line without batch": (1, (2, 7), (3, 2, 2), (3,), (1,), 1, 1),
}
products = pytest.mark.parametrize(
    ("axes", "shape", "weight", "stride", "padding", "dilation", "groups"), PRODUCTS.values(), ids=PRODUCTS
)
# torch warns when "same" must pad one side more than the other.
even_kernels = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")


def assert_rounding(received, expected):
    """Equal in float64 up to the rounding of sums."""
    torch.testing.assert_close(received, expected, rtol=1e-12, atol=1e-12)


def random(place, *shape):
    return torch.randn(shape, dtype=torch.float64, device=place.device, requires_grad=True)


@windows
def test_unfold_and_fold_equal_torch(shape, kernel, dilation, padding, stride, place):
    image = random(place, *shape)
    expected = F.unfold(image, kernel, dilation, padding, stride)
    received = unfold(image, kernel, dilation, padding, stride)
    assert torch.equal(received, expected)
    upstream = torch.randn_like(expected)
    assert_rounding(*(torch.autograd.grad(out, image, upstream)[0] for out in (received, expected)))
    columns = upstream.requires_grad_()
    expected = F.fold(columns, shape[-2:], kernel, dilation, padding, stride)
    received = fold(columns, shape[-2:], kernel, dilation, padding, stride)
    assert_rounding(received, expected)
    upstream = torch.randn_like(expected)
    assert torch.equal(*(torch.autograd.grad(out, columns, upstream)[0] for out in (received, expected)))


@windows
def test_unfold_and_fold_are_adjoint(shape, kernel, dilation, padding, stride, place):
    """<unfold x, y> = <x, fold y>."""
    x = random(place, *shape)
    columns = unfold(x, kernel, dilation, padding, stride)
    y = torch.randn_like(columns)
    image = fold(y, shape[-2:], kernel, dilation, padding, stride)
    assert_rounding((columns * y).sum(), (x * image).sum())


def test_unfold_and_fold_count_the_windows_of_a_pixel(place):
    """In a 3 x 3 image four windows of 2 x 2 cover [1, 1], two cover an edge, one a corner."""
    image = torch.arange(1.0, 10.0, device=place.device).reshape(1, 3, 3)
    covered = fold(unfold(torch.ones_like(image), 2), 3, 2)
    assert covered.tolist() == [[[1, 2, 1], [2, 4, 2], [1, 2, 1]]]
    folded = fold(unfold(image, 2), 3, 2)
    assert folded[0, 1, 1] == 4 * 5
    assert torch.equal(folded / covered, image)


def test_a_pixel_between_windows_is_zero(place):
    image = torch.ones(1, 5, 5, device=place.device)
    covered = fold(unfold(image, 2, stride=3), 5, 2, stride=3)
    assert covered[0].tolist() == [[1, 1, 0, 1, 1], [1, 1, 0, 1, 1], [0] * 5, [1, 1, 0, 1, 1], [1, 1, 0, 1, 1]]


@pytest.mark.parametrize(("dtype", "large"), [(torch.float16, 2048), (torch.bfloat16, 256)], ids=str)
def test_fold_sums_in_float32(dtype, large, place):
    """A large value, then 64 halves, which would all be lost in 16 bits."""
    columns = torch.full((65, 65), 0.5, dtype=dtype, device=place.device)
    columns[0, 64] = large
    line = fold(columns, (1, 129), (1, 65))
    assert line[0, 0, 64].item() == large + 32


@even_kernels
@products
def test_convolutions_equal_torch(axes, shape, weight, stride, padding, dilation, groups, place):
    """Results, the three gradients, and second derivatives."""
    ours, theirs = CONVOLUTIONS[axes]
    inputs = [random(place, *size) for size in (shape, weight, weight[:1])]
    outputs = [conv(*inputs, stride, padding, dilation, groups) for conv in (ours, theirs)]
    assert_rounding(*outputs)
    upstream = torch.randn_like(outputs[0]).requires_grad_()
    first = [torch.autograd.grad(out, inputs, upstream, create_graph=True) for out in outputs]
    for received, expected in zip(*first, strict=True):
        assert_rounding(received, expected)
    directions = [torch.randn_like(grad) for grad in first[0]]
    sources = [inputs[0], inputs[1], upstream]
    second = [torch.autograd.grad(grads, sources, directions) for grads in first]
    for received, expected in zip(*second, strict=True):
        assert_rounding(received, expected)


@even_kernels
@products
def test_convolutions_without_bias(axes, shape, weight, stride, padding, dilation, groups):
    ours, theirs = CONVOLUTIONS[axes]
    image, kernel = torch.randn(shape, dtype=torch.float64), torch.randn(weight, dtype=torch.float64)
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    assert_rounding(ours(image, kernel, **settings), theirs(image, kernel, **settings))


@pytest.mark.parametrize("wanted", [0, 1, 2], ids=["input", "weight", "bias"])
def test_one_gradient_alone(wanted, place):
    """Only the inputs of that gradient are saved, and it equals the one computed with the others."""
    values = [random(place, *size).detach() for size in ((2, 4, 5, 5), (6, 2, 3, 3), (6,))]
    values[wanted].requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: kept.append(saved) or saved, lambda saved: saved):
        received = conv2d(*values, padding=1, groups=2)
    needed = {0: [values[1].shape], 1: [values[0].shape], 2: []}[wanted]
    assert [saved.shape for saved in kept] == needed
    expected = F.conv2d(*values, padding=1, groups=2)
    assert_rounding(*(torch.autograd.grad(out.sum(), values[wanted])[0] for out in (received, expected)))


def test_columns_are_not_kept(place):
    image, weight = random(place, 2, 3, 9, 9), random(place, 4, 3, 3, 3)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: kept.append(saved) or saved, lambda saved: saved):
        conv2d(image, weight)
        unfold(image, 3)
    assert sum(saved.numel() for saved in kept) == image.numel() + weight.numel()


@pytest.mark.parametrize("values", [1, 500, 2000])
def test_a_batch_in_portions(values, monkeypatch, place):
    """For any limit on the number of columns in memory."""
    monkeypatch.setattr(reference, "_COLUMN_VALUES", values)
    inputs = [random(place, *size) for size in ((5, 4, 6, 6), (2, 2, 3, 3), (2,))]
    outputs = [conv(*inputs, 1, 1, 1, 2) for conv in (conv2d, F.conv2d)]
    assert_rounding(*outputs)
    upstream = torch.randn_like(outputs[0])
    for received, expected in zip(*(torch.autograd.grad(out, inputs, upstream) for out in outputs), strict=True):
        assert_rounding(received, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_convolutions_in_16_bits(dtype, place):
    """A CPU rounds the result once; a GPU may round columns and products too."""
    inputs = [random(place, *size).detach().to(dtype).requires_grad_() for size in ((4, 4, 8, 8), (8, 4, 3, 3), (8,))]
    exact = [value.detach().double().requires_grad_() for value in inputs]
    received, truth = conv2d(*inputs, padding=1), F.conv2d(*exact, padding=1)
    upstream = torch.randn_like(received)
    grads = torch.autograd.grad(received, inputs, upstream), torch.autograd.grad(truth, exact, upstream.double())
    eps = torch.finfo(dtype).eps
    for actual, desired in ((received, truth), *zip(*grads, strict=True)):
        assert actual.dtype == dtype
        assert (actual.double() - desired).norm() <= eps * desired.norm()


def test_autocast_takes_the_widest(place):
    image, weight = torch.randn(1, 2, 5, 5, device=place.device), torch.randn(3, 2, 3, 3, device=place.device)
    with torch.autocast(place.device, torch.bfloat16):
        out = conv2d(image.bfloat16(), weight)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, conv2d(image.bfloat16().float(), weight))


# Image, kernel_size, stride, padding, dilation, ceil_mode.
POOLS = {
    "stride of the kernel": ((2, 3, 6, 7), 2, None, 0, 1, False),
    "overlapping": ((2, 3, 6, 7), 3, 2, 1, 1, False),
    "pairs": ((1, 2, 9, 8), (2, 3), (1, 2), (1, 0), (2, 1), False),
    "last windows": ((1, 2, 6, 7), 3, 2, 1, 1, True),
    "last windows begin in the padding": ((1, 1, 5, 5), 2, 3, 1, 1, True),
    "one window": ((2, 4, 4), 4, 1, 0, 1, False),
}
pools = pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding", "dilation", "ceil_mode"), POOLS.values(), ids=POOLS
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pools
def test_pooling_equals_torch(shape, kernel, stride, padding, dilation, ceil_mode, dtype, place):
    """Values, indices and gradients, with ties, infinities and NaN."""
    image = torch.randint(-2, 3, shape).to(place.device, dtype)
    image[torch.rand(shape) < 0.2] = -inf
    image[torch.rand(shape) < 0.05] = inf
    image[torch.rand(shape) < 0.1] = nan
    image.requires_grad_()
    settings = (kernel, stride, padding, dilation, ceil_mode)
    expected, places = F.max_pool2d(image, *settings, return_indices=True)
    received, index = max_pool2d(image, *settings, return_indices=True)
    torch.testing.assert_close(received, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(index, places)
    assert received.dtype == dtype
    assert not index.requires_grad
    # Integers, so that sums in 16 bits are exact in any order.
    upstream = torch.randint(-4, 5, received.shape).to(received)
    assert torch.equal(*(torch.autograd.grad(out, image, upstream)[0] for out in (received, expected)))


def test_pooling_without_indices_is_one_tensor(place):
    image = torch.randn(1, 4, 4, device=place.device)
    assert torch.equal(max_pool2d(image, 2), F.max_pool2d(image, 2))


def test_ties_go_to_the_first_and_nan_to_the_last(place):
    image = torch.tensor([[[3.0, 7, 7, 7], [nan, 0, nan, 1]]], device=place.device)
    values, index = max_pool2d(image, (1, 4), return_indices=True)
    assert values[0, 0].item() == 7
    assert values[0, 1].isnan().item()
    assert index.tolist() == [[[1], [6]]]


def test_a_window_without_a_pixel(place):
    """Two rows, and a kernel whose two positions lie before and behind them."""
    image = torch.ones(1, 2, 1, device=place.device, requires_grad=True)
    values, index = max_pool2d(image, (2, 1), 1, (1, 0), (3, 1), return_indices=True)
    assert values.tolist() == [[[-inf]]]
    assert index.tolist() == [[[-1]]]
    (grad,) = torch.autograd.grad(values, image, torch.ones_like(values))
    assert not grad.any()


def test_second_derivative_of_pooling(place):
    """For a pixel that is the maximum of several windows, the second derivative of the sum of squares counts them."""
    image = torch.tensor([[[1.0, 9.0, 2.0, 4.0]]], dtype=torch.float64, device=place.device, requires_grad=True)
    (first,) = torch.autograd.grad(max_pool2d(image, (1, 2), 1).pow(2).sum(), image, create_graph=True)
    assert first.flatten().tolist() == [0, 2 * 2 * 9, 0, 2 * 4]
    (second,) = torch.autograd.grad(first.sum(), image)
    assert second.flatten().tolist() == [0, 4, 0, 2]


def test_strides_of_the_input_do_not_matter(place):
    """Channels last, expanded, transposed."""
    base = torch.randn(2, 3, 5, 5, device=place.device)
    for image in (base.to(memory_format=torch.channels_last), base[:1].expand(2, 3, 5, 5), base.transpose(2, 3)):
        solid = image.contiguous()
        weight = torch.randn(4, 3, 3, 3, device=place.device).to(memory_format=torch.channels_last)
        assert torch.equal(unfold(image, 2), unfold(solid, 2))
        assert torch.equal(conv2d(image, weight), conv2d(solid, weight.contiguous()))
        assert torch.equal(max_pool2d(image, 2), max_pool2d(solid, 2))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_windows(data):
    """Random geometry on the C++ kernels; both raise, or neither."""
    draw = data.draw
    kernel, stride, dilation, padding, size = (
        draw(st.tuples(st.integers(least, most), st.integers(least, most)))
        for least, most in ((1, 4), (1, 4), (1, 3), (0, 3), (1, 11))
    )
    groups, per_group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    image = torch.randint(-4, 5, (draw(st.integers(0, 3)), groups * per_group, *size)).double().requires_grad_()
    weight = torch.randint(-4, 5, (2 * groups, per_group, *kernel)).double().requires_grad_()
    if any(size[a] + 2 * padding[a] <= dilation[a] * (kernel[a] - 1) for a in (0, 1)):
        with pytest.raises(RuntimeError):
            F.unfold(image, kernel, dilation, padding, stride)
        with pytest.raises(ValueError, match="kernel_size must be at most the padded input"):
            unfold(image, kernel, dilation, padding, stride)
        with pytest.raises(ValueError, match="the kernel of weight must be at most the padded input"):
            conv2d(image, weight, None, stride, padding, dilation, groups)
        return
    # Integers: everything is exact.
    columns = F.unfold(image, kernel, dilation, padding, stride)
    assert torch.equal(unfold(image, kernel, dilation, padding, stride), columns)
    folded = F.fold(columns, size, kernel, dilation, padding, stride)
    assert torch.equal(fold(columns, size, kernel, dilation, padding, stride), folded)
    outputs = [c(image, weight, None, stride, padding, dilation, groups) for c in (conv2d, F.conv2d)]
    assert torch.equal(*outputs)
    upstream = torch.randint(-4, 5, outputs[0].shape).double()
    for actual, desired in zip(*(torch.autograd.grad(out, (image, weight), upstream) for out in outputs), strict=True):
        assert torch.equal(actual, desired)
    half = tuple(min(zeros, length // 2) for zeros, length in zip(padding, kernel, strict=True))
    if all(size[a] + 2 * half[a] > dilation[a] * (kernel[a] - 1) for a in (0, 1)):
        settings = (kernel, stride, half, dilation, draw(st.booleans()))
        expected, places = F.max_pool2d(image, *settings, return_indices=True)
        received, index = max_pool2d(image, *settings, return_indices=True)
        assert torch.equal(received, expected)
        assert torch.equal(index, torch.where(expected == -inf, -1, places))  # torch returns a pixel outside the image


def test_compiled_once_for_all_sizes():
    """Sizes stay symbolic in the checks."""

    def network(image, weight):
        pooled = max_pool2d(conv2d(image, weight, padding="same"), 2, ceil_mode=True)
        return fold(unfold(pooled, 2), pooled.shape[-2:], 2)

    torch._dynamo.reset()
    compiled = torch.compile(network, fullgraph=True, dynamic=True, backend="aot_eager")
    weight = torch.randn(3, 2, 3, 3)
    compiled(torch.randn(5, 2, 6, 7), weight)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for size in ((4, 2, 9, 8), (7, 2, 12, 20)):
            image = torch.randn(size)
            torch.testing.assert_close(compiled(image, weight), network(image, weight))


def test_documented_examples_run():
    results = [
        doctest.DocTestRunner().run(example)
        for function in (unfold, fold, conv1d, conv2d, max_pool2d)
        for example in doctest.DocTestFinder(recurse=False).find(
            function, function.__name__, globs={"torch": torch, **vars(pointgrad.functional)}
        )
    ]
    assert sum(result.attempted for result in results) >= 6
    assert not any(result.failed for result in results)

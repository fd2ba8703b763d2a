"""Properties specific to scatter, segment, segment_softmax and histogram; test_contract.py tests the rest."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pointgrad
from pointgrad.ops.scatter.register import pick_elements, place_elements

nan, inf = float("nan"), float("inf")


def extremes_by_hand(values, index, size, largest):
    """The definition, entry by entry: (size, C) values and places."""
    best, arg = torch.zeros(size, values.shape[1], dtype=values.dtype), torch.full((size, values.shape[1]), -1)
    for entry, row in enumerate(index.tolist()):
        for channel in range(values.shape[1] if row >= 0 else 0):
            value, so_far = values[entry, channel].item(), best[row, channel].item()
            empty = arg[row, channel] < 0
            if empty or (so_far == so_far and (value != value or (value > so_far if largest else value < so_far))):
                best[row, channel], arg[row, channel] = value, entry
    return best, arg


def test_the_histogram_of_the_docstring(place):
    index = torch.tensor([0, 0, 1, 2, 2, 4], device=place.device)
    weights = torch.tensor([1, 3, 1, 4, 20, 2], device=place.device)
    assert pointgrad.histogram(index, 5, weights).tolist() == [4, 1, 24, 0, 2]
    assert pointgrad.histogram(index, 5, weights.float()).tolist() == [4, 1, 24, 0, 2]
    assert pointgrad.histogram(index, 5).tolist() == [2, 1, 2, 0, 1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.int32], ids=str)
def test_histogram_equals_bincount(dtype, place):
    index = torch.randint(0, 50, (3000,), device=place.device)
    weights = torch.randint(-9, 9, (3000,)).to(place.device, dtype)
    assert torch.equal(pointgrad.histogram(index, 60), torch.bincount(index, minlength=60))
    received = pointgrad.histogram(index, 60, weights)
    assert received.dtype == dtype
    expected = np.zeros(60)
    np.add.at(expected, index.cpu().numpy(), weights.cpu().double().numpy())
    assert received.tolist() == expected.tolist()


def test_sum_equals_numpy(place):
    values, index = torch.randn(2, 90, 5, dtype=torch.float64), torch.randint(-1, 20, (2, 90))
    expected = np.zeros((2, 20, 5))
    for cloud in range(2):
        kept = index[cloud] >= 0
        np.add.at(expected[cloud], index[cloud][kept].numpy(), values[cloud][kept].numpy())
    received = pointgrad.scatter(values.to(place.device), index.to(place.device), 20)
    torch.testing.assert_close(received.cpu(), torch.from_numpy(expected))


@pytest.mark.parametrize(("reduce", "name"), [("sum", "sum"), ("mean", "mean"), ("max", "amax"), ("min", "amin")])
def test_equals_scatter_reduce_and_its_gradient(reduce, name, place):
    """On distinct values and non-empty groups, where torch handles ties and empty groups alike."""
    values = torch.randn(200, 7, device=place.device, dtype=torch.float64, requires_grad=True)
    index = torch.cat([torch.arange(12), torch.randint(0, 12, (188,))]).to(place.device)
    upstream = torch.randn(12, 7, device=place.device, dtype=torch.float64)
    expected = torch.zeros(12, 7, device=place.device, dtype=torch.float64).scatter_reduce(
        0, index[:, None].expand(200, 7), values, name, include_self=False
    )
    received = pointgrad.scatter(values, index, 12, reduce)
    torch.testing.assert_close(received, expected)
    grads = [torch.autograd.grad(out, values, upstream)[0] for out in (received, expected)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_segments_equal_segment_reduce(reduce, place):
    lengths = torch.tensor([3, 0, 1, 1500, 40, 0], device=place.device)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    values = torch.randn(1544, 6, dtype=torch.float64).to(place.device)
    expected = torch.segment_reduce(values, reduce, lengths=lengths, axis=0, unsafe=True)
    expected = torch.where((lengths > 0)[:, None], expected, 0)  # torch returns NaN or infinity for empty segments
    torch.testing.assert_close(pointgrad.segment(values, offsets, reduce), expected)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_segments_equal_scatter(reduce, place):
    """Segments and an index give the same result, bit for bit where nothing is rounded."""
    lengths = torch.tensor([0, 700, 3, 0, 1200, 9], device=place.device)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    index = torch.arange(6, device=place.device).repeat_interleave(lengths)
    values = torch.randint(-50, 50, (1912, 3)).to(place.device, torch.float32)  # sums are exact
    of_rows = pointgrad.scatter(values, index, 6, reduce)
    exact = {} if reduce == "mean" else {"rtol": 0, "atol": 0}  # a quotient is rounded
    torch.testing.assert_close(pointgrad.segment(values, offsets, reduce), of_rows, **exact)
    if reduce in ("max", "min"):
        of_segments = pointgrad.segment(values, offsets, reduce, return_arg=True)
        assert torch.equal(of_segments.arg, pointgrad.scatter(values, index, 6, reduce, return_arg=True).arg)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_extremes_by_hand(reduce, dtype, place):
    values = torch.randint(-2, 3, (60, 3)).to(dtype)
    if dtype.is_floating_point:
        values[torch.rand(60, 3) < 0.2] = inf
        values[torch.rand(60, 3) < 0.2] = -inf
        values[torch.rand(60, 3) < 0.05] = nan
    index = torch.randint(-1, 9, (60,))
    best, arg = extremes_by_hand(values, index, 10, reduce == "max")
    received = pointgrad.scatter(values.to(place.device), index.to(place.device), 10, reduce, return_arg=True)
    assert received.values.dtype == dtype
    assert received.arg.tolist() == arg.tolist()
    torch.testing.assert_close(received.values.cpu(), best, rtol=0, atol=0, equal_nan=True)
    order = index.argsort(stable=True)
    offsets = torch.searchsorted(index[order], torch.arange(-1, 11))
    best, arg = extremes_by_hand(values[order], index[order] + 1, 11, reduce == "max")
    received = pointgrad.segment(values[order].to(place.device), offsets.to(place.device), reduce, return_arg=True)
    assert received.arg.tolist() == arg.tolist()
    torch.testing.assert_close(received.values.cpu(), best, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["scatter", "segment"])
def test_gradient_goes_to_the_first_maximum(name, place):
    values = torch.tensor([[1.0], [3.0], [3.0], [nan], [nan], [7.0]], device=place.device, requires_grad=True)
    if name == "scatter":
        out = pointgrad.scatter(values, torch.tensor([0, 0, 0, 1, 1, -1], device=place.device), 3, "max")
    else:
        out = pointgrad.segment(values, torch.tensor([0, 3, 5, 5, 6], device=place.device), "max")[:3]
    (grad,) = torch.autograd.grad(out, values, torch.tensor([[2.0], [5.0], [11.0]], device=place.device))
    assert grad.flatten().tolist() == [0, 2, 0, 5, 0, 0]
    assert out[2].item() == 0


def test_places_are_adjoint(place):
    """<P x, y> = <x, Pᵀ y> for selecting elements and putting them back."""
    values = torch.randn(2, 30, 4, device=place.device, dtype=torch.float64)
    index = torch.randint(-1, 8, (2, 30), device=place.device)
    arg = pointgrad.scatter(values, index, 9, "min", return_arg=True).arg
    y = torch.randn(2, 9, 4, device=place.device, dtype=torch.float64)
    torch.testing.assert_close((pick_elements(values, arg) * y).sum(), (values * place_elements(y, arg, 30)).sum())


def test_size_is_inferred(place):
    values = torch.ones(4, 1, device=place.device)
    assert pointgrad.scatter(values, torch.tensor([3, -1, 0, 3], device=place.device)).flatten().tolist() == [
        1,
        0,
        0,
        2,
    ]
    assert pointgrad.scatter(values, torch.full((4,), -1, device=place.device)).shape == (0, 1)
    assert pointgrad.scatter(values[:0], torch.empty(0, dtype=torch.int64, device=place.device)).shape == (0, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sums_are_kept_in_float32(dtype, place):
    """A sum of 4096 ones in 16 bits would stop at 2048 or 256; the sum of a mean must not overflow."""
    index = torch.zeros(4096, device=place.device, dtype=torch.int64)
    offsets = torch.tensor([0, 4096], device=place.device)
    ones = torch.ones(4096, 1, device=place.device, dtype=dtype)
    assert pointgrad.scatter(ones, index, 1).item() == 4096
    assert pointgrad.segment(ones, offsets).item() == 4096
    assert pointgrad.histogram(index, 1, ones[:, 0]).item() == 4096
    assert pointgrad.scatter(ones * 60000, index, 1, "mean").item() == (ones * 60000)[0].item()
    assert pointgrad.segment(ones * 60000, offsets, "mean").item() == (ones * 60000)[0].item()


def test_integers_wrap_around(place):
    most = torch.full((2, 1), 2**62, dtype=torch.int64, device=place.device)
    index, offsets = torch.zeros(2, dtype=torch.int64, device=place.device), torch.tensor([0, 2], device=place.device)
    assert pointgrad.scatter(most, index, 1).item() == -(2**63)
    assert pointgrad.segment(most, offsets).item() == -(2**63)


def test_softmax_equals_torch(place):
    logits = torch.randn(40, 3, device=place.device, dtype=torch.float64) * 30
    offsets = torch.tensor([0, 1, 1, 25, 40], device=place.device)
    expected = torch.cat([part.softmax(0) for part in logits.tensor_split(offsets[1:-1].cpu())])
    torch.testing.assert_close(pointgrad.segment_softmax(logits, offsets), expected)


def test_softmax_of_infinities(place):
    column = [[-inf, -inf, 0.0, 1e4, inf, nan, -inf]]
    logits = torch.tensor(column, device=place.device).T.contiguous().requires_grad_()
    offsets = torch.tensor([0, 2, 4, 5, 6, 7], device=place.device)
    out = pointgrad.segment_softmax(logits, offsets)
    torch.testing.assert_close(
        out.detach().cpu().flatten(), torch.tensor([0, 0, 0, 1, nan, nan, 0]), rtol=0, atol=0, equal_nan=True
    )
    (grad,) = torch.autograd.grad(out[:4], logits, torch.randn(4, 1, device=place.device))
    assert grad[:4].isfinite().all()
    assert not grad[:2].any()


def test_exponentials_are_accurate():
    """The C++ polynomial against float64 over its whole range; a segment of two gives exp(x) / (1 + exp(x))."""
    x = torch.linspace(-103, 0, 200_001, dtype=torch.float64).float()
    logits = torch.stack([x, torch.zeros_like(x)], dim=1).reshape(-1, 1)
    with pointgrad.backend("cpu"):
        received = pointgrad.segment_softmax(logits, torch.arange(0, len(logits) + 1, 2))[::2, 0]
    expected = torch.sigmoid(x.double())
    error = (received - expected).abs() / expected.clamp(min=2.0**-126)
    assert error.max() < 4 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_deterministic_mode(reduce, place):
    values = torch.randn(500, 33, device=place.device, requires_grad=True)
    index = torch.randint(0, 5, (500,), device=place.device)
    torch.use_deterministic_algorithms(True)
    try:
        first, *rest = (pointgrad.scatter(values, index, 5, reduce) for _ in range(10))
        (grad,) = torch.autograd.grad(first, values, torch.ones_like(first))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(other, first) for other in rest)
    truth = pointgrad.scatter(values.double(), index, 5, reduce)
    torch.testing.assert_close(first, truth.float(), rtol=1e-5, atol=1e-5)
    assert grad.isfinite().all()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_index_and_any_segments(data):
    """Random shapes and groups of every size on the C++ kernels against NumPy."""
    entries, channels, size = (data.draw(st.integers(0, most)) for most in (300, 5, 40))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    values = torch.randint(-9, 9, (entries, channels), generator=generator).double()
    index = torch.randint(-1, max(size, 1), (entries,), generator=generator).clamp(max=size - 1)
    kept = index >= 0
    expected = np.zeros((size, channels))
    np.add.at(expected, index[kept].numpy(), values[kept].numpy())
    assert pointgrad.scatter(values, index, size).tolist() == expected.tolist()
    best, arg = extremes_by_hand(values, index, size, True)
    received = pointgrad.scatter(values, index, size, "max", return_arg=True)
    assert torch.equal(received.values, best)
    assert torch.equal(received.arg, arg)
    offsets = torch.cat(
        [
            torch.zeros(1, dtype=torch.int64),
            torch.sort(torch.randint(0, entries + 1, (size,), generator=generator)).values,
        ]
    )
    offsets[-1] = entries if size else 0
    if size:
        parts = [values[a:b].sum(0) for a, b in pairwise(offsets.tolist())]
        assert torch.equal(pointgrad.segment(values, offsets), torch.stack(parts))


def test_one_long_segment_on_several_threads():
    """Longer than one piece of work in C++, next to short segments."""
    values = torch.randint(-9, 9, (300_000, 4)).double()
    offsets = torch.tensor([0, 5, 5, 299_990, 300_000])
    for reduce in ("sum", "mean", "max", "min"):
        expected = torch.segment_reduce(values, reduce, offsets=offsets, axis=0, unsafe=True)
        expected[1] = 0
        torch.testing.assert_close(pointgrad.segment(values, offsets, reduce), expected)
    arg = pointgrad.segment(values, offsets, "max", return_arg=True).arg
    assert torch.equal(arg[2], values[5:299_990].argmax(0) + 5)


def test_reduced_by_index_and_gathered_again_is_twice_differentiable(place):
    """The mean of a group is subtracted from its members."""
    values = torch.randn(9, 2, device=place.device, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([0, 1, 0, 2, 2, 2, -1, 1, 0], device=place.device)

    def centred(x):
        return (x - pointgrad.gather(pointgrad.scatter(x, index, 3, "mean"), index)).pow(2)

    assert torch.autograd.gradcheck(centred, values, fast_mode=place.interpreted)
    assert torch.autograd.gradgradcheck(centred, values, fast_mode=place.interpreted)

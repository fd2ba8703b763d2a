"""Properties specific to masked_softmax, aggregate and neighbor_attention; test_contract.py tests the rest."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import pointgrad
from pointgrad import aggregate, masked_softmax, neighbor_attention

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def floats(place, *shape: int, dtype=torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, device=place.device, requires_grad=True)


def neighbors(place, rows: int, *shape: int) -> Tensor:
    return torch.randint(-1, rows, shape, device=place.device)


def assert_same_gradients(received: Tensor, expected: Tensor, sources) -> None:
    upstream = torch.randn_like(expected)
    torch.testing.assert_close(received, expected)
    for actual, desired in zip(
        torch.autograd.grad(received, sources, upstream), torch.autograd.grad(expected, sources, upstream), strict=True
    ):
        torch.testing.assert_close(actual, desired)


@pytest.mark.parametrize(("count", "channels"), [(1, 1), (1, 130), (3, 3), (3, 64), (16, 64), (33, 3), (33, 130)])
def test_aggregate_equals_group_multiply_sum(count, channels, place):
    weights, values = floats(place, 6, count), floats(place, 20, channels)
    index = neighbors(place, 20, 6, count)
    expected = torch.einsum("mk,mkc->mc", weights, pointgrad.group(values, index))
    assert_same_gradients(aggregate(weights, values, index), expected, (weights, values))


def test_one_weight_per_channel_equals_the_channels_first_form(place):
    """The (B, C, M, K) form: group, multiply by weights of the same shape, sum over the neighbors."""
    weights, values = floats(place, 2, 6, 5, 3), floats(place, 2, 6, 9)  # (B, C, M, K), (B, C, N)
    index = torch.randint(0, 9, (2, 5, 3), device=place.device)
    grouped = torch.stack([values[cloud][:, index[cloud]] for cloud in range(2)])
    expected = torch.einsum("bcmk,bcmk->bcm", weights, grouped)
    received = aggregate(weights.permute(0, 2, 3, 1), values.mT, index).mT
    assert_same_gradients(received, expected, (weights, values))


@pytest.mark.parametrize(("groups", "channels"), [(1, 7), (2, 6), (4, 64), (8, 128), (5, 325), (130, 130), (300, 600)])
def test_groups_of_channels_share_a_weight(groups, channels, place):
    weights, values = floats(place, 2, 4, 3, groups), floats(place, 2, 9, channels)
    index = neighbors(place, 9, 2, 4, 3)
    grouped = pointgrad.group(values, index).unflatten(-1, (groups, channels // groups))
    expected = (weights[..., None] * grouped).sum(2).flatten(-2)
    assert_same_gradients(aggregate(weights, values, index), expected, (weights, values))


def test_adjoints(place):
    """Aggregate and its gradients are one trilinear form: <q, A(w, v)> = <v, V(w, q)> = <w, W(q, v)>."""
    weights, values, upstream = floats(place, 3, 7, 4, 2), floats(place, 3, 9, 6), floats(place, 3, 7, 6)
    out = aggregate(weights, values, neighbors(place, 9, 3, 7, 4))
    for_weights, for_values = torch.autograd.grad(out, (weights, values), upstream)
    torch.testing.assert_close((for_weights * weights).sum(), (out * upstream).sum())
    torch.testing.assert_close((for_values * values).sum(), (out * upstream).sum())


def test_third_derivative_of_aggregate(place):
    """Along a line, the square of a bilinear form is a polynomial with a known third derivative."""
    weights, values = floats(place, 3, 2), floats(place, 4, 2)
    index = neighbors(place, 4, 3, 2)
    step = torch.zeros((), dtype=torch.float64, device=place.device, requires_grad=True)
    value = aggregate(step * weights, step * values, index).pow(2).sum()  # step^4 times a constant
    constant = aggregate(weights, values, index).pow(2).sum()
    shifted = torch.autograd.grad(value, step, create_graph=True)[0]
    assert shifted == 0  # at step 0
    step = torch.ones_like(step).requires_grad_()
    slope = aggregate(step * weights, step * values, index).pow(2).sum()
    for factor in (4, 12, 24):
        (slope,) = torch.autograd.grad(slope, step, create_graph=True)
        torch.testing.assert_close(slope, factor * constant)


@pytest.mark.parametrize(("dtype", "count"), [(torch.float16, 2304), (torch.bfloat16, 512)], ids=str)
def test_sums_are_kept_in_float32(dtype, count, place):
    """Sums of ones in 16 bits would stop at 2048 (float16) or 256 (bfloat16)."""
    ones = torch.ones(1, count, device=place.device, dtype=dtype)
    values = torch.ones(2, 1, device=place.device, dtype=dtype, requires_grad=True)
    out = aggregate(ones, values, torch.zeros(1, count, device=place.device, dtype=torch.int64))
    assert out.item() == count
    out.sum().backward()
    assert values.grad.flatten().tolist() == [count, 0]


def test_weights_of_missing_neighbors_are_ignored(place):
    """Weights of missing neighbors may be NaN; their gradient is zero."""
    weights = torch.tensor([[2.0, torch.nan]], device=place.device, requires_grad=True)
    values = torch.tensor([[3.0], [torch.nan]], device=place.device)
    out = aggregate(weights, values, torch.tensor([[0, -1]], device=place.device))
    assert out.item() == 6
    assert torch.autograd.grad(out, weights)[0].tolist() == [[3, 0]]


def test_deterministic_mode(place):
    """Backward passes with many collisions give the same bits."""
    query, key, value = (floats(place, n, 2, 8, dtype=torch.float32) for n in (200, 5, 5))
    index = torch.randint(-1, 5, (200, 4), device=place.device)
    upstream = torch.randn(200, 2, 8, device=place.device)
    torch.use_deterministic_algorithms(True)
    try:
        out = neighbor_attention(query, key, value, index)
        first, *rest = (
            torch.autograd.grad(out, (query, key, value), upstream, retain_graph=True)
            for _ in range(2 if place.interpreted else 20)
        )
    finally:
        torch.use_deterministic_algorithms(False)
    for other in rest:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    truth = torch.autograd.grad(dense_attention(query, key, value, index), (query, key, value), upstream)
    torch.testing.assert_close(first, truth, rtol=1e-4, atol=1e-4)


def dense_attention(query, key, value, index, bias=None, scale=None) -> Tensor:
    """torch's attention to all rows, with a mask that holds the logarithm of each row's weight in the list."""
    listed = torch.nn.functional.one_hot(index + 1, key.shape[0] + 1)[..., 1:].to(query.dtype)  # (M, K, N)
    bias = torch.zeros(*index.shape, 1, dtype=query.dtype, device=query.device) if bias is None else bias
    total = torch.einsum("mkn,mkh->hmn", listed, bias.exp().expand(*index.shape, query.shape[1]))
    mask = torch.where(total > 0, total, 1).log().masked_fill(total == 0, -torch.inf)
    nothing = (index < 0).all(-1)
    mask = torch.where(nothing[:, None], 0, mask)  # attends to everything, and is masked below
    with sdpa_kernel(SDPBackend.MATH):  # the only one that is twice differentiable
        out = torch.nn.functional.scaled_dot_product_attention(
            query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), attn_mask=mask, scale=scale
        )
    return torch.where(nothing[:, None, None], 0, out.transpose(0, 1))


@pytest.mark.parametrize(
    ("centers", "rows", "count", "heads", "depth", "width", "bias"),
    [
        (5, 9, 3, 2, 4, 4, None),
        (4, 40, 33, 1, 3, 7, "each"),
        (6, 7, 1, 3, 16, 8, "shared"),
        (3, 20, 16, 8, 16, 16, "each"),
        (2, 10, 4, 5, 130, 1, "shared"),
        (2, 3, 2, 300, 2, 1, None),
    ],
)
def test_attention_equals_torch_with_a_mask(centers, rows, count, heads, depth, width, bias, place):
    """Includes second derivatives; a neighbor may be listed twice, and a query may have none."""
    shapes = [(centers, heads, depth), (rows, heads, depth), (rows, heads, width)]
    sources = [floats(place, *shape) for shape in shapes]
    index = neighbors(place, rows, centers, count)
    index[1] = -1
    if bias is not None:
        sources.append(floats(place, centers, count, heads if bias == "each" else 1))
    received, expected = (form(*sources[:3], index, *sources[3:]) for form in (neighbor_attention, dense_attention))
    assert not received[1].any()
    torch.testing.assert_close(received, expected)
    upstream = torch.randn_like(expected)
    received, expected = (
        torch.autograd.grad(output, sources, upstream, create_graph=True) for output in (received, expected)
    )
    torch.testing.assert_close(received, expected)
    assert not received[0][1].any()
    again = [torch.randn_like(gradient) for gradient in expected]
    torch.testing.assert_close(
        torch.autograd.grad(received, sources, again), torch.autograd.grad(expected, sources, again)
    )


def test_padded_attention_equals_attention_per_cloud(place):
    query, key, value = floats(place, 3, 4, 2, 5), floats(place, 3, 7, 2, 5), floats(place, 3, 7, 2, 3)
    index, bias = neighbors(place, 7, 3, 4, 6), floats(place, 3, 4, 6, 2)
    clouds = [neighbor_attention(*cloud, scale=0.7) for cloud in zip(query, key, value, index, bias, strict=True)]
    received = neighbor_attention(query, key, value, index, bias, 0.7)
    assert_same_gradients(received, torch.stack(clouds), (query, key, value, bias))


def test_minus_infinity_in_the_bias_masks(place):
    query, key, value = floats(place, 2, 1, 3), floats(place, 4, 1, 3), floats(place, 4, 1, 3)
    index = torch.tensor([[0, 1, 2], [1, 2, 3]], device=place.device)
    bias = torch.zeros(2, 3, 1, dtype=torch.float64, device=place.device)
    bias[0, 1], bias[1] = -torch.inf, -torch.inf
    listed = torch.where(bias[..., 0] < 0, -1, index)
    expected = neighbor_attention(query, key, value, listed)
    assert_same_gradients(neighbor_attention(query, key, value, index, bias), expected, (query, key, value))


@pytest.mark.parametrize("size", [1e4, 1e20])
def test_large_logits(size, place):
    """Equal large logits share the weight, lower ones get zero; nothing overflows, forward or backward."""
    query = torch.full((1, 1, 1), size, device=place.device, requires_grad=True)
    key = torch.tensor([1.0, 1.0, 0.5, -1.0], device=place.device).reshape(4, 1, 1).requires_grad_()
    value = torch.tensor([2.0, 4.0, 100.0, 100.0], device=place.device).reshape(4, 1, 1).requires_grad_()
    out = neighbor_attention(query, key, value, torch.tensor([[0, 1, 2, 3]], device=place.device))
    assert out.item() == 3
    for_query, for_key, for_value = torch.autograd.grad(out, (query, key, value))
    assert for_query.item() == 0
    torch.testing.assert_close(for_key.flatten() / size, torch.tensor([-0.5, 0.5, 0, 0], device=place.device))
    assert for_value.flatten().tolist() == [0.5, 0.5, 0, 0]


@pytest.mark.parametrize("wanted", range(4))
def test_gradient_of_one_input_alone(wanted, place):
    """First and second derivatives equal those computed for all inputs together."""
    shapes = [(3, 2, 2), (4, 2, 2), (4, 2, 3), (3, 5, 2)]
    sources = [floats(place, *shape) for shape in shapes]
    index = neighbors(place, 4, 3, 5)
    alone = [value if number == wanted else value.detach() for number, value in enumerate(sources)]
    upstream = torch.randn(3, 2, 3, dtype=torch.float64, device=place.device)
    again = torch.randn(shapes[wanted], dtype=torch.float64, device=place.device)
    results = []
    for query, key, value, bias in (alone, sources):
        out = neighbor_attention(query, key, value, index, bias)
        (first,) = torch.autograd.grad(out, sources[wanted], upstream, create_graph=True)
        results.append((first, *torch.autograd.grad(first, sources[wanted], again)))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_takes_the_widest(dtype, place):
    """Mixed dtypes as in a network: 16-bit queries from a linear layer, a float32 bias from positions."""
    query, key = (torch.randn(4, 2, 8, device=place.device).to(dtype).requires_grad_() for _ in range(2))
    index, bias = neighbors(place, 4, 4, 3), torch.randn(4, 3, 2, device=place.device)
    with torch.autocast(place.device, torch.bfloat16):
        out = neighbor_attention(query, key, key, index, bias)
        summed = aggregate(bias, query.flatten(1), index)
    assert out.dtype == summed.dtype == torch.float32
    torch.testing.assert_close(out, neighbor_attention(query.float(), key.float(), key.float(), index, bias))
    out.sum().backward()
    assert query.grad.dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masked_softmax_equals_softmax_of_the_kept_logits(dtype, place):
    logits = torch.randn(5, 9, device=place.device, dtype=dtype, requires_grad=True)
    mask = torch.rand(5, 9, device=place.device) < 0.5
    mask[2] = False
    out = masked_softmax(logits, mask)
    upstream = torch.randn_like(out)
    (gradient,) = torch.autograd.grad(out, logits, upstream)
    for row in range(5):
        left = logits[row, mask[row]].detach().requires_grad_()
        expected = torch.softmax(left, 0)
        torch.testing.assert_close(out[row, mask[row]], expected)
        if left.numel():
            (wanted,) = torch.autograd.grad(expected, left, upstream[row, mask[row]])
            torch.testing.assert_close(gradient[row, mask[row]], wanted, atol=torch.finfo(dtype).eps, rtol=1e-2)
    assert not out[~mask].any()
    assert not gradient[~mask].any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masked_softmax_of_extreme_logits(dtype, place):
    most = min(torch.finfo(dtype).max, 1e20)
    rows = [[most, most, -most], [-most, -most, most], [-torch.inf] * 3, [-torch.inf, 0, 0], [torch.nan, 0, 0]]
    logits = torch.tensor(rows, dtype=dtype, device=place.device, requires_grad=True)
    mask = torch.tensor([[True, True, True]] * 4 + [[False, True, True]], device=place.device)
    mask[1, 2] = False
    out = masked_softmax(logits, mask)
    expected = [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]]
    assert out.tolist() == expected
    upstream = torch.tensor([1.0, 2.0, torch.inf], dtype=dtype, device=place.device).expand(5, 3).clone()
    upstream[mask[:, 2], 2] = 3
    (gradient,) = torch.autograd.grad(out, logits, upstream)
    quarter = [[-0.25, 0.25, 0], [-0.25, 0.25, 0], [0, 0, 0], [0, -0.25, 0.25], [0, -0.25, 0.25]]
    assert gradient.tolist() == quarter


def test_missing_neighbors_get_no_gradient_beside_an_overflow(place):
    """Found by fuzzing: a weight of zero was multiplied by an infinite sum."""
    largest = torch.finfo(torch.float32).max
    value = torch.tensor([largest, -0.3 * largest, -largest], device=place.device).reshape(1, 1, 3)
    bias = torch.zeros(1, 2, 1, device=place.device, requires_grad=True)
    empty, index = torch.zeros(1, 1, 0, device=place.device), torch.tensor([[0, -1]], device=place.device)
    out = neighbor_attention(empty, empty, value, index, bias)
    (grad,) = torch.autograd.grad(out, bias, torch.tensor([[[1.0, 2.0, -3.0]]], device=place.device))
    assert grad[0, 1, 0] == 0


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_infinite_values_make_the_query_gradient_nan(poison, place):
    """Found by fuzzing: infinity minus infinity was split over two sums, and some of them stayed infinite.

    The slope of that neighbor is NaN, and it is multiplied by its key in every direction.
    """
    query, key = torch.randn(3, 1, 6, device=place.device), torch.randn(2, 1, 6, device=place.device)
    value = torch.tensor([[1.0, poison], [-0.5, 2.0]], device=place.device).reshape(2, 1, 2)
    index = torch.tensor([[0, 1], [1, 1], [1, -1]], device=place.device)
    query.requires_grad_()
    (grad,) = torch.autograd.grad(neighbor_attention(query, key, value, index).sum(), query)
    assert grad[0].isnan().all()
    torch.testing.assert_close(grad[1:], torch.zeros_like(grad[1:]))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_masked_logits_get_no_gradient_beside_a_nan(poison, place):
    logits = torch.tensor([poison, 1.0, 2.0], device=place.device, requires_grad=True)
    mask = torch.tensor([True, True, False], device=place.device)
    (grad,) = torch.autograd.grad(masked_softmax(logits, mask).sum(), logits)
    assert grad[2] == 0


@pytest.mark.parametrize("shape", [(1, 4, 1), (4, 5), (5,), (3, 1, 5), ()])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_masked_softmax_broadcasts_its_mask(shape, dim, place):
    logits = torch.randn(3, 4, 5, device=place.device)
    mask = torch.rand(shape, device=place.device) < 0.6
    assert torch.equal(masked_softmax(logits, mask, dim), masked_softmax(logits, mask.expand(3, 4, 5), dim))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_sizes(data):
    """C++ against the reference, including size zero and gradients."""
    size = {name: data.draw(st.integers(0, 6), name) for name in ("rows", "centers", "count", "depth", "width")}
    heads, batch = data.draw(st.integers(1, 5), "heads"), data.draw(st.integers(-1, 3), "batch")
    torch.manual_seed(data.draw(st.integers(0, 1000), "seed"))
    lead = () if batch < 0 else (batch,)

    def draw(*shape):
        return torch.randn(*lead, *shape, dtype=torch.float64, requires_grad=True)

    index = torch.randint(-1, size["rows"], (*lead, size["centers"], size["count"]))
    query, key = draw(size["centers"], heads, size["depth"]), draw(size["rows"], heads, size["depth"])
    value, bias = draw(size["rows"], heads, size["width"]), draw(size["centers"], size["count"], heads)
    sources = (query, key, value, bias)
    results = []
    for backend in ("cpu", "reference"):
        with pointgrad.backend(backend):
            attended = neighbor_attention(query, key, value, index, bias)
            summed = aggregate(bias, value.flatten(-2), index)
            torch.manual_seed(5)
            results.append((attended, summed))
            results.append(torch.autograd.grad(attended, sources, torch.randn_like(attended)))
            results.append(torch.autograd.grad(summed, (value, bias), torch.randn_like(summed)))
    torch.testing.assert_close(results[:3], results[3:])

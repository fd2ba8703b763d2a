"""Attention within patches against torch, patch by patch, and rotary embedding against rotation matrices."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pointgrad
from pointgrad import patch_attention, patch_index, rotary_embedding

SIZES = [(5, 0, 7, 1, 12, 3), (1,), (0,), (), (13,), (8, 8), (0, 0, 9)]


def clouds(sizes):
    """A random order of each packed cloud, and the offsets."""
    begin = [0, *itertools.accumulate(sizes)]
    orders = [torch.randperm(size) + first for size, first in zip(sizes, begin[:-1], strict=True)]
    return torch.cat([torch.zeros(0, dtype=torch.int64), *orders]), torch.tensor(begin)


def patches(size, patch):
    """The places of the queries and of the keys of each patch of a cloud, as Point Transformer V3 pads them.

    The places are filled up to whole patches: each missing place repeats the one a patch before.
    """
    if size <= patch:
        return [(list(range(size)), list(range(size)))] if size else []
    places = list(range(size))
    while len(places) % patch:
        places.append(places[len(places) - patch])
    windows = [places[first : first + patch] for first in range(0, len(places), patch)]
    return [([p for p in window if p // patch == number], window) for number, window in enumerate(windows)]


def looped(query, key, value, order, offsets, patch, scale=None, biases=None):
    """torch's attention, patch by patch."""
    out = 0 * (query + key + value)
    for begin, end in itertools.pairwise(offsets.tolist()):
        for places, window in patches(end - begin, patch):
            at, of = (order[begin + torch.tensor(each)] for each in (places, window))
            heads = (rows.transpose(0, 1) for rows in (query[at], key[of], value[of]))
            mask = None if biases is None else biases[at][:, of].permute(2, 0, 1)
            out = out.index_put((at,), F.scaled_dot_product_attention(*heads, mask, scale=scale).transpose(0, 1))
    return out


def with_derivatives(call, sources):
    """The result, and gradients under a fixed upstream gradient."""
    out = call(*sources)
    upstream = torch.linspace(-1, 1, max(out.numel(), 1), dtype=out.dtype)[: out.numel()].reshape(out.shape)
    return [out, *torch.autograd.grad(out, sources, upstream)]


@pytest.mark.parametrize("patch", [1, 3, 4, 20])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_equals_attention_of_each_patch(sizes, patch):
    order, offsets = clouds(sizes)
    sources = [torch.randn(len(order), 2, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    expected = with_derivatives(lambda *rows: looped(*rows, order, offsets, patch, 0.7), sources)
    for backend in ("reference", "cpu"):
        with pointgrad.backend(backend):
            received = with_derivatives(
                lambda *rows: patch_attention(*rows, order, patch, offsets=offsets, scale=0.7), sources
            )
        torch.testing.assert_close(received, expected)


def test_padded_clouds_are_packed_clouds():
    sizes, patch = (5, 0, 9, 12), 4
    order, offsets = clouds(sizes)
    rows = [torch.randn(len(order), 2, 3, dtype=torch.float64) for _ in range(3)]
    padded = [torch.full((len(sizes), 13, 2, 3), torch.nan, dtype=torch.float64) for _ in range(3)]
    places = torch.randint(-9, 99, (len(sizes), 13))  # entries beyond the lengths are ignored
    for cloud, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
        places[cloud, : end - begin] = order[begin:end] - begin
        for to, source in zip(padded, rows, strict=True):
            to[cloud, : end - begin] = source[begin:end]
    out = patch_attention(*padded, places, patch, lengths=torch.tensor(sizes))
    index, inverse = patch_index(places, patch, lengths=torch.tensor(sizes))
    expected = patch_attention(*rows, order, patch, offsets=offsets)
    assert index.shape == (4, 4, 4)
    for cloud, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
        torch.testing.assert_close(out[cloud, : end - begin], expected[begin:end])
        assert out[cloud, end - begin :].eq(0).all()
        assert index[cloud].flatten()[inverse[cloud, : end - begin]].equal(torch.arange(end - begin))
        assert inverse[cloud, end - begin :].eq(-1).all()


@pytest.mark.parametrize("patch", [1, 3, 4, 20])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_index_lists_the_patches(sizes, patch):
    order, offsets = clouds(sizes)
    index, inverse = patch_index(order, patch, offsets=offsets)
    assert index.shape == (len(order) // patch + len(sizes), patch)
    expected = {}
    for cloud, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
        for number, (places, window) in enumerate(patches(end - begin, patch)):
            slot = begin // patch + cloud + number
            expected[slot] = sorted(order[begin + torch.tensor(window)].tolist())
            own = order[begin + torch.tensor(places)]
            assert (inverse[own] // patch).eq(slot).all()
    for slot, rows in enumerate(index.tolist()):
        assert sorted(row for row in rows if row >= 0) == expected.get(slot, [])
    assert index.flatten()[inverse].equal(torch.arange(len(order)))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_bias_by_differences_of_coordinates(backend):
    bound, (order, offsets) = 2, clouds((7, 4))
    coordinates = torch.randint(-4, 5, (11, 3))
    sources = [torch.randn(11, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    sources.append(torch.randn(3 * (2 * bound + 1), 2, dtype=torch.float64, requires_grad=True))

    def expected(query, key, value, table):
        axes = table.unflatten(0, (3, 2 * bound + 1))
        rows = [
            [sum(axes[a, max(-bound, min(bound, p[a] - q[a])) + bound] for a in range(3)) for q in coordinates.tolist()]
            for p in coordinates.tolist()
        ]
        biases = torch.stack([torch.stack(row) for row in rows])
        return looped(query, key, value, order, offsets, 3, biases=biases)

    def received(query, key, value, table):
        bias = {"coordinates": coordinates, "bias_table": table}
        return patch_attention(query, key, value, order, 3, offsets=offsets, **bias)

    with pointgrad.backend(backend):
        found = with_derivatives(received, sources)
    torch.testing.assert_close(found, with_derivatives(expected, sources))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_bias_without_clouds(backend):
    sources = [torch.zeros(0, 2, 3, requires_grad=True) for _ in range(3)]
    table, none = torch.ones(9, 2, requires_grad=True), torch.zeros(0, 3, dtype=torch.int64)
    with pointgrad.backend(backend):
        out = patch_attention(
            *sources, none[:, 0], 4, offsets=torch.zeros(1, dtype=torch.int64), coordinates=none, bias_table=table
        )
        assert torch.autograd.grad(out.sum(), table)[0].eq(0).all()


def test_views_of_one_projection():
    """Query, key and value are usually slices of the result of one linear layer."""
    order, offsets = clouds((9, 6))
    together = torch.randn(15, 3, 2, 4, requires_grad=True)
    out = patch_attention(*together.unbind(1), order, 4, offsets=offsets)
    parts = [part.detach().clone().requires_grad_() for part in together.unbind(1)]
    expected = looped(*parts, order, offsets, 4)
    torch.testing.assert_close(out, expected)
    (grad,) = torch.autograd.grad(out.square().sum(), together)
    torch.testing.assert_close(grad, torch.stack(torch.autograd.grad(expected.square().sum(), parts), 1))


def test_kernels_of_large_clouds():
    """More queries and keys than one tile of the C++ kernels, and head sizes that do not fill a vector."""
    order, offsets = clouds((150, 40))
    for depth in (3, 16, 33):
        sources = [torch.randn(190, 2, depth, dtype=torch.float64, requires_grad=True) for _ in range(3)]
        received = with_derivatives(lambda *rows: patch_attention(*rows, order, 67, offsets=offsets), sources)
        torch.testing.assert_close(received, with_derivatives(lambda *r: looped(*r, order, offsets, 67), sources))


def test_nan_stays_in_its_patch():
    query, key, value = torch.randn(3, 12, 1, 2)
    key[1] = torch.nan
    out = patch_attention(query, key, value, torch.arange(12), 5)
    assert out[:5].isnan().all()
    assert out[5:].isfinite().all()


def turned(features: Tensor, positions: Tensor, base: float) -> Tensor:
    """Each pair of channels multiplied by a rotation matrix."""
    out, pairs = features.clone(), features.shape[-1] // 6
    for n, h, axis, q in itertools.product(range(len(features)), range(features.shape[1]), range(3), range(pairs)):
        angle = positions[n, axis].item() / base ** (q / pairs)
        at = [2 * axis * pairs + q, 2 * axis * pairs + pairs + q]
        matrix = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        out[n, h, at] = matrix.to(out.dtype) @ features[n, h, at]
    return out


def test_rotary_embedding_rotates_pairs():
    features, positions = torch.randn(4, 2, 18, dtype=torch.float64), torch.randint(0, 30, (4, 3))
    torch.testing.assert_close(
        rotary_embedding(features, positions, 50.0), turned(features, positions, 50.0), rtol=1e-6, atol=1e-6
    )
    padded = rotary_embedding(features.unflatten(0, (2, 2)), positions.unflatten(0, (2, 2)).int(), 50.0)
    torch.testing.assert_close(padded.flatten(0, 1), rotary_embedding(features, positions, 50.0))


def test_rotated_products_depend_on_differences_of_positions():
    query, key = torch.randn(2, 5, 1, 24, dtype=torch.float64)
    first, second, shift = torch.randn(3, 5, 3, dtype=torch.float64)
    products = [
        (rotary_embedding(query, first + move) * rotary_embedding(key, second + move)).sum(-1) for move in (0, shift)
    ]
    torch.testing.assert_close(products[0], products[1])

"""Kernel maps against a search in a dictionary."""

import itertools
import math

import pytest
import torch

import pointgrad
from pointgrad import sparse_conv, sparse_pool, strided_map, submanifold_map, transposed_map
from tests.ops.test_sparse import occupied


def by_dictionary(coordinates, outputs, kernel, stride, padding, dilation):
    """Sources of one cloud: the first of equal voxels counts, the others have no sources."""
    rows = {}
    for row, voxel in enumerate(coordinates.tolist()):
        rows.setdefault(tuple(voxel), row)
    seen, table = set(), []
    for output in map(tuple, outputs.tolist()):
        begin = [o * s - p for o, s, p in zip(output, stride, padding, strict=True)]
        reads = [
            rows.get(tuple(b + k * d for b, k, d in zip(begin, ks, dilation, strict=True)), -1)
            for ks in itertools.product(*map(range, kernel))
        ]
        table.append([-1] * len(reads) if output in seen else reads)
        seen.add(output)
    return torch.tensor(table, dtype=torch.int32).reshape(len(outputs), math.prod(kernel))


def assert_inverse_tables(found):
    """Targets list the same pairs as sources, by input."""
    expected = torch.full((len(found.input_coordinates), found.sources.shape[1]), -1, dtype=torch.int32)
    for row, reads in enumerate(found.sources.tolist()):
        for position, source in enumerate(reads):
            if source >= 0:
                assert expected[source, position] == -1  # one output reads an input at a position
                expected[source, position] = row
    targets = found.sources.flip(1) if found.targets is None else found.targets
    torch.testing.assert_close(targets, expected, rtol=0, atol=0)


@pytest.mark.parametrize("shift", [0, 2**31 - 3, 1 - 2**31])
@pytest.mark.parametrize(("kernel", "dilation"), [((3, 3, 3), (1, 1, 1)), ((2, 1, 4), (1, 3, 1))])
def test_submanifold_map_by_dictionary(kernel, dilation, shift, place):
    """Many duplicates, negative coordinates, and the ends of int32."""
    coordinates = torch.randint(-1, 3, (40, 3)) + shift
    found = submanifold_map(coordinates.to(place.device), kernel, dilation=dilation)
    padding = [k // 2 * d for k, d in zip(kernel, dilation, strict=True)]
    expected = by_dictionary(coordinates, coordinates, kernel, (1, 1, 1), padding, dilation)
    assert torch.equal(found.sources.cpu(), expected)
    if place.device == "cpu":
        assert_inverse_tables(found)


@pytest.mark.parametrize("kind", ["strided", "transposed"])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [((2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1)), ((3, 2, 1), (1, 2, 3), (1, -2, 4), (2, 1, 1))],
)
def test_computed_outputs(kind, kernel, stride, padding, dilation):
    """The outputs are all voxels that read an input, sorted, and each cloud's are its own."""
    coordinates, offsets = torch.randint(-3, 4, (30, 3)), torch.tensor([0, 12, 12, 30])
    build = strided_map if kind == "strided" else transposed_map
    found = build(coordinates, kernel, stride=stride, padding=padding, dilation=dilation, offsets=offsets)
    for (begin, end), (first, last) in zip(
        itertools.pairwise(offsets.tolist()), itertools.pairwise(found.offsets.tolist()), strict=True
    ):
        own, outputs = coordinates[begin:end], found.coordinates[first:last]
        fine, coarse = (own, outputs) if kind == "strided" else (outputs, own)
        table = by_dictionary(fine, coarse, kernel, stride, padding, dilation)
        mine = found if kind == "strided" else found.inverse()
        rows, shift = ((first, last), begin) if kind == "strided" else ((begin, end), first)
        received = mine.sources[slice(*rows)]
        assert torch.equal(torch.where(received >= 0, received - shift, -1), table)
        wanted = set()
        for voxel in own.tolist():
            for ks in itertools.product(*map(range, kernel)):
                parts = list(zip(voxel, stride, padding, ks, dilation, strict=True))
                if kind == "transposed":
                    wanted.add(tuple(v * s - p + k * d for v, s, p, k, d in parts))
                elif all((v + p - k * d) % s == 0 for v, s, p, k, d in parts):
                    wanted.add(tuple((v + p - k * d) // s for v, s, p, k, d in parts))
        assert outputs.tolist() == [list(voxel) for voxel in sorted(wanted)]
    assert_inverse_tables(found)


@pytest.mark.parametrize(
    ("rows", "size"), [(0, (2, 3, 3)), (1, (2, 3, 3)), (64, (3, 3, 3)), (300, (3, 2, 6)), (90, (5, 5, 3))]
)
def test_schedule(rows, size):
    """Rows are in the order of Gray codes, far positions first; each tile has the bits of its rows."""
    found = submanifold_map(torch.randint(0, 9, (rows, 3)), size)
    volume = math.prod(size)
    center = [(number - 1) / 2 for number in size]
    near = sorted(
        range(volume), key=lambda k: math.dist(center, (k // size[2] // size[1], k // size[2] % size[1], k % size[2]))
    )
    for table, schedule in ((found.sources, found.source_schedule), (found.targets, found.target_schedule)):
        if table is None:
            continue
        order, masks = schedule.split([rows, -(-rows // 64) * -(-volume // 32)])
        assert sorted(order.tolist()) == list(range(rows))
        present = (table[order.long()] >= 0).tolist()
        for tile, words in enumerate(masks.reshape(-1, -(-volume // 32)).tolist()):
            used = [any(column) for column in zip(*present[64 * tile : 64 * tile + 64], strict=True)]
            assert [words[k // 32] >> k % 32 & 1 for k in range(volume)] == used
        if volume > 62:
            continue
        # Of adjacent rows, the code of the first comes before that of the second, or they are equal and in order.
        for (one, other), (row, following) in zip(
            itertools.pairwise(present), itertools.pairwise(order.tolist()), strict=True
        ):
            differing = [k for k in reversed(near) if one[k] != other[k]]
            if differing:
                above = sum(one[k] for k in near[near.index(differing[0]) + 1 :])
                assert one[differing[0]] == (above % 2 == 1)
            else:
                assert row < following


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [(2, 2, 0, 1), ((3, 4, 6), (3, 4, 6), 0, 1), (3, 2, 1, 1), ((1, 2, 3), (2, 1, 1), (0, -3, 2), (1, 3, 2))],
    ids=str,
)
@pytest.mark.parametrize("layout", ["packed", "padded", "shape", "outputs"])
def test_strided_map_equals_reference(layout, kernel, stride, padding, dilation, kernel_place):
    """All tables and schedules: with duplicates, clouds of any size and the ends of int32, also with given outputs."""
    coordinates = torch.randint(-5, 6, (130, 3))
    coordinates[3:6] = coordinates[0]
    highest, lowest = (2**31 - 1, -(2**31)) if padding == 0 else (2**31 - 9, 9 - 2**31)
    coordinates[7], coordinates[60:62] = highest, lowest
    settings = {"stride": stride, "padding": padding, "dilation": dilation}
    sizes = {"offsets": torch.tensor([0, 1, 1, 90, 130])}
    if layout == "shape":
        settings["shape"] = (2, 1, 2)
    if layout == "padded":
        coordinates, sizes = coordinates.reshape(2, 65, 3), {"lengths": torch.tensor([65, 20])}
    if layout == "outputs":
        sizes |= {"outputs": torch.randint(-3, 3, (70, 3)), "output_offsets": torch.tensor([0, 30, 30, 69, 70])}
    sizes = {name: value.to(kernel_place.device) for name, value in sizes.items()}
    made = []
    for name in (kernel_place.backend, "reference"):
        with pointgrad.backend(name):
            made.append(strided_map(coordinates.to(kernel_place.device), kernel, **settings, **sizes))
    for received, desired in zip(*made, strict=True):
        assert torch.equal(received, desired) if torch.is_tensor(desired) else received == desired
    if layout == "packed":
        assert int((made[0].sources >= 0).sum()) > 50


def test_padded_equals_packed(place):
    coordinates, offsets = occupied(10, batch=3)
    lengths = offsets.diff()
    lengths[2] = 0
    padded = torch.full((3, 12, 3), 1)  # rows beyond a length are voxels too, and do not count
    features, weight, bias = torch.randn(3, 12, 4), torch.randn(8, 2, 6), torch.randn(6)
    for cloud in range(3):
        padded[cloud, : lengths[cloud]] = coordinates[offsets[cloud] : offsets[cloud] + lengths[cloud]]
    inside = torch.arange(12) < lengths[:, None]
    packed, cuts = padded[inside], torch.tensor([0, *lengths.cumsum(0)])
    on = lambda *values: [value.to(place.device) for value in values]  # noqa: E731
    padded, lengths, packed, cuts, features, weight, bias, inside = on(
        padded, lengths, packed, cuts, features, weight, bias, inside
    )
    for build, settings in ((submanifold_map, {}), (strided_map, {"stride": 2})):
        one, other = (
            build(padded, 2, lengths=lengths, **settings),
            build(packed, 2, offsets=cuts, **settings),
        )
        sizes = other.offsets.diff()
        assert torch.equal(one.lengths, sizes)
        mask = torch.arange(one.coordinates.shape[1], device=place.device) < sizes[:, None]
        assert torch.equal(one.coordinates[mask], other.coordinates)
        convolved = sparse_conv(features, weight, one, bias=bias, groups=2)
        assert not convolved[~mask].any()
        torch.testing.assert_close(convolved[mask], sparse_conv(features[inside], weight, other, bias=bias, groups=2))
        for reduce in ("max", "mean", "sum"):
            torch.testing.assert_close(
                sparse_pool(features, one, reduce)[mask], sparse_pool(features[inside], other, reduce)
            )

"""Sizes beyond the samples of the catalogue: blocks of channels, segments of rows, the number of threads."""

import pytest
import torch

from pointgrad.ops.sparse import cpu, reference
from pointgrad.ops.sums import sum_dtype

LIMIT = 2**31


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def random_table(rows, volume, inputs, missing=0.5):
    table = torch.randint(0, inputs, (rows, volume), dtype=torch.int32)
    return torch.where(torch.rand(rows, volume) < missing, -1, table)


def tables(rows, volume, inputs):
    """A kernel map that is passed to kernels: the schedules are not read on a CPU."""
    nothing = torch.empty(0, dtype=torch.int32)
    return random_table(rows, volume, inputs), nothing, nothing, nothing


def assert_rounded(operator, left, right, *rest, terms):
    """Compare with the reference in float64, within the bound of rounding errors of a sum of this many products."""
    actual = getattr(cpu, operator)(left, right, *rest)
    exact = getattr(reference, operator)
    desired = exact(left.double(), right.double(), *rest)
    magnitude = exact(left.double().abs(), right.double().abs(), *rest)
    own, wide = torch.finfo(left.dtype), torch.finfo(sum_dtype(left.dtype))
    bound = terms * wide.eps * magnitude + own.eps * (desired.abs() + own.smallest_normal)
    assert actual.dtype == left.dtype
    assert bool(((actual.double() - desired).abs() <= bound).all())


@pytest.mark.parametrize("transposed", [False, True], ids=["contiguous", "transposed"])
@pytest.mark.parametrize(
    ("inputs", "outputs", "groups"), [(130, 197, 1), (64, 64, 1), (200, 3, 1), (1, 9, 5), (7, 1, 4), (33, 17, 3)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_blocks_of_channels(dtype, inputs, outputs, groups, transposed):
    map = tables(150, 4, 90)
    features = torch.randn(90, groups * inputs).to(dtype)
    weight = torch.randn(4, inputs, groups * outputs).to(dtype)
    grad = torch.randn(150, groups * outputs).to(dtype)
    if transposed:
        weight = weight.transpose(1, 2).contiguous().transpose(1, 2)
    for flip in (False, True):
        assert_rounded("sparse_conv", features, weight, *map, flip, groups, terms=4 * inputs)
        assert_rounded("sparse_conv_weight", features, grad, *map, flip, groups, terms=150)


@pytest.mark.parametrize(("channels", "groups"), [(5, 1), (6, 3), (4, 4)], ids=["dense", "groups", "depthwise"])
def test_same_bits_for_any_number_of_threads(channels, groups):
    rows = 40_000  # the gradient by the weight is summed in several segments
    map = tables(rows, 2, rows)
    features, grad = torch.randn(rows, channels), torch.randn(rows, channels)
    weight = torch.randn(2, channels // groups, channels)
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        out = cpu.sparse_conv(features, weight, *map, False, groups)
        results.append((out, cpu.sparse_conv_weight(features, grad, *map, False, groups)))
    for result in results[1:]:
        assert all(torch.equal(actual, desired) for actual, desired in zip(result, results[0], strict=True))
    assert_rounded("sparse_conv_weight", features, grad, *map, False, groups, terms=rows)


def test_a_feature_that_is_not_finite_stays_in_its_group_and_rows():
    features = torch.ones(3, 4)
    features[1, 0] = torch.nan
    sources = torch.tensor([[0], [1], [-1], [2]], dtype=torch.int32)
    nothing = torch.empty(0, dtype=torch.int32)
    for groups in (1, 2, 4):
        weight = torch.ones(1, 4 // groups, 4)
        out = cpu.sparse_conv(features, weight, sources, nothing, None, None, False, groups)
        hit = torch.zeros(4, 4, dtype=torch.bool)
        hit[1, : 4 // groups] = True
        assert torch.equal(out.isnan(), hit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 48), (61, 130), (130, 197)])
def test_zeros_are_skipped(dtype, inputs, outputs):
    """After a ReLU, products with zero are not computed. The others, also those with NaN, are."""
    map = tables(150, 4, 90)
    features = torch.randn(90, inputs).to(dtype).relu()
    weight = torch.randn(4, inputs, outputs).to(dtype)
    assert_rounded("sparse_conv", features, weight, *map, False, 1, terms=4 * inputs)
    # Products with negative zeros change no bit of a sum.
    assert torch.equal(
        cpu.sparse_conv(features, weight, *map, True, 1),
        cpu.sparse_conv(torch.where(features == 0, -features, features), weight, *map, True, 1),
    )
    features[3, 0], features[7] = torch.nan, 0
    read = (map[0] == 3).any(1, keepdim=True)
    assert torch.equal(cpu.sparse_conv(features, weight, *map, False, 1).isnan(), read.expand(-1, outputs))
    weight[1, 2, 4], weight[2, 0, 0] = torch.inf, torch.nan
    expected = reference.sparse_conv(features.double(), weight.double(), *map, False, 1)
    assert torch.equal(cpu.sparse_conv(features, weight, *map, False, 1).isfinite(), expected.isfinite())


KERNELS = {
    "cube": [(3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)],
    "even": [(2, 4, 1), (1, 1, 1), (0, 2, 0), (1, 1, 1)],
    "dilated": [(3, 3, 3), (1, 1, 1), (5, 2, 9), (5, 2, 9)],
    "more positions than bits of a key": [(9, 3, 5), (1, 1, 1), (4, 1, 2), (1, 1, 1)],
    "strided": [(3, 2, 3), (2, 3, 1), (1, 0, -1), (1, 1, 2)],
}


@pytest.mark.parametrize("spread", [2, 9, 40, LIMIT - 1])
@pytest.mark.parametrize("shape", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("same", [True, False], ids=["submanifold", "outputs"])
def test_kernel_table_equals_reference(shape, spread, same):
    kernel, stride, padding, dilation = (list(numbers) for numbers in shape)
    # 3000 voxels need more blocks than the first hash table has; few different ones occur several times.
    coordinates = torch.randint(-spread, spread + 1, (3000, 3))
    coordinates[::5] = coordinates[1::5] + torch.randint(-2, 3, (600, 3))
    coordinates.clamp_(-LIMIT, LIMIT - 1)
    offsets = torch.tensor([0, 1000, 1000, 3000])
    if same:
        args = (coordinates, offsets, None, None, None, kernel, [1, 1, 1], padding, dilation)
    else:
        outputs = torch.div(coordinates[::4], torch.tensor(stride), rounding_mode="floor")
        of_outputs = (outputs, torch.tensor([0, 250, 300, 750]), None)
        args = (coordinates, offsets, *of_outputs, kernel, stride, padding, dilation)
    desired = reference.kernel_table(*args)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        for actual, expected in zip(cpu.kernel_table(*args), desired, strict=True):
            assert actual.dtype == expected.dtype
            assert torch.equal(actual, expected)

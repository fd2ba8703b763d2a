"""Properties specific to gather and group; test_contract.py tests the rest."""

import pytest
import torch

import pointgrad

INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_features(dtype, place):
    features = torch.randint(0, 2, (9, 5)).to(place.device, dtype)
    index = torch.randint(0, 9, (20,), device=place.device)
    picked = pointgrad.gather(features, index)
    assert picked.dtype == dtype
    assert torch.equal(picked, features[index])
    assert not pointgrad.gather(features, torch.tensor([-1], device=place.device)).any()


def test_equals_indexing_and_its_gradient(place):
    features = torch.randn(50, 7, device=place.device, dtype=torch.float64, requires_grad=True)
    index = torch.randint(0, 50, (30, 4), device=place.device)
    upstream = torch.randn(30, 4, 7, device=place.device, dtype=torch.float64)
    (expected,) = torch.autograd.grad(features[index], features, upstream)
    (received,) = torch.autograd.grad(pointgrad.group(features, index), features, upstream)
    torch.testing.assert_close(received, expected)


def test_adjoint(place):
    """<A x, y> = <x, A^T y>: backward is the transpose of forward."""
    x = torch.randn(3, 20, 6, device=place.device, dtype=torch.float64, requires_grad=True)
    index = torch.randint(-1, 20, (3, 50), device=place.device)
    y = torch.randn(3, 50, 6, device=place.device, dtype=torch.float64)
    forward = pointgrad.gather(x, index)
    (transposed,) = torch.autograd.grad(forward, x, y)
    torch.testing.assert_close((forward * y).sum(), (x * transposed).sum())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sums_are_kept_in_float32(dtype, place):
    """A sum of 4096 ones in 16 bits would stop at 2048 (float16) or 256 (bfloat16)."""
    features = torch.zeros(2, 1, device=place.device, dtype=dtype, requires_grad=True)
    index = torch.zeros(4096, device=place.device, dtype=torch.int64)
    pointgrad.gather(features, index).backward(torch.ones(4096, 1, device=place.device, dtype=dtype))
    assert features.grad.flatten().tolist() == [4096, 0]


def test_relative_coordinates(place):
    points = torch.tensor([[0.0, 0, 0], [1, 2, 3]], device=place.device)
    features = torch.tensor([[10.0], [20.0]], device=place.device)
    index = torch.tensor([[1, -1]], device=place.device)
    centers = torch.tensor([[1.0, 1, 1]], device=place.device)
    grouped = pointgrad.group(features, index, points=points, centers=centers)
    assert grouped.tolist() == [[[0, 1, 2, 20], [0, 0, 0, 0]]]


def test_deterministic_mode(place):
    """Twenty backward passes with many collisions give the same bits."""
    features = torch.randn(5, 33, device=place.device, requires_grad=True)
    index = torch.randint(0, 5, (500,), device=place.device)
    upstream = torch.randn(500, 33, device=place.device)
    torch.use_deterministic_algorithms(True)
    try:
        output = pointgrad.gather(features, index)
        first, *rest = (torch.autograd.grad(output, features, upstream, retain_graph=True)[0] for _ in range(20))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(other, first) for other in rest)
    truth = torch.zeros(5, 33, device=place.device, dtype=torch.float64).index_add_(0, index, upstream.double())
    torch.testing.assert_close(first, truth.float())


def test_index_out_of_range_on_a_gpu_counts_as_missing():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    features = torch.ones(3, 2, device="cuda", requires_grad=True)
    picked = pointgrad.gather(features, torch.tensor([0, 3, -2, 2**40], device="cuda"))
    assert picked[:, 0].tolist() == [1, 0, 0, 0]
    picked.sum().backward()
    assert features.grad[:, 0].tolist() == [1, 0, 0]


@pytest.mark.parametrize("rows", [600_000, 600_001])
def test_large_outputs_on_recycled_memory(rows):
    """Outputs of 4 MiB or more reuse memory; two that are alive do not share it."""
    features = torch.randn(1000, 17)
    index = torch.randint(-1, 1000, (rows,))
    for _ in range(3):
        first = pointgrad.gather(features, index)
        second = pointgrad.gather(features + 1, index)
        assert torch.equal(first[index >= 0], features[index[index >= 0]])
        assert torch.equal(second[index >= 0], (features + 1)[index[index >= 0]])
        assert not first[index < 0].any()
        part = second[-10:]
        del first, second
        assert torch.equal(part[index[-10:] >= 0], (features + 1)[index[-10:][index[-10:] >= 0]])


def test_large_outputs_are_ordinary_tensors():
    """Large outputs, whose memory is reused, can be modified in place."""
    features = torch.randn(1000, 64, requires_grad=True)
    index = torch.randint(0, 1000, (40_000,))
    picked = pointgrad.gather(features, index)
    assert picked._base is None
    torch.relu_(picked).sum().backward()
    expected = torch.zeros(1000, 64).index_add_(0, index, (features[index] > 0).float())
    assert torch.equal(features.grad, expected)
    with torch.no_grad():
        pointgrad.gather(features, index).detach_().mul_(2)


def test_autocast_widens_positions_and_features(place):
    """Mixed dtypes as in a network: bfloat16 features from a linear layer, float32 positions."""
    features = torch.randn(9, 4, device=place.device).bfloat16().requires_grad_()
    points = torch.randn(9, 3, device=place.device)
    index = torch.randint(-1, 9, (5, 3), device=place.device)
    with torch.autocast(place.device, torch.bfloat16):
        grouped = pointgrad.group(features, index, points=points, centers=points[:5])
    assert grouped.dtype == torch.float32
    expected = pointgrad.group(features.float(), index, points=points, centers=points[:5])
    torch.testing.assert_close(grouped, expected)
    grouped.sum().backward()
    assert features.grad.dtype == torch.bfloat16

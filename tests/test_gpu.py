"""What only a GPU can show: streams, graphs, no hidden waits, cooperative launches, large tensors."""

import warnings

import pytest
import torch
from cases import CASES, Make

import pointgrad
from pointgrad import farthest_point_sampling as fps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

FIXED = [case for case in CASES if not case.waits]


@pytest.fixture
def _no_waits():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype", UserWarning)
        torch.cuda.set_sync_debug_mode("error")
        yield
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.usefixtures("_no_waits")
@pytest.mark.parametrize("case", FIXED, ids=lambda case: case.name)
def test_no_hidden_wait(case):
    torch.cuda.set_sync_debug_mode("default")
    arguments = case.inputs(Make(device="cuda"))
    case(arguments)  # compiles
    torch.cuda.set_sync_debug_mode("error")
    case(arguments)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # as it should be for empty input
@pytest.mark.parametrize("case", FIXED, ids=lambda case: case.name)
def test_graph_capture_and_replay(case):
    arguments = case.inputs(Make(device="cuda"))
    expected = case(arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = case(arguments)
    for tensor in captured:
        tensor.zero_()
    graph.replay()
    torch.cuda.synchronize()
    for received, wanted in zip(captured, expected, strict=True):
        exact = {} if case.any_order else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(received, wanted, **exact)


def test_current_stream_is_respected():
    """The input is written late on a side stream; a launch elsewhere would read it too early."""
    index = torch.arange(1000, device="cuda")
    side = torch.cuda.Stream()
    features = torch.zeros(1000, 8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        features.fill_(3)
        picked = pointgrad.gather(features, index)
    side.synchronize()
    assert (picked == 3).all()


# One for each way the work is shared: one warp, several programs, several warps, streaming from memory.
SHARED = [(40, 500, 200), (2, 5000, 800), (1, 60_000, 1500), (1, 400_000, 300), (1, 2_500_000, 100)]


@pytest.mark.parametrize("kind", ["uniform", "grid"])
@pytest.mark.parametrize(("batch", "size", "count"), SHARED)
def test_large_clouds_agree_with_reference(batch, size, count, kind):
    points = torch.rand(batch, size, 3, device="cuda")
    if kind == "grid":
        points = (points * 8).floor()
    received = fps(points, count, return_radius=True)
    with pointgrad.backend("reference"):
        expected = fps(points, count, return_radius=True)
    assert torch.equal(received.index, expected.index)
    assert torch.equal(received.radius, expected.radius)


def test_large_packed_clouds_agree_with_reference():
    points = torch.rand(120_000, 3, device="cuda")
    offsets = torch.tensor([0, 50, 70_000, 70_000, 120_000], device="cuda")
    counts = [50, 400, 0, 300]
    with pointgrad.backend("reference"):
        expected = fps(points, counts, offsets=offsets)
    assert torch.equal(fps(points, counts, offsets=offsets), expected)


def test_more_samples_than_points_are_minus_one():
    """On a GPU sizes are not read on the host: picks past a cloud's end are -1, not an error."""
    points = torch.rand(10, 3, device="cuda")
    picks = fps(points, 8, offsets=torch.tensor([0, 3, 10], device="cuda")).view(2, 8)
    assert picks[0, 3:].tolist() == [-1] * 5
    assert sorted(picks[0, :3].tolist()) == [0, 1, 2]
    assert picks[1, 7] == -1


@pytest.mark.parametrize("bounds", [[5, 2, 10], [-4, 50, 10], [0, 2**40, 3]])
def test_bad_offsets_are_kept_in_range(bounds):
    points = torch.rand(10, 3, device="cuda")
    picks = fps(points, 4, offsets=torch.tensor(bounds, device="cuda"))
    assert ((picks >= -1) & (picks < 10)).all()


def test_random_sampling_with_bad_offsets_stays_in_range():
    points = torch.rand(10, 3, device="cuda")
    for bounds in ([0, 3, 20], [-4, 50, 10], [5, 2, 10]):
        picks = pointgrad.random_sampling(points, 4, offsets=torch.tensor(bounds, device="cuda"))
        assert ((picks >= -1) & (picks < 10)).all()
    assert pointgrad.random_sampling(points[:0], 3).tolist() == [-1, -1, -1]


def test_many_clouds():
    """More than 65535, the limit of a grid's second dimension."""
    features = torch.rand(70_000, 2, 3, device="cuda", requires_grad=True)
    index = torch.randint(0, 2, (70_000, 1), device="cuda")
    picked = pointgrad.gather(features, index)
    assert torch.equal(picked[:, 0], features[torch.arange(70_000, device="cuda"), index[:, 0]])
    picked.sum().backward()
    assert features.grad.sum() == 210_000
    assert (fps(torch.rand(70_000, 8, 3, device="cuda"), 2) >= 0).all()


def test_memory_is_what_the_rooms_state():
    def extra(call):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = call()
        return torch.cuda.max_memory_allocated() - before - result.nbytes

    features = torch.rand(1000, 64, device="cuda")
    index = torch.randint(0, 1000, (50_000, 4), device="cuda")
    corners, points = torch.rand(9000, 8, 64, device="cuda"), torch.rand(9000, 3, device="cuda")
    assert extra(lambda: pointgrad.group(features, index)) <= 1024
    assert extra(lambda: pointgrad.trilinear(corners, points)) <= 1024
    assert extra(lambda: fps(points, 100)) <= 48 * 512 + 2048


def test_sampling_beside_other_work():
    """Programs that wait for each other must not hang when another stream fills the GPU."""
    points = torch.rand(1, 100_000, 3, device="cuda")
    expected = fps(points, 500)
    other = torch.cuda.Stream()
    a = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        for _ in range(50):
            a = torch.tanh(a @ a)
    results = [fps(points, 500) for _ in range(10)]
    torch.cuda.synchronize()
    assert all(torch.equal(result, expected) for result in results)


def test_more_than_two_billion_elements():
    features = torch.zeros(40_000_000, 64, dtype=torch.float16, device="cuda")
    features[-1] = 7
    index = torch.tensor([39_999_999, 0, -1], device="cuda")
    assert pointgrad.gather(features, index)[:, 0].tolist() == [7, 0, 0]
    many = torch.full((40_000_000,), 39_999_999, device="cuda")
    assert (pointgrad.gather(features, many)[-1] == 7).all()

"""Tests that need a GPU: streams, graphs, synchronization, cooperative launches, large tensors."""

import os
import warnings

import pytest
import torch

import pointgrad
from pointgrad import farthest_point_sampling as fps
from pointgrad.catalog import CASES, Make

pytest.importorskip("triton", reason="needs Triton")

from pointgrad.ops.sampling import kernels as sampling_kernels
from reliability import sizes
from reliability.gpu import contention

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

FIXED = [case for case in CASES if not case.sample.waits]


@pytest.fixture
def _no_waits():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype", UserWarning)
        torch.cuda.set_sync_debug_mode("error")
        yield
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.usefixtures("_no_waits")
@pytest.mark.parametrize("case", FIXED, ids=lambda case: case.name)
def test_no_hidden_synchronization(case):
    torch.cuda.set_sync_debug_mode("default")
    arguments = case.sample.build(Make(device="cuda"))
    case(arguments)  # compiles
    torch.cuda.set_sync_debug_mode("error")
    case(arguments)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # for empty input
@pytest.mark.parametrize("case", FIXED, ids=lambda case: case.name)
def test_graph_capture_and_replay(case):
    arguments = case.sample.build(Make(device="cuda"))
    expected = case(arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = case(arguments)
    for tensor in captured:
        if not any(tensor is argument for argument in arguments.values()):  # a map also holds its coordinates
            tensor.zero_()
    graph.replay()
    torch.cuda.synchronize()
    for received, wanted in zip(captured, expected, strict=True):
        exact = {} if case.sample.any_order else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(received, wanted, **exact)


def test_current_stream_is_respected():
    """The input is written late on a side stream; a launch on another stream would read it too early."""
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


# One per strategy: one warp, several programs, several warps, streaming from memory.
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(1, 3), (1, 1, 3)])
def test_one_point_of_one(shape, dtype):
    """Triton specializes sizes of 1 to constants; the kernel must compile then."""
    assert fps(torch.rand(shape, dtype=dtype, device="cuda"), 1).view(-1).tolist() == [0]


@pytest.mark.parametrize("bounds", [[1], [5, 2, 10], [-4, 50, 10], [0, 2**40, 3]])
def test_voxelize_with_bad_offsets_stays_in_range(bounds):
    voxels = pointgrad.voxelize(torch.rand(10, 3, device="cuda"), 0.3, offsets=torch.tensor(bounds, device="cuda"))
    assert len(voxels.offsets) == len(bounds)
    assert ((voxels.inverse >= -1) & (voxels.inverse < len(voxels.count))).all()


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


def test_memory_is_what_the_documentation_states():
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


@pytest.mark.parametrize("scene", contention.SCENES)
def test_sampling_never_hangs(scene):
    """Programs that wait for each other must not deadlock when other work fills the GPU."""
    if scene == "with_full_memory" and "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("it takes all of the GPU's memory, which tests in other processes need; run it without -n")
    assert contention.watched(scene, rounds=16)["state"] == "right"


def test_sampling_shares_only_as_many_points_as_24_bits_count():
    """A position in the slice of a program has 24 bits."""
    for batch, size in [(66, 40_000_000), (120, 20_000_000), (1, 2**31 - 1)]:
        plan = sampling_kernels.plan(batch, size, torch.float32, processors=132)
        assert plan.programs == 1 or -(-size // plan.programs) < 2**24


@pytest.mark.parametrize("name", ["gather", "group", "scatter", "interpolate_at"])
def test_more_than_two_billion_numbers(name):
    """Forward and backward, compared with plain indexing at random places and the last one."""
    if torch.cuda.get_device_properties(0).total_memory < 40 * 2**30:
        pytest.skip("needs 40 GiB of GPU memory")
    assert sizes.measured(name, sizes.BEYOND_32_BITS, "cuda")["elements"] > 2**31


def test_training_step_captured_and_replayed():
    """One CUDA graph holds sampling, search, grouping, attention, interpolation, backward and the optimizer."""
    torch.manual_seed(0)
    points, target = torch.rand(2, 500, 3, device="cuda"), torch.rand(2, 500, 8, device="cuda")

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = torch.nn.Linear(3, 8), torch.nn.Linear(8, 8)

        def forward(self, points):
            features = self.embed(points)
            centers = pointgrad.farthest_point_sampling(points, 100)
            some = pointgrad.gather(points, centers)
            index = pointgrad.knn(points, 8, some).index
            grouped = pointgrad.group(features, index).amax(2)
            heads = grouped.view(2, 100, 2, 4)
            near = pointgrad.knn(some, 5).index
            mixed = pointgrad.neighbor_attention(heads, heads, heads, near).flatten(2)
            return self.out(pointgrad.interpolate(mixed, some, points))

    def trained(captured):
        torch.manual_seed(1)
        network = Network().cuda()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

        def step():
            optimizer.zero_grad(set_to_none=False)
            (network(points) - target).square().mean().backward()
            optimizer.step()

        if not captured:
            for _ in range(6):
                step()
            return network.state_dict()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # compiles, and allocates the gradients
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for _ in range(3):
            graph.replay()
        return network.state_dict()

    torch.use_deterministic_algorithms(True)
    try:
        expected, received = trained(captured=False), trained(captured=True)
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(received, expected)

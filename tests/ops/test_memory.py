"""Memory of the C++ kernels: bad sizes are refused, failed allocations raise, scratch memory is freed."""

import ctypes
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pointgrad.functional import fold, max_pool2d, unfold
from pointgrad.ops import native
from pointgrad.ops.neighbors import register as neighbors
from pointgrad.ops.scatter import register as scatter

FARTHEST = 2**63 - 1
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the process's memory from /proc")
no_sanitizer = pytest.mark.skipif(
    getattr(native.module, "sanitizer", "") != "", reason="a sanitizer allocates additional memory"
)


def run_python(code: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_largest_stride():
    image = torch.arange(1.0, 10.0).reshape(1, 1, 3, 3)
    pooled, index = max_pool2d(image, 2, stride=FARTHEST, padding=1, return_indices=True)
    assert pooled.flatten().tolist() == [1.0]
    assert index.flatten().tolist() == [0]
    assert max_pool2d(image, 2, stride=FARTHEST).flatten().tolist() == [5.0]
    columns = unfold(image, 2, padding=1, stride=FARTHEST)
    assert columns.flatten().tolist() == [0.0, 0.0, 0.0, 1.0]
    assert fold(columns, 3, 2, padding=1, stride=FARTHEST).flatten().tolist() == [1.0] + 8 * [0.0]


@pytest.mark.parametrize("missing", [100, 2**40, -2, -(2**63)])
def test_positions_out_of_range_are_skipped(missing):
    arg = torch.full((10, 4), missing)
    arg[3, 2] = 7
    placed = scatter.place_elements(torch.ones(10, 4), arg, 100)
    assert placed.sum() == 1
    assert placed[7, 2] == 1


def search_with(points, index, lengths=None):
    rest = (None, None, index, 4, float("inf"), 0.0, True, "nearest", None)
    return neighbors.neighbor_search(points, lengths, *rest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.skipif(native.module is None, reason="the C++ kernels were not built")
def test_a_corrupted_index_is_refused(dtype):
    """Truncated, with other lengths, or with any changed position."""
    points, lengths = torch.rand(2, 700, 3, dtype=dtype), torch.tensor([700, 300])
    points[0, 5] = float("nan")
    index = neighbors.neighbor_index(points, lengths)
    expected = search_with(points, None, lengths)
    torch.testing.assert_close(search_with(points, index, lengths), expected, rtol=0, atol=0)
    numbers = index[: index.numel() // 8 * 8].view(torch.int64)
    changed = []
    for place in [*range(5), *range(8, 8 + 14), *range(24, 24 + 14)]:  # the header, and one root per cloud
        wrong = numbers.clone()
        wrong[place] += 1
        changed.append(wrong.view(torch.uint8))
    others = [index[:64], index[:400], index[: index.numel() // 3], torch.zeros_like(index)]
    for wrong in [*changed, *others]:
        with pytest.raises(ValueError, match="index must be what neighbor_index returned for these points"):
            search_with(points, wrong, lengths)
    with pytest.raises(ValueError, match="index must be what neighbor_index returned for these points"):
        search_with(points, index, torch.tensor([300, 700]))


@pytest.mark.skipif(native.module is None, reason="the C++ kernels were not built")
def test_a_cloud_of_too_many_points_is_refused():
    """Before any point is read."""
    nothing = torch.empty(0)
    with pytest.raises(ValueError, match="a cloud must have fewer than 2\\^31 points"):
        native.module.farthest_point_sampling(
            index=nothing, distance2=None, points=nothing, dtype=torch.float32, packed=False, batch=1, num_points=2**31,
            sizes=None, num_samples=1, counts=None, start=None, num_start=1,
        )  # fmt: skip


@pytest.mark.skipif(native.module is None, reason="the C++ kernels were not built")
@pytest.mark.parametrize(
    "wrong",
    [{"out": None}, {"index": 0}, {"features": "a"}, {"rows": None}, {"threads": 0}, {"dtype": torch.float32}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_kernel_refuses_wrong_arguments(wrong):
    tensors = {"out": torch.zeros(1, 2), "features": torch.ones(3, 2), "index": torch.tensor([1])}
    sizes = {"batch": 1, "rows": 3, "picks": 1, "row_bytes": 8}
    native.module.gather(**tensors, **sizes)
    assert tensors["out"].tolist() == [[1, 1]]
    with pytest.raises(TypeError):
        native.module.gather(**{**tensors, **sizes, **wrong})
    with pytest.raises(TypeError):
        native.module.gather(*tensors.values(), *sizes.values())


@pytest.mark.skipif(native.module is None, reason="the C++ kernels were not built")
def test_a_kernel_refuses_an_unknown_dtype():
    scratch = index = torch.tensor([1])
    tensors = {"total": torch.zeros(3, 2), "grad": torch.ones(1, 2), "index": index, "scratch": scratch.clone()}
    sizes = {"batch": 1, "rows": 3, "picks": 1, "channels": 2}
    native.module.gather_backward(**tensors, **sizes, dtype=torch.float32)
    assert tensors["total"].tolist() == [[0, 0], [1, 1], [0, 0]]
    for dtype in (torch.complex64, "float32", 0, None):
        with pytest.raises(TypeError):
            native.module.gather_backward(**tensors, **sizes, dtype=dtype)


LIMITED = """
import resource, sys, torch, pointgrad
points = torch.rand({points}, 3)
torch.set_num_threads({threads})
torch.rand(1_000_000).exp().sum()  # starts torch's threads
pointgrad.farthest_point_sampling(torch.rand(4, 1000, 3), 100)  # and ours
def used():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
before = used()
resource.setrlimit(resource.RLIMIT_AS, (before + {room}, resource.RLIM_INFINITY))
"""


@linux
@no_sanitizer
def test_failed_allocation_raises_and_leaks_nothing():
    code = (
        LIMITED.format(points=2_000_000, threads=2, room="12 * 2**20")
        + """
batch = points.reshape(2, -1, 3)
for call in (lambda: pointgrad.farthest_point_sampling(batch, 9), lambda: pointgrad.NeighborIndex(points),
             lambda: pointgrad.voxel_sampling(points, 0.001)):
    for _ in range(3):
        try:
            call()
            print("no error")
        except MemoryError as error:
            print(error)
        except RuntimeError as error:
            assert "allocate memory" in str(error)  # torch's own, for a result
            print(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
assert used() - before < 12 * 2**20, used() - before
assert pointgrad.farthest_point_sampling(points[:100], 2).shape == (2,)
"""
    )
    lines = run_python(code).splitlines()
    assert len(lines) == 9
    assert "no error" not in lines
    assert "not enough memory for the working buffers of a C++ kernel of pointgrad" in lines


@linux
@no_sanitizer
def test_unused_buffers_are_released_when_memory_is_needed():
    """A result that does not fit beside the buffers kept for reuse."""
    code = (
        LIMITED.format(points=10, threads=1, room="400 * 2**20")
        + """
from pointgrad.ops import native
like = torch.empty(0)
for megabytes in (20, 30, 40, 50, 60, 70):  # no buffer fits a later size
    native.empty(like, (megabytes * 2**18,))
native.empty(like, (300 * 2**18,)).fill_(1.0)
"""
    )
    run_python(code)


BUFFERS = """
import torch, pointgrad
from pointgrad.ops import native
def mapped():
    return int(open("/proc/self/statm").read().split()[0]) * 4096
like, size = torch.empty(0), 64 * 2**20
torch.empty(2**22).fill_(1.0)  # starts torch's threads
before = mapped()
kept = native.empty(like, (size // 4,)).fill_(1.0)
native.empty(like, (2 * size // 4,)).fill_(2.0)
assert (mapped() - before >= 3 * size) == {reused}, mapped() - before
pointgrad.release_buffers()
assert size <= mapped() - before < 2 * size, mapped() - before
assert kept.sum() == size // 4
for megabytes in (300, 400, 520, 700):  # no buffer fits a later size
    native.empty(like, (megabytes * 2**18,))
assert mapped() - before < 2**30 + 2 * size, mapped() - before
"""


@linux
@no_sanitizer
@pytest.mark.parametrize("reused", [True, False])
def test_release_buffers(reused):
    run_python(BUFFERS.format(reused=reused), POINTGRAD_REUSE_BUFFERS=str(int(reused)), MALLOC_ARENA_MAX="1")


@linux
@no_sanitizer
def test_kernels_keep_no_scratch_memory():
    def used():
        ctypes.CDLL(None).malloc_trim(0)  # return what the C library keeps to the system
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    logits = torch.rand(6_000_000, 1)
    out, offsets = torch.ones_like(logits), torch.tensor([0, len(logits)])
    before = used()
    native.module.segment_softmax(
        out=out, logits=logits, offsets=offsets, dtype=logits.dtype, segments=1, channels=1, threads=1
    )
    assert used() - before < 12_000_000
    assert abs(out.double().sum() - 1) < 1e-2

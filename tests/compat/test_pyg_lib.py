"""`pyg_lib` compared with plain loops: points, groups of values, matrix products, splines."""

import importlib
import itertools
import math

import pytest
import torch

from pointgrad.compat import pyg_lib
from pointgrad.compat.pyg_lib import ops
from pointgrad.compat.pyg_lib.ops.scatter_reduce import fused_scatter_reduce
from tests.compat.torch_cluster_loops import fps_by_loop, knn_by_loop, radius_by_loop, ragged
from tests.compat.torch_scatter_loops import LAYOUTS, close, reduce_by_loop, values_like

SIZES = [([12, 1, 0, 20], [5, 3, 2, 7]), ([9], [4]), ([0, 6], [3, 0])]


def bounds(sizes):
    return torch.tensor([0, *itertools.accumulate(sizes)])


def clouds(sizes, dim=3, dtype=torch.float32, device="cpu"):
    """Packed clouds, their bounds, and their batch vector."""
    points, batch = ragged(sizes, dim, dtype, device)
    return points, bounds(sizes).to(device), batch


# -- points ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_knn(sizes, dtype, device):
    (x, ptr_x, batch_x), (y, ptr_y, batch_y) = (clouds(n, dtype=dtype, device=device) for n in sizes)
    for k in (1, 4, 30):
        expected = knn_by_loop(x, y, k, batch_x, batch_y)
        assert torch.equal(ops.knn(x, y, k, ptr_x, ptr_y).cpu(), expected)
    assert torch.equal(ops.knn(x, x, 3, ptr_x, ptr_x).cpu(), knn_by_loop(x, x, 3, batch_x, batch_x))


def test_knn_of_one_cloud(device):
    x, y = torch.rand(10, device=device), torch.rand(4, device=device)
    none = torch.zeros(10, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    assert torch.equal(ops.knn(x, y, 3).cpu(), knn_by_loop(x, y, 3, *none))
    assert torch.equal(ops.knn(x.expand(2, 10).t(), y.expand(2, 4).t(), 3).cpu(), knn_by_loop(x, y, 3, *none))
    assert ops.knn(x[:0], y, 3).shape == (2, 0)
    assert ops.knn(x[:0], y[:0], 3, torch.zeros(1).long().to(device), torch.zeros(1).long().to(device)).shape == (2, 0)
    same = torch.zeros(5, 3, device=device)
    assert ops.knn(same, same, 2)[1].tolist() == [0, 1] * 5  # ties go to the smallest index


def test_knn_with_cosine(device):
    """The original supports it on a GPU only."""
    x, y = torch.randn(20, 3, device=device), torch.randn(6, 3, device=device)
    cosine = torch.nn.functional.cosine_similarity(y[:, None].double(), x[None].double(), dim=-1)
    assert torch.equal(ops.knn(x, y, 4, cosine=True)[1].view(6, 4), cosine.topk(4).indices)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_radius(sizes, device):
    (x, ptr_x, batch_x), (y, ptr_y, batch_y) = (clouds(n, device=device) for n in sizes)
    for most in (32, 2):
        expected = radius_by_loop(x, y, 4.0, batch_x, batch_y, most)
        assert torch.equal(ops.radius(x, y, 4.0, ptr_x, ptr_y, most).cpu(), expected)
    query, found = radius_by_loop(x, x, 4.0, batch_x, batch_x, 100)
    others = torch.stack([query, found])[:, query != found]
    assert torch.equal(ops.radius(x, x, 4.0, ptr_x, ptr_x, 100, ignore_same_index=True).cpu(), others)
    line = torch.arange(4.0, device=device)
    assert ops.radius(line, line[:1])[1].tolist() == [0]  # a point at distance r is not a neighbor


@pytest.mark.parametrize("ratio", [0.2, 0.5, 1.0])
def test_fps(ratio, device):
    sizes = [12, 1, 20]
    src, ptr, _ = clouds(sizes, device=device)
    starts = bounds(sizes).tolist()
    expected = []
    for begin, size in zip(starts, sizes, strict=False):
        count = math.ceil(torch.tensor(size, dtype=torch.float32) * ratio)
        expected += [begin + pick for pick in fps_by_loop(src[begin : begin + size].cpu(), count, 0)]
    assert ops.fps(src, ptr, ratio, random_start=False).tolist() == expected


def test_fps_random_start(device):
    src, ptr, _ = clouds([12, 20], device=device)
    torch.manual_seed(0)
    samples = {tuple(ops.fps(src, ptr, 0.25).tolist()) for _ in range(20)}
    assert len(samples) > 1
    for sample in samples:
        assert list(sample[:3]) == fps_by_loop(src[:12].cpu(), 3, sample[0])
    assert ops.fps(src[:0], ptr[:1]).shape == (0,)


def test_nearest(device):
    (x, ptr_x, batch_x), (y, ptr_y, batch_y) = clouds([12, 0, 20], device=device), clouds([5, 2, 7], device=device)
    assert torch.equal(ops.nearest(x, y, ptr_x, ptr_y).cpu(), knn_by_loop(y, x, 1, batch_y, batch_x)[1])
    one = torch.zeros_like(batch_x), torch.zeros_like(batch_y)
    assert torch.equal(ops.nearest(x, y).cpu(), knn_by_loop(y, x, 1, one[1], one[0])[1])


def test_grid_cluster(device):
    pos = torch.rand(30, 3, device=device) * 10 - 5
    size = torch.tensor([1.0, 2.5, 4.0], device=device)
    low, high = pos.amin(0), pos.amax(0)

    def number(point, start, end):
        cells = [int((e - s) / v) + 1 for s, e, v in zip(start, end, size.tolist(), strict=True)]
        at = [int((p - s) / v) for p, s, v in zip(point, start, size.tolist(), strict=True)]
        return at[0] + cells[0] * (at[1] + cells[1] * at[2])

    expected = [number(point, low.tolist(), high.tolist()) for point in pos.tolist()]
    assert ops.grid_cluster(pos, size).tolist() == expected
    start, end = torch.full_like(size, -6), torch.full_like(size, 6)
    expected = [number(point, [-6] * 3, [6] * 3) for point in pos.tolist()]
    assert ops.grid_cluster(pos, size, start, end).tolist() == expected


# -- groups ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduce", ["sum", "mul", "mean", "min", "max"])
@pytest.mark.parametrize("layout", LAYOUTS[::3], ids=str)
def test_scatter(reduce, layout, device):
    shape, index_shape, dim = layout
    index = torch.randint(0, 5, index_shape).to(device)
    for dtype in (torch.float32, torch.float16, torch.int64):
        src = values_like(dtype, shape, device)
        values, arg = reduce_by_loop(src, index, dim, 6, reduce)
        received = getattr(ops, f"scatter_{reduce}")(src, index, dim, dim_size=6)
        if reduce in ("min", "max"):
            assert torch.equal(received[1].cpu(), arg)
            received = received[0]
        close(received, values, dtype)
        close(ops.scatter(src, index, dim, dim_size=6, reduce=reduce), values, dtype)


def test_scatter_updates_out(device):
    src, index = torch.arange(6.0, device=device), torch.tensor([0, 0, 2, 2, 2, 3], device=device)
    out = torch.full((5,), 2.0, device=device)
    assert ops.scatter_add(src, index, out=out) is out
    assert out.tolist() == [3, 2, 11, 7, 2]
    assert ops.scatter_mul(src, index, out=torch.full_like(out, 2)).tolist() == [0, 2, 48, 10, 2]
    assert ops.scatter_mul(torch.empty(0, 2, device=device), index[:0], dim=0, dim_size=3).tolist() == [[1, 1]] * 3
    assert ops.scatter_mean(src, index, out=torch.full_like(out, 3)).tolist() == [2, 3, 4, 8, 3]
    best, arg = ops.scatter_max(src, index, out=torch.full_like(out, 2))
    assert (best.tolist(), arg.tolist()) == ([2, 2, 4, 5, 2], [6, 6, 4, 5, 6])
    assert ops.scatter_sum(src, index).tolist() == [1, 0, 9, 5]


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
def test_segments(reduce, device):
    index = torch.tensor([0, 0, 0, 2, 2, 3, 3], device=device)
    indptr = torch.tensor([0, 3, 3, 5, 7], device=device)
    src = values_like(torch.float64, (7, 3), device)
    values, arg = reduce_by_loop(src, index, 0, 4, reduce)
    coo = getattr(ops, f"segment_{reduce}_coo")(src, index, dim_size=4)
    csr = getattr(ops, f"segment_{reduce}_csr")(src, indptr)
    if reduce in ("min", "max"):
        assert torch.equal(coo[1].cpu(), arg)
        assert torch.equal(csr[1].cpu(), arg)
        coo, csr = coo[0], csr[0]
    for received in (coo, csr, ops.segment_coo(src, index, reduce=reduce), ops.segment_csr(src, indptr, reduce=reduce)):
        close(received, values, torch.float64)


def test_gather(device):
    src, index = torch.randn(4, 3, device=device), torch.tensor([0, 0, 0, 2, 2, 3, 3], device=device)
    indptr = torch.tensor([0, 3, 3, 5, 7], device=device)
    assert torch.equal(ops.gather_coo(src, index), src[index])
    assert torch.equal(ops.gather_csr(src, indptr), src[index])
    out = torch.zeros(7, 3, device=device)
    assert ops.gather_coo(src, index, out) is out
    assert torch.equal(out, src[index])


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_softmax_csr(dim, device):
    src, ptr = torch.randn(6, 6, 6, device=device), torch.tensor([0, 1, 1, 4, 6], device=device)
    parts = [src.narrow(dim, a, b - a).softmax(dim) for a, b in itertools.pairwise(ptr.tolist())]
    torch.testing.assert_close(ops.softmax_csr(src, ptr, dim), torch.cat(parts, dim))
    assert ops.softmax_csr(src, ptr, dim).is_contiguous()


def test_composites(device):
    """The argument order of pyg-lib, which is not always that of torch-scatter."""
    src, index = torch.randn(6, device=device), torch.tensor([0, 0, 2, 2, 2, 3], device=device)
    groups = [src[index == group] for group in range(5)]
    log_softmax = torch.cat([group.log_softmax(0) for group in groups])
    torch.testing.assert_close(ops.scatter_log_softmax(src, index, 0, 5, 0.0), log_softmax)
    torch.testing.assert_close(ops.scatter_softmax(src, index, 0, 5), log_softmax.exp())
    deviation = torch.stack([g.std() if len(g) > 1 else g.new_zeros(()) for g in groups])
    torch.testing.assert_close(ops.scatter_std(src, index, dim_size=5), deviation, rtol=1e-5, atol=1e-6)
    total = torch.stack([g.logsumexp(0) if len(g) else g.new_zeros(()) for g in groups])
    torch.testing.assert_close(ops.scatter_logsumexp(src, index, dim_size=5), total)
    out = torch.full((5,), 7.0, device=device)
    assert ops.scatter_logsumexp(src, index, out=out) is out
    torch.testing.assert_close(out, torch.where(torch.arange(5, device=device) % 3 == 1, 7.0, total))


def test_index_sort(device):
    inputs = torch.randint(0, 20, (100,)).to(device)
    values, order = ops.index_sort(inputs, max_value=20)
    expected = sorted(range(100), key=lambda i: (int(inputs[i]), i))
    assert order.tolist() == expected
    assert torch.equal(values, inputs[order])
    with pytest.raises(RuntimeError, match=r"^inputs must be \(N,\), got \(2, 50\)$"):
        ops.index_sort(inputs.view(2, 50))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_sampled(name, device):
    left, right = torch.rand(5, 2, device=device) + 1, torch.rand(4, 2, device=device) + 1
    a, b = torch.tensor([0, 4, 4], device=device), torch.tensor([3, 0, 3], device=device)
    function, sampled = getattr(torch, name), getattr(ops, f"sampled_{name}")
    assert torch.equal(sampled(left, right, a, b), function(left[a], right[b]))
    assert torch.equal(sampled(left[:3], right, None, b), function(left[:3], right[b]))
    assert torch.equal(sampled(left, right[:3], a), function(left[a], right[:3]))
    assert torch.equal(sampled(left[:4], right), function(left[:4], right))


def test_fused_scatter_reduce(device):
    src, index = torch.randn(9, 2, device=device), torch.randint(0, 3, (9,)).to(device)
    received = fused_scatter_reduce(src, index, 4, ["sum", "mean", "min", "max"]).cpu()
    for column, reduce in enumerate(["sum", "mean", "min", "max"]):
        expected = reduce_by_loop(src, index, 0, 4, reduce)[0]
        torch.testing.assert_close(received[:, 2 * column : 2 * column + 2].double(), expected, rtol=1e-5, atol=1e-6)


# -- products and splines ----------------------------------------------------------------------------------------------


def test_matmul(device):
    inputs, others = torch.randn(8, 3, device=device), torch.randn(3, 3, 5, device=device)
    ptr, bias = torch.tensor([0, 5, 5, 8], device=device), torch.randn(3, 5, device=device)
    expected = torch.cat([inputs[:5] @ others[0] + bias[0], inputs[5:] @ others[2] + bias[2]])
    torch.testing.assert_close(ops.segment_matmul(inputs, ptr, others, bias), expected)
    torch.testing.assert_close(ops.segment_matmul(inputs.t().contiguous().t(), ptr.cpu(), others, bias), expected)
    assert ops.segment_matmul(inputs[:0], ptr[:1], others[:0]).shape == (0, 5)
    left, right = [inputs, inputs[:2, :2]], [others[0], others[1, :2, :1]]
    outs = ops.grouped_matmul(left, right, [bias[0], bias[1, :1]])
    torch.testing.assert_close(outs, [left[0] @ right[0] + bias[0], left[1] @ right[1] + bias[1, :1]])


def cardinal(v, degree):
    """Uniform B-spline of this degree with support [0, degree + 1], by recursion."""
    if degree == 0:
        return float(0 <= v < 1)
    return v / degree * cardinal(v, degree - 1) + (degree + 1 - v) / degree * cardinal(v - 1, degree - 1)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_spline(degree, device):
    pseudo = torch.rand(7, 2, dtype=torch.float64, device=device)
    sizes, is_open = [5, 6], [1, 0]
    kernel_size, flags = torch.tensor(sizes, device=device), torch.tensor(is_open, dtype=torch.uint8, device=device)
    basis, weight_index = ops.spline_basis(pseudo, kernel_size, flags, degree)
    assert basis.shape == (7, (degree + 1) ** 2)
    torch.testing.assert_close(basis.sum(1), torch.ones_like(basis[:, 0]))  # a partition of unity
    for edge, point in enumerate(pseudo.tolist()):
        dense = torch.zeros(30, dtype=torch.float64)
        for knots in itertools.product(range(degree + 1), repeat=2):
            value, at = 1.0, []
            for v, knot, n, o in zip(point, knots, sizes, is_open, strict=True):
                scaled = v * (n - degree * o)
                value *= cardinal(scaled - math.floor(scaled) + degree - knot, degree)
                at.append((math.floor(scaled) + knot) % n)
            dense[at[0] + 5 * at[1]] += value
        received = torch.zeros_like(dense).index_add(0, weight_index[edge].cpu(), basis[edge].cpu())
        torch.testing.assert_close(received, dense)
    x, weight = torch.randn(7, 3, dtype=torch.float64).to(device), torch.randn(30, 3, 4, dtype=torch.float64).to(device)
    expected = torch.einsum("ei,es,esio->eo", x, basis, weight[weight_index])
    torch.testing.assert_close(ops.spline_weighting(x, weight, basis, weight_index), expected)


# -- names and errors --------------------------------------------------------------------------------------------------


def test_parts_that_pyg_looks_for():
    """PyG decides by these names what it uses."""
    assert importlib.reload(ops) is ops
    assert not hasattr(pyg_lib, "partition")
    assert not hasattr(ops, "graclus_cluster")
    with pytest.raises(
        AttributeError, match=r"only the point operators of pyg_lib, not pyg_lib\.ops\.graclus_cluster$"
    ):
        _ = ops.graclus_cluster
    with pytest.raises(AttributeError, match=r"only the point operators of pyg_lib, not pyg_lib\.partition$"):
        _ = pyg_lib.partition
    index = torch.tensor([0, 1])
    calls = {
        "sampler.neighbor_sample": lambda: pyg_lib.sampler.neighbor_sample(index, index, index, [2]),
        "sampler.hetero_neighbor_sample": lambda: pyg_lib.sampler.hetero_neighbor_sample({}, {}, {}, {}),
        "sampler.subgraph": lambda: pyg_lib.sampler.subgraph(index, index, index),
        "sampler.random_walk": lambda: pyg_lib.sampler.random_walk(index, index, index, 2),
        "random_walk": lambda: torch.ops.pyg.random_walk(index, index, index, 2, 1.0, 1.0),
        "neighbor_sample": lambda: torch.ops.pyg.neighbor_sample(index, index, index, [2], None, None, None, None),
        "hetero_neighbor_sample": lambda: torch.ops.pyg.hetero_neighbor_sample(
            ["a"], [("a", "b", "a")], {}, {}, {}, {}
        ),
    }
    for name, call in calls.items():
        with pytest.raises(
            NotImplementedError, match=f"^pointgrad.compat.pyg_lib does not provide {name}, which works"
        ):
            call()


X, PTR, INDEX = torch.rand(6, 3), torch.tensor([0, 2, 6]), torch.tensor([0, 0, 1, 1, 2, 2])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.knn(X, X, 2, PTR, PTR[:2]), ValueError, "ptr_y[-1] must equal N = 6, got 2"),
        (lambda: ops.knn(X, X, 2, PTR.flip(0), PTR), ValueError, "ptr_x[0] must be 0, got 6"),
        (lambda: ops.knn(X, X, 2, PTR), ValueError, "ptr_y must be a tensor if there are 2 clouds, got None"),
        (lambda: ops.knn(X, X, 2, PTR.float(), PTR), TypeError, "ptr_x must be int64 or int32, got float32"),
        (lambda: ops.knn(X, X, 2, PTR[None], PTR), ValueError, "ptr_x must be (B + 1,), got (1, 3)"),
        (lambda: ops.knn(X, X[:, :2], 2), ValueError, "y must be (M, D) with D = 3, like x, got (6, 2)"),
        (lambda: ops.knn(X, X, 0), ValueError, "k must be at least 1, got 0"),
        (lambda: ops.knn(X, X, 2, PTR.to("meta"), PTR), ValueError, "ptr_x must be on the device of x, cpu, got meta"),
        (lambda: ops.radius(X, X, -1.0), ValueError, "r must be at least 0, got -1.0"),
        (lambda: ops.fps(X, PTR, 1.5), ValueError, "ratio must be in (0, 1], got 1.5"),
        (lambda: ops.fps(X, PTR[:2]), ValueError, "ptr[-1] must equal N = 6, got 2"),
        (
            lambda: ops.nearest(X, X[:2], PTR, torch.tensor([0, 2, 2])),
            ValueError,
            "y must have at least one point in every cloud of x, got a cloud without points in y",
        ),
        (
            lambda: ops.grid_cluster(X, torch.ones(2)),
            ValueError,
            "size must be (3,), one for each axis of pos, got (2,)",
        ),
        (lambda: ops.softmax_csr(X, PTR[:2]), ValueError, "ptr[-1] must equal N = 6, got 2"),
        (lambda: ops.softmax_csr(X, PTR[None]), ValueError, "ptr must be (S + 1,), got (1, 3)"),
        (lambda: ops.softmax_csr(X, PTR.float()), TypeError, "ptr must be int64 or int32, got float32"),
        (lambda: ops.softmax_csr(X, PTR[:0]), ValueError, "ptr must be (S + 1,), got (0,)"),
        (
            lambda: torch.ops.pyg._segment_outer(X, X[:2], PTR),
            ValueError,
            "right must be (N, M), like left, got (2, 3)",
        ),
        (lambda: ops.grid_cluster(X[0, 0], X[0]), ValueError, "pos must be (N,) or (N, D), got ()"),
        (lambda: ops.softmax_csr(X, PTR, 2), ValueError, "dim must be in [-2, 2), got 2"),
        (lambda: ops.sampled_add(X, X[:2]), ValueError, "right must be (6, 3) after sampling, like left, got (2, 3)"),
        (lambda: ops.sampled_add(X, X.double()), TypeError, "right must have the dtype of left, float32, got float64"),
        (
            lambda: torch.ops.pyg.sampled_op(X, X, None, None, "pow"),
            ValueError,
            "op must be \"add\", \"sub\", \"mul\" or \"div\", got 'pow'",
        ),
        (
            lambda: ops.segment_matmul(X, PTR, X[None]),
            ValueError,
            "other must be (B, K, M) with B = 2 and K = 3, got (1, 6, 3)",
        ),
        (lambda: ops.segment_matmul(X[:5], PTR, torch.ones(2, 3, 1)), ValueError, "ptr[-1] must equal N = 5, got 6"),
        (lambda: ops.grouped_matmul([X], []), ValueError, "others must be a list of 1 tensors, like inputs, got 0"),
        (
            lambda: ops.grouped_matmul([X], [X]),
            ValueError,
            "others must be a list of matrices (K, M), here with K = 3, got (6, 3)",
        ),
        (
            lambda: ops.spline_basis(X, torch.tensor([4, 4, 4]), torch.ones(3, dtype=torch.uint8), 4),
            ValueError,
            "degree must be 1, 2 or 3, got 4",
        ),
        (
            lambda: ops.spline_weighting(X, torch.ones(4, 2, 1), X, INDEX[:, None].expand(6, 3)),
            ValueError,
            "weight must be (K, M_in, M_out) with M_in = 3, got (4, 2, 1)",
        ),
        (
            lambda: ops.scatter_std(INDEX, INDEX),
            ValueError,
            "src must have a floating-point dtype for scatter_std, got torch.int64",
        ),
        (
            lambda: fused_scatter_reduce(X, INDEX, 3, ["sum", "std"]),
            ValueError,
            "reduce_list must be one to four of \"sum\", \"mean\", \"min\" and \"max\", got ['sum', 'std']",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_errors(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_empty_products():
    """A product over nothing is 0, not what the memory contained."""
    assert torch.equal(ops.segment_matmul(torch.ones(4, 0), PTR.clamp(max=4), torch.ones(2, 0, 3)), torch.zeros(4, 3))
    empty = torch.ops.pyg._segment_outer(X[:4], X[:4], torch.tensor([0, 0, 4]))[0]
    assert torch.equal(empty, torch.zeros(3, 3))


def test_non_finite_points():
    x = X.clone()
    x[1] = torch.nan
    assert 1 not in ops.knn(x, X, 5)[1]
    assert 1 not in ops.radius(x, X, 9.0)[1]
    assert ops.nearest(x, X)[1] == -1

"""The compiled module `PG_OP` of PointGroup: voxels, balls, clusters and proposals, results in arguments.

Functions write into some of their arguments. Sums and gradients are added to the array that receives them.
"""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ._arrays import Arrays, check_index
from ._scalars import count_of, number

__all__ = [
    "ballquery_batch_p",
    "bfs_cluster",
    "get_iou",
    "point_recover_bp",
    "point_recover_fp",
    "roipool_bp",
    "roipool_fp",
    "sec_max",
    "sec_mean",
    "sec_min",
    "voxelize_bp",
    "voxelize_fp",
    "voxelize_idx",
]

MAX_IN_BALL = 1000  # as in the original
_CHUNK = 16384  # points whose balls are searched at once
_MEAN = 4  # mode of `voxelize_fp`


def ballquery_batch_p(
    xyz: Tensor,
    batch_idxs: Tensor,
    batch_offsets: Tensor,
    idx: Tensor,
    start_len: Tensor,
    n: int,
    meanActive: int,
    radius: float,
) -> int:
    """Find all points of the same cloud at a distance less than `radius` from each point.

    As in the original, at most the first 1000 points of a ball are taken. The lists are in the order of the points; in
    the original their order is random.

    Args:
        xyz: (n, 3) points.
        batch_idxs: (n,) cloud of each point.
        batch_offsets: (B + 1,) offsets of the clouds.
        idx: (n * meanActive,) int32, receives the lists of neighbors one after another, as far as there is space.
        start_len: (n, 2) int32, receives the start and the length of each list.
        n: Number of points.
        meanActive: Space per point in `idx`.
        radius: Radius of the balls.

    Returns:
        Sum of all lengths. If it is larger than `n * meanActive`, the call must be repeated with more space.
    """
    arrays = Arrays(n=n, meanActive=meanActive)
    points = arrays.floats("xyz", xyz, "n 3")
    clouds = arrays.index("batch_idxs", batch_idxs, "n")
    offsets = arrays.index("batch_offsets", batch_offsets, "*").tolist()
    out, out_lists = arrays.out_index("idx", idx, "n meanActive"), arrays.out_index("start_len", start_len, "n 2")
    sizes = [end - begin for begin, end in pairwise(offsets)]
    checks.value(offsets[:1] == [0] and offsets[-1] == n and min(sizes, default=0) >= 0, "batch_offsets",
                 f"offsets from 0 to n = {n}", offsets)  # fmt: skip
    expected = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes, dtype=torch.int64)).to(clouds.device)
    checks.value(
        torch.equal(clouds.long(), expected), "batch_idxs", "the clouds of batch_offsets", "others", verb="have"
    )
    lists, lengths = [out.new_zeros(0)], [out.new_zeros(0)]
    for begin, end in pairwise(offsets):
        if end > begin:
            search = pointgrad.NeighborIndex(points[begin:end])
            for start in range(begin, end, _CHUNK):
                index = _balls(search, points[start : min(start + _CHUNK, end)], number(radius))
                lists.append((index[index >= 0] + begin).to(out.dtype))
                lengths.append((index >= 0).sum(1).to(out.dtype))
    found, length = torch.cat(lists), torch.cat(lengths)
    space = min(found.numel(), out.numel())
    out.view(-1)[:space] = found[:space]
    out_lists.copy_(torch.stack([length.cumsum(0) - length, length], dim=1))
    return found.numel()


def bfs_cluster(
    semantic_label: Tensor,
    ball_query_idxs: Tensor,
    start_len: Tensor,
    cluster_idxs: Tensor,
    cluster_offsets: Tensor,
    N: int,
    threshold: int,
) -> None:
    """Find connected points of the same label by breadth-first search.

    Args:
        semantic_label: (N,) labels.
        ball_query_idxs: Lists of neighbors, as written by `ballquery_batch_p`.
        start_len: (N, 2) start and length of the list of each point.
        cluster_idxs: Is resized to (S, 2), and receives the cluster and the index of each clustered point.
        cluster_offsets: Is resized to (C + 1,), and receives the offsets of the clusters in `cluster_idxs`.
        N: Number of points.
        threshold: Smallest size of a cluster; points of smaller ones are left out.
    """
    arrays = Arrays(N=N)
    labels = arrays.index("semantic_label", semantic_label, "N")
    neighbors = arrays.index("ball_query_idxs", ball_query_idxs, "*")
    lists = arrays.index("start_len", start_len, "N 2")
    labels, neighbors, lists = labels.cpu(), neighbors.cpu(), lists.cpu()
    for name, value in (("cluster_idxs", cluster_idxs), ("cluster_offsets", cluster_offsets)):
        checks.tensor(name, value)
        checks.dtype(name, value, checks.INDICES)
    check_index("ball_query_idxs", neighbors, N)
    starts, lengths = lists.long().unbind(1)
    fits = (starts >= 0) & (lengths >= 0) & (starts + lengths <= neighbors.numel())
    checks.value(bool(fits.all()), "start_len", f"lists within {neighbors.numel()} entries", "another one", verb="name")
    clusters = _components(
        labels.numpy(), neighbors.numpy(), starts.numpy(), lengths.numpy(), count_of("threshold", threshold, 0)
    )
    sizes = torch.tensor([len(cluster) for cluster in clusters], dtype=torch.int64)
    members = torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *clusters]))
    number_of = torch.arange(len(clusters)).repeat_interleave(sizes)
    cluster_idxs.resize_(len(members), 2).copy_(torch.stack([number_of, members], dim=1))
    cluster_offsets.resize_(len(clusters) + 1).copy_(torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))


def voxelize_idx(
    coords: Tensor, output_coords: Tensor, input_map: Tensor, output_map: Tensor, batchsize: int, mode: int
) -> None:
    """Number the voxels in the order of their first points.

    Args:
        coords: (N, D) int64 voxel of each point, usually with the batch as first column.
        output_coords: Is resized to (M, D), and receives the voxels.
        input_map: (N,) int32, receives the voxel number of each point.
        output_map: Is resized to (M, 1 + A), and receives the number of points of each voxel and the points. A is 1 for
            modes 0 (voxels are unique), 1 (first point) and 2 (last point), and the largest number of points for modes
            3 (sum) and 4 (mean).
        batchsize: Not used.
        mode: 0 to 4.
    """
    checks.tensor("coords", coords)
    checks.shape(coords.dim() == 2 and coords.shape[1] in (3, 4), "coords", "(N, 3) or (N, 4)", coords)
    checks.dtype("coords", coords, (torch.int64,))
    arrays = Arrays(N=coords.shape[0], D=coords.shape[1])
    coords = arrays.index("coords", coords, "N D")
    out_map = arrays.out_index("input_map", input_map, "N")
    for name, value in (("output_coords", output_coords), ("output_map", output_map)):
        checks.tensor(name, value)
        checks.dtype(name, value, checks.INDICES)
    mode = count_of("mode", mode, 0)
    checks.value(mode <= _MEAN, "mode", "from 0 to 4", mode)
    voxels, inverse, count = coords.unique(dim=0, return_inverse=True, return_counts=True)
    checks.value(mode != 0 or len(voxels) == len(coords), "coords", "unique for mode 0", "equal rows")
    rows = torch.arange(len(coords), device=coords.device)
    first = rows.new_full((len(voxels),), len(coords)).scatter_reduce_(0, inverse, rows, "amin")
    order = first.argsort()  # voxel numbers in the order of their first points
    position = order.argsort()
    inverse, count = position[inverse], count[order]
    by_voxel = inverse.argsort(stable=True)
    begin = count.cumsum(0) - count
    most = int(count.max()) if mode >= 3 and len(count) else 1
    points = rows.new_zeros(len(count), most)
    if mode >= 3:
        points[inverse[by_voxel], rows - begin[inverse[by_voxel]]] = by_voxel
    else:
        points[:, 0] = by_voxel[begin if mode < 2 else begin + count - 1]
        count = torch.ones_like(count)
    out_map.copy_(inverse)
    output_coords.resize_(len(voxels), coords.shape[1]).copy_(voxels[order])
    output_map.resize_(len(count), 1 + most).copy_(torch.cat([count.unsqueeze(1), points], dim=1))


def voxelize_fp(
    feats: Tensor, output_feats: Tensor, output_map: Tensor, mode: int, nActive: int, maxActive: int, nPlane: int
) -> None:
    """Add the sums, or the means for mode 4, of the features (N, C) of each voxel to `output_feats` (M, C)."""
    rows, voxels, weights = _map(output_map, nActive, maxActive, _is_mean(mode))
    _add_rows(feats, output_feats, rows, voxels, weights, nPlane, "feats", "output_feats")


def voxelize_bp(
    d_output_feats: Tensor, d_feats: Tensor, output_map: Tensor, mode: int, nActive: int, maxActive: int, nPlane: int
) -> None:
    """Add the gradient of `voxelize_fp` to `d_feats` (N, C)."""
    rows, voxels, weights = _map(output_map, nActive, maxActive, _is_mean(mode))
    _add_rows(d_output_feats, d_feats, voxels, rows, weights, nPlane, "d_output_feats", "d_feats")


def point_recover_fp(
    feats: Tensor, output_feats: Tensor, idx_map: Tensor, nActive: int, maxActive: int, nPlane: int
) -> None:
    """Add the features (M, C) of the voxel of each point to `output_feats` (N, C)."""
    voxelize_bp(feats, output_feats, idx_map, 0, nActive, maxActive, nPlane)


def point_recover_bp(
    d_output_feats: Tensor, d_feats: Tensor, idx_map: Tensor, nActive: int, maxActive: int, nPlane: int
) -> None:
    """Add the gradient of `point_recover_fp` to `d_feats` (M, C)."""
    voxelize_fp(d_output_feats, d_feats, idx_map, 0, nActive, maxActive, nPlane)


def roipool_fp(
    feats: Tensor, proposals_offset: Tensor, output_feats: Tensor, output_maxidx: Tensor, nProposal: int, C: int
) -> None:
    """Write the maximum of the features (N, C) of each proposal and its row to two arrays (nProposal, C).

    An empty proposal has -inf and row -1.
    """
    arrays = Arrays(nProposal=nProposal, C=C)
    rows, segment = _segments(arrays, "feats", feats, proposals_offset, "proposals_offset")
    out, out_index = (
        arrays.out("output_feats", output_feats, "nProposal C"),
        arrays.out_index("output_maxidx", output_maxidx, "nProposal C"),
    )
    value, index = pointgrad.scatter(rows, segment, nProposal, "max", return_arg=True)
    out.copy_(value.masked_fill(index < 0, -torch.inf))
    out_index.copy_(index)


def roipool_bp(
    d_feats: Tensor, proposals_offset: Tensor, output_maxidx: Tensor, d_output_feats: Tensor, nProposal: int, C: int
) -> None:
    """Add the gradient of `roipool_fp` to `d_feats` (N, C)."""
    arrays = Arrays(nProposal=nProposal, C=C)
    out, index = (
        arrays.out("d_feats", d_feats, "* C"),
        arrays.index("output_maxidx", output_maxidx, "nProposal C").long(),
    )
    gradient = arrays.floats("d_output_feats", d_output_feats, "nProposal C")
    check_index("output_maxidx", index, out.shape[0])
    valid = index >= 0
    out.scatter_add_(0, index.clamp(min=0), gradient.to(out.dtype).where(valid, 0))


def get_iou(
    proposals_idx: Tensor,
    proposals_offset: Tensor,
    instance_labels: Tensor,
    instance_pointnum: Tensor,
    proposals_iou: Tensor,
    nInstance: int,
    nProposal: int,
) -> None:
    """Write the intersection over union of proposals and instances to `proposals_iou` (nProposal, nInstance).

    `proposals_idx` has the points of all proposals, `instance_labels` (N,) the instance of each point, or a negative
    number, and `instance_pointnum` (nInstance,) the sizes of the instances. As in the original, 1e-5 is added to the
    union.
    """
    arrays = Arrays(nInstance=nInstance, nProposal=nProposal)
    points, labels = (
        arrays.index("proposals_idx", proposals_idx, "*"),
        arrays.index("instance_labels", instance_labels, "*"),
    )
    sizes = arrays.index("instance_pointnum", instance_pointnum, "nInstance")
    out = arrays.out("proposals_iou", proposals_iou, "nProposal nInstance")
    offsets = _offsets(arrays, "proposals_offset", proposals_offset, points.shape[0])
    check_index("proposals_idx", points, labels.shape[0])
    segment = torch.arange(nProposal, device=points.device).repeat_interleave(offsets.diff())
    label = labels[points.long()].long()  # for a point of -1 that of the last one, which does not count
    known = (points >= 0) & (label >= 0) & (label < nInstance)
    shared = torch.bincount(segment[known] * nInstance + label[known], minlength=nProposal * nInstance)
    shared = shared.view(nProposal, nInstance)
    union = offsets.diff().unsqueeze(1) + sizes - shared
    out.copy_(shared / (union + 1e-5))


def sec_mean(inp: Tensor, offsets: Tensor, out: Tensor, nProposal: int, C: int) -> None:
    """Write the means of the rows (N, C) between two offsets to `out` (nProposal, C); empty ones have zeros."""
    arrays = Arrays(nProposal=nProposal, C=C)
    rows, segment = _segments(arrays, "inp", inp, offsets)
    arrays.out("out", out, "nProposal C").copy_(pointgrad.scatter(rows, segment, nProposal, "mean"))


def sec_min(inp: Tensor, offsets: Tensor, out: Tensor, nProposal: int, C: int) -> None:
    """Write the minima of the rows (N, C) between two offsets to `out` (nProposal, C); empty ones have infinity."""
    arrays = Arrays(nProposal=nProposal, C=C)
    rows, segment = _segments(arrays, "inp", inp, offsets)
    value, index = pointgrad.scatter(rows, segment, nProposal, "min", return_arg=True)
    arrays.out("out", out, "nProposal C").copy_(value.masked_fill(index < 0, torch.inf))


def sec_max(inp: Tensor, offsets: Tensor, out: Tensor, nProposal: int, C: int) -> None:
    """Write the maxima of the rows (N, C) between two offsets to `out` (nProposal, C); empty ones have -infinity."""
    arrays = Arrays(nProposal=nProposal, C=C)
    rows, segment = _segments(arrays, "inp", inp, offsets)
    value, index = pointgrad.scatter(rows, segment, nProposal, "max", return_arg=True)
    arrays.out("out", out, "nProposal C").copy_(value.masked_fill(index < 0, -torch.inf))


def _balls(search: pointgrad.NeighborIndex, queries: Tensor, radius: float) -> Tensor:
    """(M, K) indices of the points in each ball, padded with -1."""
    k = 32
    while True:
        index = search.ball_query(radius, k, queries, select="first", closed=False).index
        if k == MAX_IN_BALL or not bool((index[:, -1] >= 0).any()):
            return index
        k = min(4 * k, MAX_IN_BALL)


def _components(
    labels: np.ndarray, neighbors: np.ndarray, starts: np.ndarray, lengths: np.ndarray, threshold: int
) -> list[np.ndarray]:
    """Members of each component of at least `threshold` points, in the order of a breadth-first search."""
    visited = np.zeros(len(labels), dtype=bool)
    clusters = []
    for seed in range(len(labels)):
        if visited[seed]:
            continue
        visited[seed] = True
        members = [np.array([seed])]
        while len(members[-1]):
            lists = [neighbors[starts[point] : starts[point] + lengths[point]] for point in members[-1]]
            near = np.concatenate(lists).astype(np.int64)
            near = near[(near >= 0) & ~visited[near] & (labels[near] == labels[seed])]
            _, first = np.unique(near, return_index=True)
            near = near[np.sort(first)]
            visited[near] = True
            members.append(near)
        if sum(map(len, members)) >= threshold:
            clusters.append(np.concatenate(members))
    return clusters


def _is_mean(mode: int) -> bool:
    return count_of("mode", mode, 0) == _MEAN


def _map(output_map: Tensor, nActive: int, maxActive: int, mean: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Point and voxel of each entry of a map, and its weight."""
    maxActive = count_of("maxActive", maxActive, 0)
    arrays = Arrays(nActive=nActive, width=maxActive + 1)
    table = arrays.index("output_map", output_map, "nActive width").long()
    counts = table[:, 0]
    valid = torch.arange(maxActive, device=table.device) < counts.unsqueeze(1)
    voxels = valid.nonzero()[:, 0]
    weights = 1 / counts.clamp(min=1) if mean else torch.ones_like(counts, dtype=torch.float32)
    return table[:, 1:][valid], voxels, weights[voxels]


def _add_rows(
    values: Tensor, out: Tensor, source: Tensor, target: Tensor, weights: Tensor, width: int, name: str, out_name: str
) -> None:
    """Add weighted rows `source` of `values` to rows `target` of `out`."""
    arrays = Arrays(nPlane=width)
    rows, result = arrays.floats(name, values, "* nPlane"), arrays.out(out_name, out, "* nPlane")
    check_index(out_name, target, result.shape[0])
    weighted = pointgrad.gather(rows, source) * weights.to(rows.dtype).unsqueeze(1)
    result.add_(pointgrad.scatter(weighted, target, result.shape[0]))


def _segments(
    arrays: Arrays, name: str, values: Tensor, offsets: Tensor, offsets_name: str = "offsets"
) -> tuple[Tensor, Tensor]:
    """Rows (N, C) and the segment (N,) of each."""
    rows = arrays.floats(name, values, "* C")
    bounds = _offsets(arrays, offsets_name, offsets, rows.shape[0])
    return rows, torch.arange(len(bounds) - 1, device=rows.device).repeat_interleave(bounds.diff())


def _offsets(arrays: Arrays, name: str, offsets: Tensor, total: int) -> Tensor:
    bounds = arrays.index(name, offsets, "*").long()
    checks.shape(bounds.shape[0] == arrays.sizes["nProposal"] + 1, name, "(nProposal + 1,)", offsets)
    fits = bounds[0] == 0 and bounds[-1] == total and bool((bounds.diff() >= 0).all())
    checks.value(bool(fits), name, f"non-decreasing from 0 to N = {total}", bounds.tolist())
    return bounds

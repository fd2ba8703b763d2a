"""The operators of this family in plain PyTorch.

Behind the public functions, rows are numbered through the whole batch: padded features (B, N, C) become (B * N, C).
`sources` (M, K) lists for each output and kernel position the input row, or -1. `targets` (N, K) is its inverse: for
each input and kernel position the output row. For a symmetric submanifold kernel `targets` is `sources` with the kernel
positions reversed, and is None.
"""

import itertools

import torch
from torch import Tensor

from .. import clouds
from ..sums import sum_dtype

TILE = 64  # rows of a tile of the schedule
WORD = 32  # bits of a word of the schedule
KEY_BITS = 62
INT32 = 2**31


def kernel_table(
    coordinates: Tensor,
    sizes: Tensor | None,
    outputs: Tensor | None,
    output_sizes: Tensor | None,
    readers: Tensor | None,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The input that each output reads at each kernel position.

    Output o reads input o * stride - padding + k * dilation at position k. Without `outputs` they are the inputs.
    `readers` may hold the numbers that `unique_voxels` gives the results of `sparse_readers`, (N * R,) or (B, N * R),
    if `outputs` are its voxels. They do not change the result, but a GPU then does not search.
    Of rows with equal coordinates, the first counts and the others are missing, also as outputs. So are rows beyond
    a padded cloud's length, and coordinates beyond 32 bits.

    Returns:
        sources (M, K) int32, their schedule, targets (N, K) and their schedule. Targets and their schedule are empty
        if the kernel is symmetric and outputs are the inputs.
    """
    table = _rows(coordinates, sizes)
    wanted = table if outputs is None else _rows(outputs, output_sizes)
    reads = positions(kernel, padding, dilation, wanted.device)
    queries = (wanted[:, None, 1:] * torch.tensor(stride, device=wanted.device) + reads).reshape(-1, 3)
    cloud = wanted[:, :1].expand(-1, len(reads)).reshape(-1, 1)
    sources = _find(torch.cat([cloud, queries], 1), table).reshape(len(wanted), len(reads))
    place = torch.arange(len(wanted), device=wanted.device)
    sources = torch.where((_find(wanted, wanted) == place)[:, None], sources, -1)
    if outputs is None and is_symmetric(kernel, padding, dilation):
        targets = sources.new_empty((0, sources.shape[1]), dtype=torch.int32)
        return sources.int(), schedule(sources, kernel), targets, targets.new_empty(0)
    rows, volume = len(table), sources.shape[1]
    slot = torch.where(sources >= 0, sources * volume + torch.arange(volume, device=sources.device), rows * volume)
    targets = sources.new_full((rows * volume + 1,), -1)
    targets.scatter_(0, slot.reshape(-1), place[:, None].expand_as(slot).reshape(-1))
    targets = targets[:-1].reshape(rows, volume)
    return sources.int(), schedule(sources, kernel), targets.int(), schedule(targets, kernel)


def sparse_readers(
    coordinates: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> tuple[Tensor, Tensor]:
    """The outputs that may read each input, and which of them do.

    Returns:
        voxels (N * R, 3) or (B, N * R, 3), and reads (N * R,) or (B, N * R). The R = ways^3 candidates of an input
        follow each other, numbered from 0 to ways - 1 along each axis, x slowest. Number 0 is the last output whose
        window begins at or before the input.
    """
    ways = most_ways(kernel, stride, dilation)
    at, steps, sizes, moves = (
        torch.tensor(values, device=coordinates.device) for values in (padding, stride, kernel, dilation)
    )
    if kernel == stride and padding == [0] * 3 and dilation == [1] * 3:  # windows without overlaps and gaps
        voxels = torch.div(coordinates, steps, rounding_mode="floor")
        return voxels, torch.ones_like(voxels[..., 0], dtype=torch.bool)
    moved = (coordinates + at).unsqueeze(-2)
    number = torch.arange(ways, device=coordinates.device)
    along = torch.div(moved, steps, rounding_mode="floor") - number[:, None]  # (..., ways, 3), along each axis
    reach = moved - along * steps
    reads = (reach <= (sizes - 1) * moves) & (reach % moves == 0)
    # All combinations of the candidates along x, y and z.
    places = torch.cartesian_prod(number, number, number).reshape(-1, 3)
    axes = torch.arange(3, device=coordinates.device)
    return along[..., places, axes].flatten(-3, -2), reads[..., places, axes].all(-1).flatten(-2)


def most_ways(kernel: list[int], stride: list[int], dilation: list[int]) -> int:
    """The largest number of outputs that read an input, along any axis."""
    return max((k - 1) * d // s for k, s, d in zip(kernel, stride, dilation, strict=True)) + 1


def is_symmetric(kernel: list[int], padding: list[int], dilation: list[int]) -> bool:
    """Whether position K - 1 - k is opposite to position k."""
    return all(2 * p == (k - 1) * d for k, p, d in zip(kernel, padding, dilation, strict=True))


def schedule_size(rows: int, volume: int) -> int:
    """The number of entries of a schedule of a table (rows, volume)."""
    return rows + (rows + TILE - 1) // TILE * ((volume + WORD - 1) // WORD)


def key_bits(kernel: list[int]) -> list[int]:
    """The bit of each kernel position in the key that rows are sorted by.

    Positions far from the center of the kernel, which fewer rows use, have higher bits. Kernels with more positions
    than a key has bits share bits.
    """
    places = list(itertools.product(*map(range, kernel)))
    if len(places) > KEY_BITS:
        return [position % KEY_BITS for position in range(len(places))]
    distance = [sum((2 * at - size + 1) ** 2 for at, size in zip(place, kernel, strict=True)) for place in places]
    bits = [0] * len(places)
    for bit, position in enumerate(sorted(range(len(places)), key=distance.__getitem__)):
        bits[position] = bit
    return bits


def schedule(table: Tensor, kernel: list[int]) -> Tensor:
    """An order of the rows of a table (M, K) in which rows that use the same kernel positions follow each other.

    Rows are sorted by the positions that they use, as Gray codes: adjacent codes differ in one position. Equal ones are
    sorted by row.

    Returns:
        One int32 vector that consists of two parts: the order (M,); and for each tile of 64 rows of this order, one bit
        for each position that any of them uses, in words of 32 bits.
    """
    rows, volume = table.shape
    present = table >= 0
    key = torch.zeros(rows, dtype=torch.int64, device=table.device)
    for position, bit in enumerate(key_bits(kernel)):
        key |= present[:, position].long() << bit
    for shift in (1, 2, 4, 8, 16, 32):  # the place of a Gray code among all codes
        key ^= key >> shift
    order = key.argsort(stable=True)
    tiles, words = (rows + TILE - 1) // TILE, (volume + WORD - 1) // WORD
    padded = present.new_zeros(tiles * TILE, words * WORD)
    padded[:rows, :volume] = present[order]
    used = padded.reshape(tiles, TILE, words, WORD).any(1)
    masks = (used.long() << torch.arange(WORD, device=table.device)).sum(2)
    return torch.cat([order, masks.reshape(-1)]).int()


def _rows(coordinates: Tensor, sizes: Tensor | None) -> Tensor:
    """(R, 4) cloud and coordinates of each row; the cloud of a row that is missing is -1."""
    rows = coordinates.reshape(-1, 3).long()
    batch = clouds.batch_size(coordinates, sizes)
    if coordinates.dim() == 2:
        cloud = clouds.ids(coordinates, sizes)
        missing = torch.full_like(cloud, batch == 0, dtype=torch.bool)
    else:
        place = torch.arange(coordinates.shape[1], device=rows.device).expand(coordinates.shape[:2])
        missing = (place >= clouds.num_points(coordinates, sizes)[:, None]).reshape(-1)
        cloud = torch.arange(batch, device=rows.device).repeat_interleave(coordinates.shape[1])
    missing = missing | ((rows < -INT32) | (rows >= INT32)).any(1)
    return torch.cat([torch.where(missing, -1, cloud)[:, None], torch.where(missing[:, None], 0, rows)], 1)


def positions(kernel: list[int], padding: list[int], dilation: list[int], device: torch.device) -> Tensor:
    """(K, 3) the distance of each kernel position from stride * output, x slowest."""
    steps = [torch.arange(k, device=device) * d - p for k, p, d in zip(kernel, padding, dilation, strict=True)]
    return torch.stack(torch.meshgrid(*steps, indexing="ij"), -1).reshape(-1, 3)


def _find(queries: Tensor, table: Tensor) -> Tensor:
    """The first row of a table (N, 4) that equals each query (Q, 4), or -1. Cloud -1 equals nothing."""
    rank = torch.zeros_like(table[:, 0])
    found = torch.where(queries[:, 0] >= 0, 0, -1)
    for axis in range(4):
        # Number the different beginnings of rows; the number of the next axis follows from that of this one.
        values, own = torch.unique(table[:, axis], return_inverse=True)
        key = rank * len(values) + own
        other = _place(queries[:, axis], values)
        wanted = torch.where((found >= 0) & (other >= 0), found * len(values) + other, -1)
        keys, rank = torch.unique(key, return_inverse=True)
        found = _place(wanted, keys)
    place = torch.arange(len(table), device=table.device)
    first = torch.full_like(place, len(table)).scatter_reduce_(0, rank, place, "amin")
    return torch.where(found >= 0, torch.cat([first, first.new_zeros(1)])[found], -1)


def _place(queries: Tensor, values: Tensor) -> Tensor:
    """The place of each query among sorted values, or -1."""
    if len(values) == 0:
        return torch.full_like(queries, -1)
    place = torch.searchsorted(values, queries.contiguous()).clamp_(max=len(values) - 1)
    return torch.where(values[place] == queries, place, -1)


def sparse_conv(
    features: Tensor,
    weight: Tensor,
    sources: Tensor,
    source_schedule: Tensor,
    targets: Tensor | None,
    target_schedule: Tensor | None,
    flip: bool,
    groups: int,
) -> Tensor:
    """out[m] = sum over k of features[sources[m, k]] @ weight[k], or weight[K - 1 - k] with `flip`.

    features (N, C), weight (K, C / groups, D), result (M, D). The targets are needed for gradients only.
    """
    rows, volume = sources.shape
    wide = sum_dtype(features.dtype)
    total = features.new_zeros((rows, weight.shape[2]), dtype=wide)
    for position in range(volume):
        matrix = weight[volume - 1 - position if flip else position].to(wide)
        picked, inside = _pick(features, sources[:, position])
        total += torch.where(inside, _grouped(picked.to(wide), matrix, groups), 0)
    return total.to(features.dtype)


def sparse_conv_weight(
    features: Tensor,
    grad: Tensor,
    sources: Tensor,
    source_schedule: Tensor,
    targets: Tensor | None,
    target_schedule: Tensor | None,
    flip: bool,
    groups: int,
) -> Tensor:
    """The gradient of `sparse_conv` by its weight, (K, C / groups, D): for each k, features[sources[:, k]].T @ grad."""
    volume, wide = sources.shape[1], sum_dtype(features.dtype)
    inputs, outputs = features.shape[1] // groups, grad.shape[1] // groups
    total = features.new_zeros((volume, inputs, groups * outputs), dtype=wide)
    by_group = grad.to(wide).reshape(len(grad), groups, outputs).transpose(0, 1)
    for position in range(volume):
        picked, _ = _pick(features, sources[:, position])
        picked = picked.to(wide).reshape(len(grad), groups, inputs).permute(1, 2, 0)
        product = (picked @ by_group).transpose(0, 1).reshape(inputs, groups * outputs)
        total[volume - 1 - position if flip else position] = product
    return total.to(features.dtype)


def _pick(features: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Rows by index, zeros for -1 and indices out of range; and (M, 1) which rows exist."""
    inside = ((index >= 0) & (index < len(features)))[:, None]
    if len(features) == 0:
        return features.new_zeros((len(index), features.shape[1])), inside
    return torch.where(inside, features[torch.where(inside[:, 0], index, 0)], 0), inside


def _grouped(rows: Tensor, matrix: Tensor, groups: int) -> Tensor:
    """(M, C) times (C / groups, D): each group of channels has its own columns."""
    if groups == 1:
        return rows @ matrix
    inputs, outputs = matrix.shape[0], matrix.shape[1] // groups
    left = rows.reshape(len(rows), groups, inputs).transpose(0, 1)
    right = matrix.reshape(inputs, groups, outputs).transpose(0, 1)
    return (left @ right).transpose(0, 1).reshape(len(rows), groups * outputs)


def sparse_max(features: Tensor, sources: Tensor, targets: Tensor | None) -> tuple[Tensor, Tensor]:
    """The maximum (M, C) over the kernel positions, 0 if there are none; and (M, C) int32 the row that holds it, or -1.

    Of equal values, the first position counts. NaN is greater than all numbers. The targets are needed for gradients.
    """
    best = features.new_zeros((len(sources), features.shape[1]))
    arg = torch.full_like(best, -1, dtype=torch.int32)
    for position in range(sources.shape[1]):
        index = sources[:, position]
        value, inside = _pick(features, index)
        better = inside & ((arg < 0) | (value > best) | ((value != value) & (best == best)))
        best = torch.where(better, value, best)
        arg = torch.where(better, index[:, None].int(), arg)
    return best, arg


def sparse_max_backward(grad: Tensor, arg: Tensor, sources: Tensor, targets: Tensor | None) -> Tensor:
    """The gradient of `sparse_max` by its features (N, C): each row gets those of the outputs whose maximum it is."""
    table = sources.flip(1) if targets is None else targets
    wide = sum_dtype(grad.dtype)
    total = grad.new_zeros((len(table), grad.shape[1]), dtype=wide)
    row = torch.arange(len(table), device=grad.device)[:, None]
    for position in range(table.shape[1]):
        index = table[:, position]
        value, inside = _pick(grad.to(wide), index)
        winner, _ = _pick(arg, index)
        total += torch.where(inside & (winner == row), value, 0)
    return total.to(grad.dtype)

"""Class probabilities of the points of one tile: windows, network, votes.

One part of the scene at a time is passed to the network. The plane is divided into square windows `votes` times, each
time with a different shift, so that a point near the border of one window is well inside another. Votes near a border
have less weight. The input for a window depends on how the network was trained (`Prepare`):

- Trained on clouds scaled into a sphere: all points of the window, in random parts of `points` if there are more.
- Trained on crops, the `points` nearest neighbors of a point: the window, divided into parts if it has too many points,
  each with the nearest points around it, which do not vote.
- Trained without `points`, on clouds of any size: all points of the window, in parts of at most `max_points`.

All windows of a scene lie on one grid, and their random numbers depend only on their position in it, so that the result
does not depend on the tiles.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from pointgrad.data import Cloud, collate
from pointgrad.ops.neighbors import knn
from pointgrad.train import Trained

GOLDEN = (math.sqrt(5) - 1) / 2
LEAST_WEIGHT = 1e-3  # at the border of a window, for points without a better vote
AROUND = 0.5  # width of the surroundings shown with a window, relative to the window
FULL = 0.75  # maximum fraction of the input taken from the window; the rest is context
INDEX = "pointgrad.index"  # additional feature: index of the point before preparation


@dataclass(frozen=True)
class Options:
    """Division of a scene into network inputs.

    Attributes:
        window: Edge length of the square columns that are passed to the network; infinity for the whole scene.
        votes: Minimum number of votes for each point.
        max_points: Number of points in one call of the network.
    """

    window: float
    votes: int
    max_points: int


@dataclass(frozen=True)
class Block:
    """Points that are passed to the network together: their indices (n,) and the weights (n,) of their votes."""

    index: Tensor
    weight: Tensor
    generator: torch.Generator


def margin(trained: Trained, window: float) -> float:
    """Width of the margin that affects a tile: a window, its surroundings, and the voxels at their borders."""
    return (1 + AROUND) * window + 3 * trained.prepare.voxel


def sees_objects(trained: Trained) -> bool:
    """Whether the network was trained on objects of normalized size, not on crops of scenes."""
    return trained.prepare.normalize == "sphere"


def size_of_piece(trained: Trained, max_points: int) -> int:
    """Maximum number of points in one call of the network."""
    return trained.prepare.points or max_points


def device_of(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def thin(trained: Trained, cloud: Cloud) -> Tensor:
    """Return the indices (M,) of the points left after voxel subsampling as in training."""
    prepare = replace(trained.prepare, points=0, normalize="none", features=(), feature_center=(), feature_scale=())
    numbered = replace(cloud, features={INDEX: torch.arange(len(cloud))}, labels=None)
    return prepare(numbered, torch.Generator()).features[INDEX]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode without gradients, and restore the mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        if was_training:
            model.train()


def probabilities(trained: Trained, cloud: Cloud, core: Tensor, options: Options) -> Tensor:
    """Predict the class probabilities of a tile.

    Args:
        trained: The network.
        cloud: The N points of the tile and its margin.
        core: Mask (N,) of the n points of the tile; at least one.
        options: Division into network inputs.

    Returns:
        Probabilities (n, classes), on the device of the network.
    """
    device = device_of(trained.model)
    kept = thin(trained, cloud)
    thinned = cloud.select(kept)
    wanted = cloud.points[core]
    votes = torch.zeros(len(thinned), len(trained.classes), device=device)
    blocks = _blocks(trained, thinned.points, _near(thinned.points, wanted, 2 * trained.prepare.voxel), options)
    with evaluating(trained.model):
        for batch in _batches(blocks, options.max_points):
            votes.index_add_(0, *_predict(trained, thinned, batch, device))
    seen = _nearest(thinned.points, wanted, device) if trained.prepare.voxel else core.nonzero()[:, 0].to(device)
    votes = votes[seen]
    return votes / votes.sum(1, keepdim=True)


def _near(points: Tensor, wanted: Tensor, distance: float) -> np.ndarray:
    """Mask (N,) of the points in the bounding rectangle of `wanted`, enlarged by `distance`."""
    low, high = wanted.amin(0).double() - distance, wanted.amax(0).double() + distance
    return ((points >= low) & (points <= high))[:, :2].all(1).numpy()


def _nearest(points: Tensor, queries: Tensor, device: torch.device) -> Tensor:
    # float64 searches are slow on GPUs; float32 is accurate enough near zero.
    middle = points.double().mean(0)
    dtype = torch.float64 if device.type == "cpu" else torch.float32
    centered, centered_queries = ((cloud.double() - middle).to(device, dtype) for cloud in (points, queries))
    return knn(centered, 1, centered_queries).index[:, 0]


def _blocks(trained: Trained, points: Tensor, needed: np.ndarray, options: Options) -> Iterator[Block]:
    size = size_of_piece(trained, options.max_points)
    has_context = bool(trained.prepare.points) and not math.isinf(options.window)
    own = max(1, int(FULL * size)) if has_context else size
    xyz = points.double().numpy()
    by_x = np.argsort(xyz[:, 0], kind="stable")
    x = xyz[by_x, 0]
    for vote in range(options.votes):
        for position, members, weight in _windows(xyz[:, :2], needed, options.window, vote, options.votes):
            seed = np.random.SeedSequence([vote, *(part % 2**64 for part in position)]).generate_state(1, np.uint64)
            generator = torch.Generator().manual_seed(int(seed[0] >> 1))
            if sees_objects(trained):
                parts = _random_parts(len(members), size, generator)
                yield from (
                    Block(torch.from_numpy(members[part]), torch.from_numpy(weight[part]), generator) for part in parts
                )
                continue
            around = _around(xyz, by_x, x, members, AROUND * options.window) if has_context else members[:0]
            for part in _cut(xyz[members], own):
                if needed[members[part]].any():
                    index, votes = _with_context(xyz, members[part], weight[part], around, size)
                    yield Block(torch.from_numpy(index), torch.from_numpy(votes), generator)
        if math.isinf(options.window) and len(xyz) <= size:
            return  # further votes would be identical


def _windows(
    xy: np.ndarray, needed: np.ndarray, window: float, vote: int, votes: int
) -> Iterator[tuple[tuple[int, int], np.ndarray, np.ndarray]]:
    """Yield grid position, point indices and weights of each window that contains a needed point."""
    if math.isinf(window):
        yield (0, 0), np.arange(len(xy)), np.ones(len(xy), np.float32)
        return
    # The shifts are evenly distributed along both axes: a point is near a border of at most two of the grids.
    scaled = xy / window + (vote / votes, vote * GOLDEN % 1)
    position = np.floor(scaled)
    inside = 1 - np.abs(2 * (scaled - position) - 1)  # 0 at the border, 1 in the middle
    weight = inside.prod(1).clip(LEAST_WEIGHT).astype(np.float32)
    order = np.lexsort(position.T)
    changes = (position[order][1:] != position[order][:-1]).any(1)
    for members in np.split(order, np.flatnonzero(changes) + 1):
        if needed[members].any():
            members.sort()
            row, column = position[members[0]]
            yield (int(row), int(column)), members, weight[members]


def _random_parts(count: int, size: int, generator: torch.Generator) -> Iterator[np.ndarray]:
    """Divide `count` indices into random parts of equal size; the last part is filled up with indices of the first."""
    if count <= size:
        yield np.arange(count)
        return
    order = torch.randperm(count, generator=generator)
    yield from (part.sort().values.numpy() for part in torch.cat([order, order[: -count % size]]).split(size))


def _cut(xyz: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Divide points into compact parts of at most `size` by repeated halving along the longest side."""
    todo = [np.arange(len(xyz))]
    while todo:
        part = todo.pop()
        if len(part) <= size:
            yield part
            continue
        longest = int(np.ptp(xyz[part], axis=0).argmax())
        order = part[np.argsort(xyz[part, longest], kind="stable")]
        todo += [np.sort(order[len(order) // 2 :]), np.sort(order[: len(order) // 2])]


def _around(xyz: np.ndarray, by_x: np.ndarray, x: np.ndarray, members: np.ndarray, distance: float) -> np.ndarray:
    """Return the points in the bounding rectangle of `members`, enlarged by `distance`.

    by_x (N,) is the order of all points along x, and x (N,) their sorted coordinates.
    """
    low, high = xyz[members, :2].min(0) - distance, xyz[members, :2].max(0) + distance
    first, last = np.searchsorted(x, [low[0], np.nextafter(high[0], np.inf)])
    strip = by_x[first:last]
    return np.sort(strip[(xyz[strip, 1] >= low[1]) & (xyz[strip, 1] <= high[1])])


def _with_context(
    xyz: np.ndarray, part: np.ndarray, weight: np.ndarray, around: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Add the nearest points around a part of a window, up to `size` points; returns indices and weights of votes."""
    others = np.setdiff1d(around, part, assume_unique=True)
    wanted = min(size - len(part), len(others))
    if wanted < len(others):
        distance2 = ((xyz[others] - xyz[part].mean(0)) ** 2).sum(1)
        others = others[np.argpartition(distance2, wanted)[:wanted]]
    index = np.concatenate([part, others])
    votes = np.concatenate([weight, np.zeros(len(others), np.float32)])
    order = np.argsort(index)
    return index[order], votes[order]


def _batches(blocks: Iterable[Block], max_points: int) -> Iterator[list[Block]]:
    batch: list[Block] = []
    count = 0
    for block in blocks:
        if batch and count + len(block.index) > max_points:
            yield batch
            batch, count = [], 0
        batch.append(block)
        count += len(block.index)
    if batch:
        yield batch


def _predict(trained: Trained, cloud: Cloud, blocks: list[Block], device: torch.device) -> tuple[Tensor, Tensor]:
    """Run the network on a batch; returns indices (n,) of the points and their weighted votes (n, classes)."""
    prepare = replace(trained.prepare, voxel=0.0)
    index = torch.cat([block.index for block in blocks])
    weight = torch.cat([block.weight for block in blocks])
    clouds, first = [], 0
    for block in blocks:
        part = cloud.select(block.index)
        part.features[INDEX] = torch.arange(first, first + len(block.index))
        clouds.append(prepare(part, block.generator))
        first += len(block.index)
    seen = torch.cat([part.features[INDEX] for part in clouds])
    batch = collate(clouds, prepare.features).to(device)
    logits = trained.model(**batch.inputs()).reshape(len(seen), -1)
    votes = logits.float().softmax(1) * weight[seen].to(device)[:, None]
    return index[seen].to(device), votes

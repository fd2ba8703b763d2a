"""What `precision.py` measures: each operator that computes with floating numbers, beside the same in plain PyTorch.

The plain form is what one writes without this library: every step in the dtype of the inputs. In float64 it is the
truth. Indices are drawn once and the same for both, so that only arithmetic differs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import pointgrad

Arguments = dict[str, Any]


@dataclass
class Draw:
    """Random inputs of about `size` rows: drawn in float64, rounded once to the dtype that is measured."""

    dtype: torch.dtype
    size: int
    generator: torch.Generator = field(default_factory=torch.Generator)

    def floats(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def positive(self, *shape: int) -> Tensor:
        return (torch.rand(shape, generator=self.generator, dtype=torch.float64) + 0.1).to(self.dtype)

    def distinct(self, rows: int, *columns: int) -> Tensor:
        """No two equal numbers along the first dimension, of at most 256: which one is the largest is no rounding."""
        order = torch.rand((rows, *columns), generator=self.generator).argsort(0)
        return (order - rows // 2).to(self.dtype) / 4

    def index(self, rows: int, *shape: int) -> Tensor:
        return torch.randint(-1, rows, shape, generator=self.generator)

    def below(self, rows: int, *shape: int) -> Tensor:
        return torch.randint(0, rows, shape, generator=self.generator)

    def offsets(self, rows: int, segments: int) -> Tensor:
        cuts = torch.randint(0, rows + 1, (segments - 1,), generator=self.generator).sort().values
        return torch.cat([torch.tensor([0]), cuts, torch.tensor([rows])])


@dataclass(frozen=True)
class Subject:
    name: str
    ours: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    inputs: Callable[[Draw], Arguments]
    fixed: tuple[str, ...] = ()  # floating, but without a gradient
    wide: bool = False  # torch has it in no 16 bits on some device: then it is computed in float32 and rounded


def rows(features: Tensor, index: Tensor) -> Tensor:
    """features[index], zeros for -1."""
    return torch.where((index >= 0).unsqueeze(-1), features[index.clamp(min=0)], 0)


def scatter_sum(values: Tensor, index: Tensor, size: int) -> Tensor:
    kept = index >= 0
    return values.new_zeros(size, values.shape[1]).index_add(0, index[kept], values[kept])


def scatter_mean(values: Tensor, index: Tensor, size: int) -> Tensor:
    count = torch.bincount(index[index >= 0], minlength=size).clamp(min=1)
    return scatter_sum(values, index, size) / count.unsqueeze(-1).to(values.dtype)


def scatter_max(values: Tensor, index: Tensor, size: int) -> Tensor:
    groups = [values[index == group] for group in range(size)]
    return torch.stack([group.amax(0) if len(group) else values.new_zeros(values.shape[1]) for group in groups])


def segments(values: Tensor, offsets: Tensor) -> list[Tensor]:
    return list(values.split(offsets.diff().tolist()))


def segment_sum(values: Tensor, offsets: Tensor) -> Tensor:
    return torch.stack([segment.sum(0) for segment in segments(values, offsets)])


def segment_mean(values: Tensor, offsets: Tensor) -> Tensor:
    return torch.stack([segment.sum(0) / max(len(segment), 1) for segment in segments(values, offsets)])


def segment_max(values: Tensor, offsets: Tensor) -> Tensor:
    nothing = values.new_zeros(values.shape[1])
    return torch.stack([segment.amax(0) if len(segment) else nothing for segment in segments(values, offsets)])


def distance2(points: Tensor, queries: Tensor, index: Tensor) -> Tensor:
    found = (points[index.clamp(min=0)] - queries.unsqueeze(1)).square().sum(-1)
    return torch.where(index >= 0, found, torch.inf)


def inverse_distance(features: Tensor, points: Tensor, queries: Tensor, index: Tensor) -> Tensor:
    weights = 1 / distance2(points, queries, index).sqrt()
    return weighted(features, index, weights / weights.sum(1, keepdim=True))


def weighted(features: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    return (weights.unsqueeze(-1) * rows(features, index)).sum(1)


def chamfer(points: Tensor, targets: Tensor) -> Tensor:
    pairs = (points.unsqueeze(1) - targets).square().sum(-1)
    return pairs.amin(1).mean() + pairs.amin(0).mean()


def corners_weighted(corners: Tensor, points: Tensor) -> Tensor:
    shares = torch.stack([(1 - points) / 2, (1 + points) / 2])
    weights = [shares[x, :, 0] * shares[y, :, 1] * shares[z, :, 2] for x in (0, 1) for y in (0, 1) for z in (0, 1)]
    return (torch.stack(weights, 1).unsqueeze(-1) * corners).sum(1)


def splat(features: Tensor, points: Tensor, size: tuple[int, int, int]) -> Tensor:
    sizes = torch.tensor(size[::-1], dtype=points.dtype, device=points.device)
    place = ((points + 1) * sizes - 1) / 2
    low = place.floor()
    grid = features.new_zeros(features.shape[0], size[0] * size[1] * size[2], features.shape[2])
    for corner in range(8):
        step = torch.tensor([corner & 1, corner >> 1 & 1, corner >> 2], device=points.device)
        weight = torch.where(step == 1, place - low, 1 - (place - low)).prod(-1)
        x, y, z = (low.long() + step).unbind(-1)
        inside = (x >= 0) & (x < size[2]) & (y >= 0) & (y < size[1]) & (z >= 0) & (z < size[0])
        voxel = torch.where(inside, (z * size[1] + y) * size[2] + x, 0)
        share = torch.where(inside, weight, 0).unsqueeze(-1) * features
        grid = grid.scatter_add(1, voxel.unsqueeze(-1).expand_as(share), share)
    return grid.mT.unflatten(-1, size)


def sampled(grid: Tensor, points: Tensor) -> Tensor:
    found = F.grid_sample(grid, points[:, :, None, None], align_corners=False)
    return found[..., 0, 0].mT


def softmax_where(logits: Tensor, mask: Tensor) -> Tensor:
    return logits.masked_fill(~mask, -torch.inf).softmax(-1)


def attention(query: Tensor, key: Tensor, value: Tensor, index: Tensor, bias: Tensor) -> Tensor:
    logits = (query.unsqueeze(1) * key[index.clamp(min=0)]).sum(-1) * query.shape[-1] ** -0.5 + bias
    shares = logits.masked_fill((index < 0).unsqueeze(-1), -torch.inf).softmax(1)
    return (shares.unsqueeze(-1) * value[index.clamp(min=0)]).sum(1)


def covering(points: Tensor, picks: Tensor) -> Tensor:
    """The covering radius after each pick."""
    pairs = (points.unsqueeze(1) - points[picks]).square().sum(-1)
    return pairs.cummin(1).values.amax(0).sqrt()


def search(draw: Draw, **options: Any) -> Arguments:
    """Clouds and what is near in them, looked for in float64."""
    points, queries = draw.floats(draw.size, 3), draw.floats(draw.size, 3)
    with pointgrad.backend("reference"):
        found = pointgrad.ball_query(points.double(), options.get("radius", torch.inf), 5, queries.double())
    return {"points": points, "queries": queries, "index": found.index}


def with_features(draw: Draw) -> Arguments:
    return {"features": draw.floats(draw.size, 16), **search(draw)}


def picked(draw: Draw) -> Arguments:
    points = draw.floats(draw.size, 3)
    with pointgrad.backend("reference"):
        return {"points": points, "picks": pointgrad.farthest_point_sampling(points.double(), 16)}


def heads(draw: Draw) -> Arguments:
    n, index = draw.size, draw.index(draw.size, draw.size, 12)
    index[:, 0] = 0  # nobody is alone
    shapes = {"query": (n, 4, 8), "key": (n, 4, 8), "value": (n, 4, 8), "bias": (n, 12, 4)}
    return {**{name: draw.floats(*shape) for name, shape in shapes.items()}, "index": index}


def masked(draw: Draw) -> Arguments:
    mask = draw.below(3, draw.size, 20) > 0
    mask[:, 0] = True
    return {"logits": draw.floats(draw.size, 20), "mask": mask}


def images(draw: Draw) -> Tensor:
    return draw.floats(2, 6, 9, max(draw.size // 20, 7))


SIZE = (4, 5, 6)
KERNEL: Arguments = {"kernel_size": (3, 2), "dilation": (1, 2), "padding": (1, 0), "stride": (2, 1)}

SUBJECTS = [
    Subject("scatter, sum", lambda values, index: pointgrad.scatter(values, index, 10), lambda values, index: scatter_sum(values, index, 10),
            lambda d: {"values": d.floats(d.size, 16), "index": d.index(10, d.size)}),
    Subject("scatter, mean", lambda values, index: pointgrad.scatter(values, index, 10, "mean"),
            lambda values, index: scatter_mean(values, index, 10), lambda d: {"values": d.floats(d.size, 16), "index": d.index(10, d.size)}),
    Subject("scatter, max", lambda values, index: pointgrad.scatter(values, index, 10, "max"),
            lambda values, index: scatter_max(values, index, 10),
            lambda d: {"values": d.distinct(min(d.size, 256), 8), "index": d.index(10, min(d.size, 256))}),
    Subject("scatter, min", lambda values, index: pointgrad.scatter(values, index, 10, "min"),
            lambda values, index: -scatter_max(-values, index, 10),
            lambda d: {"values": d.distinct(min(d.size, 256), 8), "index": d.index(10, min(d.size, 256))}),
    Subject("segment, sum", pointgrad.segment, segment_sum, lambda d: {"values": d.floats(d.size, 16), "offsets": d.offsets(d.size, 6)}),
    Subject("segment, mean", lambda values, offsets: pointgrad.segment(values, offsets, "mean"), segment_mean,
            lambda d: {"values": d.floats(d.size, 16), "offsets": d.offsets(d.size, 6)}),
    Subject("segment, max", lambda values, offsets: pointgrad.segment(values, offsets, "max"), segment_max,
            lambda d: {"values": d.distinct(min(d.size, 256), 8), "offsets": d.offsets(min(d.size, 256), 6)}),
    Subject("segment_softmax", pointgrad.segment_softmax,
            lambda logits, offsets: torch.cat([segment.softmax(0) for segment in segments(logits, offsets)]),
            lambda d: {"logits": d.floats(d.size, 8), "offsets": d.offsets(d.size, 12)}),
    Subject("histogram, weights", lambda index, weights: pointgrad.histogram(index, 10, weights),
            lambda index, weights: scatter_sum(weights.unsqueeze(-1), index, 10).squeeze(-1),
            lambda d: {"index": d.index(10, d.size), "weights": d.positive(d.size)}),
    Subject("chamfer_distance", pointgrad.chamfer_distance, chamfer, lambda d: {"points": d.floats(d.size, 3), "targets": d.floats(d.size // 2, 3)}),
    Subject("farthest_point_sampling, radius", lambda points, picks: pointgrad.farthest_point_sampling(points, 16, return_radius=True).radius,
            covering, picked, fixed=("points",)),
    Subject("voxelize, centres", lambda points: pointgrad.gather((found := pointgrad.voxelize(points, 0.3)).centers, found.inverse),
            lambda points: ((points / 0.3).floor() + 0.5) * 0.3, lambda d: {"points": d.floats(d.size, 3)}, fixed=("points",)),
]  # fmt: skip


def converted(new):
    """These subjects in the form of precision.py."""
    from pointgrad.catalog import OpInfo

    def build(subject):
        def inputs(m):
            arguments = subject.inputs(Draw(m.dtype, m.rows, torch.Generator().manual_seed(torch.initial_seed())))
            return {k: v.to(m.device) if isinstance(v, Tensor) else v for k, v in arguments.items()}

        return inputs

    def op(subject):
        arguments = subject.inputs(Draw(torch.float32, 60))
        floats = [k for k, v in arguments.items() if isinstance(v, Tensor) and v.is_floating_point()]
        return OpInfo(
            subject.name.partition(",")[0], subject.ours, (), tuple(k for k in floats if k not in subject.fixed)
        )

    return [new(subject.name, op(subject), build(subject), subject.ours, subject.plain) for subject in SUBJECTS]

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
from pointgrad import functional

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
    Subject("interpolate", lambda features, points, queries, index: pointgrad.interpolate(features, points, queries, 5), inverse_distance,
            with_features),
    Subject("interpolate_at", pointgrad.interpolate_at, weighted,
            lambda d: {"features": d.floats(d.size, 16), "index": d.index(d.size, d.size, 3), "weights": d.positive(d.size, 3)}),
    Subject("trilinear", pointgrad.trilinear, corners_weighted, lambda d: {"corners": d.floats(d.size, 8, 16), "points": d.floats(d.size, 3) / 2}),
    Subject("grid_sample", pointgrad.grid_sample, sampled,
            lambda d: {"grid": d.floats(2, 8, *SIZE), "points": d.floats(2, d.size, 3) / 2}, wide=True),
    Subject("splat", lambda features, points: pointgrad.splat(features, points, SIZE), lambda features, points: splat(features, points, SIZE),
            lambda d: {"features": d.floats(2, d.size, 8), "points": d.floats(2, d.size, 3) / 2}),
    Subject("masked_softmax", pointgrad.masked_softmax, softmax_where, masked),
    Subject("aggregate", pointgrad.aggregate,
            lambda weights, values, index: (weights.repeat_interleave(4, -1) * rows(values, index)).sum(1),
            lambda d: {"weights": d.floats(d.size, 12, 4), "values": d.floats(d.size, 16), "index": d.index(d.size, d.size, 12)}),
    Subject("neighbor_attention", pointgrad.neighbor_attention, attention, heads),
    Subject("unfold", lambda input: pointgrad.functional.unfold(input, **KERNEL), lambda input: F.unfold(input, **KERNEL), lambda d: {"input": images(d)},
            wide=True),
    Subject("fold", lambda input: pointgrad.functional.fold(input, (9, 9), **KERNEL), lambda input: F.fold(input, (9, 9), **KERNEL),
            lambda d: {"input": d.floats(2, 36, 35)}, wide=True),
    Subject("conv2d", pointgrad.functional.conv2d, F.conv2d, lambda d: {"input": images(d), "weight": d.floats(4, 6, 3, 2), "bias": d.floats(4)}, wide=True),
    Subject("conv1d", pointgrad.functional.conv1d, F.conv1d, lambda d: {"input": d.floats(2, 6, d.size), "weight": d.floats(4, 6, 3), "bias": d.floats(4)},
            wide=True),
    Subject("max_pool2d", lambda input: functional.max_pool2d(input, 3, stride=2), lambda input: F.max_pool2d(input, 3, stride=2),
            lambda d: {"input": d.distinct(256, 4, 2).permute(2, 1, 0).reshape(2, 4, 16, 16)}, wide=True),
    Subject("cross_entropy", functional.cross_entropy, F.cross_entropy, lambda d: {"input": d.floats(d.size, 20), "target": d.below(20, d.size)},
            wide=True),
    Subject("cross_entropy, weights and smoothing",
            lambda input, target, weight: functional.cross_entropy(input, target, weight, label_smoothing=0.1, reduction="none"),
            lambda input, target, weight: F.cross_entropy(input, target, weight, label_smoothing=0.1, reduction="none"),
            lambda d: {"input": d.floats(d.size, 20), "target": d.below(20, d.size), "weight": d.positive(20)}, fixed=("weight",), wide=True),
    Subject("cross_entropy, probabilities", functional.cross_entropy, F.cross_entropy,
            lambda d: {"input": d.floats(d.size, 20), "target": d.floats(d.size, 20).double().softmax(1).to(d.dtype)}, wide=True),
    Subject("nll_loss", functional.nll_loss, F.nll_loss, lambda d: {"input": -d.positive(d.size, 20), "target": d.below(20, d.size)}, wide=True),
    Subject("softmax", lambda input: functional.softmax(input, 1), lambda input: F.softmax(input, 1), lambda d: {"input": d.floats(d.size, 20)}),
    Subject("log_softmax", lambda input: functional.log_softmax(input, 1), lambda input: F.log_softmax(input, 1),
            lambda d: {"input": d.floats(d.size, 20)}),
    Subject("log", functional.log, torch.log, lambda d: {"input": d.positive(d.size, 20)}),
    Subject("relu", functional.relu, F.relu, lambda d: {"input": d.floats(d.size, 20)}),
    Subject("mean", lambda input: functional.mean(input, 0), lambda input: input.mean(0), lambda d: {"input": d.floats(d.size, 20)}),
    Subject("cat", lambda a, b: functional.cat([a, b], 1), lambda a, b: torch.cat([a, b], 1),
            lambda d: {"a": d.floats(d.size, 3), "b": d.floats(d.size, 4)}),
    Subject("linear", functional.linear, F.linear, lambda d: {"input": d.floats(d.size, 64), "weight": d.floats(16, 64), "bias": d.floats(16)}),
    Subject("cosine_similarity", functional.cosine_similarity, F.cosine_similarity,
            lambda d: {"x1": d.floats(d.size, 20), "x2": d.floats(d.size, 20)}),
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

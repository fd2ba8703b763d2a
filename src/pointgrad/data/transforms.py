"""Transforms for augmentation and preparation: callables `transform(cloud, generator) -> Cloud`.

All randomness comes from the generator. The input is never modified; unchanged tensors are shared with the result.
Labels and features stay with their points. Normals are transformed along: features called normal (N, 3), or nx, ny, nz,
or normal_x, normal_y, normal_z. Clouds with one point or none are valid input. Non-finite points are kept unless stated
otherwise; `DropInvalid` removes them. `Cloud.origin` does not change, so world coordinates are meaningless afterwards.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Generator, Tensor
from torch.nn.functional import normalize

from pointgrad.data.cloud import Cloud
from pointgrad.ops.sampling import voxel_sampling

NORMALS = (("nx", "ny", "nz"), ("normal_x", "normal_y", "normal_z"))  # names in files

Transform = Callable[[Cloud, Generator], Cloud]


class Compose:
    """Apply several transforms in sequence.

    Args:
        transforms: The transforms.

    Example:
        >>> Compose(Scale(2, 2), Translate(0))(Cloud(torch.ones(1, 3)), torch.Generator()).points
        tensor([[2., 2., 2.]])
    """

    def __init__(self, *transforms: Transform) -> None:
        self.transforms = transforms

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        for transform in self.transforms:
            cloud = transform(cloud, generator)
        return cloud

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.transforms))})"


@dataclass(frozen=True)
class Rotate:
    """Rotate about an axis through the origin.

    Attributes:
        axis: "x", "y", "z", or "any" for a uniformly distributed axis. With "any" and 180 degrees, the rotation is
            uniformly distributed over all rotations.
        degrees: The angle is uniform in [-degrees, degrees].

    Example:
        >>> Rotate("z", 0)(Cloud(torch.ones(1, 3)), torch.Generator()).points
        tensor([[1., 1., 1.]])
    """

    axis: Literal["x", "y", "z", "any"] = "z"
    degrees: float = 180.0

    def __post_init__(self) -> None:
        _check(self.axis in ("x", "y", "z", "any"), "axis must be x, y, z or any", repr(self.axis))
        _check(0 <= self.degrees <= 180, "degrees must be in [0, 180]", self.degrees)

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        turn = torch.tensor(self._matrix(generator), dtype=cloud.points.dtype)
        features = _with_normals(cloud.features, lambda normal: normal @ turn.to(normal.dtype))
        return replace(cloud, points=cloud.points @ turn, features=features)

    def _matrix(self, generator: Generator) -> list[list[float]]:
        """Rotation matrix for row vectors, the transpose of the usual form."""
        angle = math.radians(self.degrees) * _uniform(generator, -1, 1)
        if self.axis != "any":
            cos, sin = math.cos(angle), math.sin(angle)
            if self.axis == "z":
                return [[cos, sin, 0.0], [-sin, cos, 0.0], [0.0, 0.0, 1.0]]
            if self.axis == "y":
                return [[cos, 0.0, -sin], [0.0, 1.0, 0.0], [sin, 0.0, cos]]
            return [[1.0, 0.0, 0.0], [0.0, cos, sin], [0.0, -sin, cos]]
        w, x, y, z = torch.randn(4, generator=generator, dtype=torch.float64).tolist()  # quaternion
        length = math.hypot(x, y, z)
        if self.degrees < 180:
            w = math.cos(angle / 2)
            x, y, z = (v / length * math.sin(angle / 2) for v in (x, y, z))
        else:
            norm = math.hypot(w, length)
            w, x, y, z = w / norm, x / norm, y / norm, z / norm
        return [
            [1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)],
            [2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)],
            [2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)],
        ]


@dataclass(frozen=True)
class Scale:
    """Multiply the coordinates by a random factor.

    Attributes:
        low: Smallest factor.
        high: Largest factor. The distribution is uniform.
        per_axis: Whether each axis has its own factor.

    Example:
        >>> Scale(2, 2)(Cloud(torch.ones(1, 3)), torch.Generator()).points
        tensor([[2., 2., 2.]])
    """

    low: float = 0.8
    high: float = 1.25
    per_axis: bool = False

    def __post_init__(self) -> None:
        _check(0 < self.low <= self.high, "low and high must satisfy 0 < low <= high", f"{self.low}, {self.high}")

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        if not self.per_axis:
            return replace(cloud, points=cloud.points * _uniform(generator, self.low, self.high))
        factors = torch.empty(3).uniform_(self.low, self.high, generator=generator)
        # Normals transform with the inverse transpose.
        features = _with_normals(cloud.features, lambda normal: normalize(normal / factors.to(normal.dtype), dim=1))
        return replace(cloud, points=cloud.points * factors.to(cloud.points.dtype), features=features)


@dataclass(frozen=True)
class Translate:
    """Translate along each axis.

    Attributes:
        distance: The translation is uniform in [-distance, distance].

    Example:
        >>> Translate(0.1)(Cloud(torch.zeros(2, 3)), torch.Generator()).points.abs().max() <= 0.1
        tensor(True)
    """

    distance: float = 0.1

    def __post_init__(self) -> None:
        _check(self.distance >= 0, "distance must be at least 0", self.distance)

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        shift = torch.empty(3).uniform_(-self.distance, self.distance, generator=generator)
        return replace(cloud, points=cloud.points + shift.to(cloud.points.dtype))


@dataclass(frozen=True)
class Jitter:
    """Add normally distributed noise to each coordinate.

    Attributes:
        sigma: Standard deviation.
        clip: Maximum absolute value of the noise.

    Example:
        >>> Jitter(sigma=0.01, clip=0.05)(Cloud(torch.zeros(9, 3)), torch.Generator()).points.abs().max() <= 0.05
        tensor(True)
    """

    sigma: float = 0.01
    clip: float = 0.05

    def __post_init__(self) -> None:
        _check(self.sigma >= 0 and self.clip >= 0, "sigma and clip must be at least 0", f"{self.sigma}, {self.clip}")

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        noise = torch.randn(cloud.points.shape, generator=generator, dtype=cloud.points.dtype)
        return replace(cloud, points=noise.mul_(self.sigma).clamp_(-self.clip, self.clip).add_(cloud.points))


@dataclass(frozen=True)
class Flip:
    """Mirror along random axes.

    Attributes:
        axes: Axes that may be mirrored.
        probability: Probability for each axis.

    Example:
        >>> Flip("y", 1.0)(Cloud(torch.ones(1, 3)), torch.Generator()).points
        tensor([[ 1., -1.,  1.]])
    """

    axes: str = "xy"
    probability: float = 0.5

    def __post_init__(self) -> None:
        _check(set(self.axes) <= set("xyz"), "axes must be a subset of xyz", repr(self.axes))
        _check_fraction("probability", self.probability)

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        draws = torch.rand(3, generator=generator).tolist()
        flips = [axis in self.axes and draw < self.probability for axis, draw in zip("xyz", draws, strict=True)]
        if not any(flips):
            return cloud
        signs = torch.tensor([-1.0 if flip else 1.0 for flip in flips], dtype=cloud.points.dtype)
        features = _with_normals(cloud.features, lambda normal: normal * signs.to(normal.dtype))
        return replace(cloud, points=cloud.points * signs, features=features)


@dataclass(frozen=True)
class Dropout:
    """Replace random points by the first point that is kept, so that the number of points stays the same.

    Attributes:
        most: The fraction of dropped points is uniform in [0, most].

    Example:
        >>> len(Dropout(0.5)(Cloud(torch.rand(9, 3)), torch.Generator()))
        9
    """

    most: float = 0.875

    def __post_init__(self) -> None:
        _check_fraction("most", self.most)

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        fraction = _uniform(generator, 0, self.most)
        kept = torch.rand(len(cloud), generator=generator) >= fraction
        if not kept.any():
            return cloud
        number = torch.arange(len(cloud))
        return cloud.select(torch.where(kept, number, kept.int().argmax()))


@dataclass(frozen=True)
class Shuffle:
    """Permute the points randomly.

    Example:
        >>> Shuffle()(Cloud(torch.rand(9, 3)), torch.Generator()).points.shape
        torch.Size([9, 3])
    """

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        return cloud.select(torch.randperm(len(cloud), generator=generator))


@dataclass(frozen=True)
class Crop:
    """Keep the nearest neighbors of a random point, in their original order.

    Attributes:
        points: Number of points to keep. Smaller clouds do not change.
        balance: From 0 to 1. The random point is of a class with n points with a probability proportional to
            n ** (1 - balance): 0 makes all points equally likely, and 1 all classes that occur in the cloud, however
            few points they have. Points without a label are not chosen, unless there are no others.

    Example:
        >>> line = Cloud(torch.tensor([[0., 0., 0.], [1., 0., 0.], [5., 0., 0.], [6., 0., 0.]]))
        >>> Crop(2)(line, torch.Generator()).points[:, 0].diff().abs()
        tensor([1.])
    """

    points: int
    balance: float = 0.0

    def __post_init__(self) -> None:
        _check(self.points >= 1, "points must be at least 1", self.points)
        _check(0 <= self.balance <= 1, "balance must be in [0, 1]", self.balance)

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        if len(cloud) <= self.points:
            return cloud
        center = cloud.points[self._center(cloud, generator)]
        distance2 = (cloud.points - center).square_().sum(1)
        nearest = distance2.topk(self.points, largest=False, sorted=False).indices
        return cloud.select(nearest.sort().values)

    def _center(self, cloud: Cloud, generator: Generator) -> int:
        """Return the index of the random point."""
        if cloud.labels is None or not bool((cloud.labels >= 0).any()):
            return int(torch.randint(len(cloud), (), generator=generator))
        chosen = cloud.labels >= 0
        if self.balance:
            labels, counts = cloud.labels[chosen].unique(return_counts=True)
            chances = counts.double() ** (1 - self.balance)
            chosen = cloud.labels == labels[torch.multinomial(chances, 1, generator=generator)]
        rows = chosen.nonzero()[:, 0]
        return int(rows[torch.randint(len(rows), (), generator=generator)])


@dataclass(frozen=True)
class SamplePoints:
    """Sample a fixed number of points.

    A larger cloud becomes a random subset in random order. A smaller one is repeated as a whole as often as possible,
    followed by a random subset. A cloud of the right size does not change, nor does an empty one.

    Attributes:
        points: Number of points of the result.

    Example:
        >>> pair = Cloud(torch.tensor([[1., 0., 0.], [2., 0., 0.]]))
        >>> SamplePoints(5)(pair, torch.Generator()).points[:4, 0]
        tensor([1., 2., 1., 2.])
    """

    points: int

    def __post_init__(self) -> None:
        _check(self.points >= 1, "points must be at least 1", self.points)

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        count = len(cloud)
        if count in (0, self.points):
            return cloud
        rounds = self.points // count
        rest = torch.randperm(count, generator=generator)[: self.points - rounds * count]
        return cloud.select(torch.cat([torch.arange(count).repeat(rounds), rest]))


@dataclass(frozen=True)
class VoxelSample:
    """Keep one point per voxel, the nearest to its center; see `pointgrad.voxel_sampling`.

    Points with non-finite coordinates are removed.

    Attributes:
        size: Edge length of a voxel.

    Example:
        >>> line = Cloud(torch.tensor([[0.1, 0., 0.], [0.6, 0., 0.], [1.4, 0., 0.]]))
        >>> VoxelSample(1.0)(line, torch.Generator()).points[:, 0]
        tensor([0.6000, 1.4000])
    """

    size: float

    def __post_init__(self) -> None:
        _check(0 < self.size < math.inf, "size must be a positive edge length", self.size)

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        return cloud.select(voxel_sampling(cloud.points, self.size).index)


@dataclass(frozen=True)
class Normalize:
    """Move the mean of the points to the origin, and optionally scale them into the unit sphere.

    Identical points end up at the origin.

    Attributes:
        kind: "sphere" scales the farthest point to distance 1; "center" does not scale.

    Example:
        >>> Normalize()(Cloud(torch.tensor([[1., 0., 0.], [5., 0., 0.]])), torch.Generator()).points[:, 0]
        tensor([-1.,  1.])
    """

    kind: Literal["sphere", "center"] = "sphere"

    def __post_init__(self) -> None:
        _check(self.kind in ("sphere", "center"), "kind must be sphere or center", repr(self.kind))

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        if not len(cloud):
            return cloud
        points = cloud.points - cloud.points.mean(0)
        if self.kind == "sphere":
            farthest = torch.linalg.vector_norm(points, dim=1).max().item()
            points = points / farthest if farthest > 0 else points
        return replace(cloud, points=points)


@dataclass(frozen=True)
class DropInvalid:
    """Remove points with NaN or infinite coordinates, which depth cameras write for missing measurements.

    Example:
        >>> len(DropInvalid()(Cloud(torch.tensor([[0., 0., 0.], [float("nan"), 0., 0.]])), torch.Generator()))
        1
    """

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        valid = cloud.points.isfinite().all(1)
        return cloud if valid.all() else cloud.select(valid)


@dataclass(frozen=True)
class DropFeatures:
    """Set features of random clouds to zero, so that a network does not depend on them alone.

    Attributes:
        names: Names of the features.
        probability: Probability for each cloud.

    Example:
        >>> cloud = Cloud(torch.zeros(2, 3), {"red": torch.ones(2)})
        >>> DropFeatures(["red"], 1.0)(cloud, torch.Generator()).features["red"]
        tensor([0., 0.])
    """

    names: Sequence[str]
    probability: float = 0.2

    def __post_init__(self) -> None:
        _check_fraction("probability", self.probability)

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        cloud.need(self.names)
        if _uniform(generator, 0, 1) >= self.probability:
            return cloud
        zeros = {name: torch.zeros_like(cloud.features[name]) for name in self.names}
        return replace(cloud, features={**cloud.features, **zeros})


def _with_normals(features: dict[str, Tensor], change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Apply `change` (N, 3) -> (N, 3) to the normals among the features."""
    if "normal" in features:
        features = {**features, "normal": change(features["normal"])}
    for names in NORMALS:
        if all(name in features for name in names):
            changed = change(torch.stack([features[name] for name in names], dim=1))
            features = {**features, **dict(zip(names, changed.unbind(1), strict=True))}
    return features


def _uniform(generator: Generator, low: float, high: float) -> float:
    return low + (high - low) * torch.rand((), generator=generator, dtype=torch.float64).item()


def _check(ok: bool, contract: str, received: object) -> None:
    if not ok:
        raise ValueError(f"{contract}, got {received}")


def _check_fraction(name: str, value: float) -> None:
    _check(0 <= value <= 1, f"{name} must be in [0, 1]", value)

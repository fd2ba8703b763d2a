"""Changes of a cloud, for augmentation and preparation: small callables `transform(cloud, generator) -> Cloud`.

Randomness comes from the generator alone. The input is never changed; what a transform does not touch is shared with
it. Labels and features go along with their points, and normals turn with them: features called normal (N, 3), or nx, ny
and nz, or normal_x, normal_y and normal_z. A cloud with one point or none is as good as any: where there is nothing to
do, nothing is done. Points that are not finite pass through unless a transform says otherwise; `DropInvalid` takes them
out. `Cloud.origin` stays as it is: after a transform, world coordinates mean nothing.
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

NORMALS = (("nx", "ny", "nz"), ("normal_x", "normal_y", "normal_z"))  # as files name them

Transform = Callable[[Cloud, Generator], Cloud]


class Compose:
    """Transforms one after another.

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
    """Turns the cloud about an axis through the origin, by an angle drawn evenly from -degrees to degrees.

    axis: "x", "y", "z"; or "any": an axis drawn evenly from all directions, and for 180 degrees a rotation drawn evenly
        from all rotations.

    >>> Rotate("z", 0)(Cloud(torch.ones(1, 3)), torch.Generator()).points
    tensor([[1., 1., 1.]])
    """

    axis: Literal["x", "y", "z", "any"] = "z"
    degrees: float = 180.0

    def __post_init__(self) -> None:
        _check(self.axis in ("x", "y", "z", "any"), "axis must be x, y, z or any", repr(self.axis))
        _check(0 <= self.degrees <= 180, "degrees must be from 0 to 180", self.degrees)

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        turn = torch.tensor(self._matrix(generator), dtype=cloud.points.dtype)
        features = _with_normals(cloud.features, lambda normal: normal @ turn.to(normal.dtype))
        return replace(cloud, points=cloud.points @ turn, features=features)

    def _matrix(self, generator: Generator) -> list[list[float]]:
        """To multiply rows with, so the transpose of the usual form."""
        angle = math.radians(self.degrees) * _uniform(generator, -1, 1)
        if self.axis != "any":
            cos, sin = math.cos(angle), math.sin(angle)
            if self.axis == "z":
                return [[cos, sin, 0.0], [-sin, cos, 0.0], [0.0, 0.0, 1.0]]
            if self.axis == "y":
                return [[cos, 0.0, -sin], [0.0, 1.0, 0.0], [sin, 0.0, cos]]
            return [[1.0, 0.0, 0.0], [0.0, cos, sin], [0.0, -sin, cos]]
        w, x, y, z = torch.randn(4, generator=generator, dtype=torch.float64).tolist()  # as a quaternion: all rotations
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
    """Multiplies all coordinates by a number drawn evenly from low to high; with `per_axis`, each axis by its own.

    >>> Scale(2, 2)(Cloud(torch.ones(1, 3)), torch.Generator()).points
    tensor([[2., 2., 2.]])
    """

    low: float = 0.8
    high: float = 1.25
    per_axis: bool = False

    def __post_init__(self) -> None:
        _check(0 < self.low <= self.high, "low and high must be 0 < low <= high", f"{self.low}, {self.high}")

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        if not self.per_axis:
            return replace(cloud, points=cloud.points * _uniform(generator, self.low, self.high))
        factors = torch.empty(3).uniform_(self.low, self.high, generator=generator)
        # A normal stays normal to the surface under the inverse, transposed.
        features = _with_normals(cloud.features, lambda normal: normalize(normal / factors.to(normal.dtype), dim=1))
        return replace(cloud, points=cloud.points * factors.to(cloud.points.dtype), features=features)


@dataclass(frozen=True)
class Translate:
    """Moves the cloud along each axis by a number drawn evenly from -distance to distance.

    >>> Translate(0.1)(Cloud(torch.zeros(2, 3)), torch.Generator()).points.abs().max() <= 0.1
    tensor(True)
    """

    distance: float = 0.1

    def __post_init__(self) -> None:
        _check(self.distance >= 0, "distance must be 0 or more", self.distance)

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        shift = torch.empty(3).uniform_(-self.distance, self.distance, generator=generator)
        return replace(cloud, points=cloud.points + shift.to(cloud.points.dtype))


@dataclass(frozen=True)
class Jitter:
    """Adds normal noise to each coordinate, at most `clip` of it.

    >>> Jitter(sigma=0.01, clip=0.05)(Cloud(torch.zeros(9, 3)), torch.Generator()).points.abs().max() <= 0.05
    tensor(True)
    """

    sigma: float = 0.01
    clip: float = 0.05

    def __post_init__(self) -> None:
        _check(self.sigma >= 0 and self.clip >= 0, "sigma and clip must be 0 or more", f"{self.sigma}, {self.clip}")

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        noise = torch.randn(cloud.points.shape, generator=generator, dtype=cloud.points.dtype)
        return replace(cloud, points=noise.mul_(self.sigma).clamp_(-self.clip, self.clip).add_(cloud.points))


@dataclass(frozen=True)
class Flip:
    """Mirrors the cloud along each of the axes, with a probability for each.

    >>> Flip("y", 1.0)(Cloud(torch.ones(1, 3)), torch.Generator()).points
    tensor([[ 1., -1.,  1.]])
    """

    axes: str = "xy"
    probability: float = 0.5

    def __post_init__(self) -> None:
        _check(set(self.axes) <= set("xyz"), "axes must be some of x, y, z", repr(self.axes))
        _check_share("probability", self.probability)

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
    """Drops points at random, a share drawn evenly from 0 to `most`. Each is replaced by the first that stays, so
    that the number of points stays the same.

    >>> len(Dropout(0.5)(Cloud(torch.rand(9, 3)), torch.Generator()))
    9
    """

    most: float = 0.875

    def __post_init__(self) -> None:
        _check_share("most", self.most)

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        share = _uniform(generator, 0, self.most)
        stays = torch.rand(len(cloud), generator=generator) >= share
        if not stays.any():
            return cloud
        number = torch.arange(len(cloud))
        return cloud.select(torch.where(stays, number, stays.int().argmax()))


@dataclass(frozen=True)
class Shuffle:
    """The points in a random order.

    >>> Shuffle()(Cloud(torch.rand(9, 3)), torch.Generator()).points.shape
    torch.Size([9, 3])
    """

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        return cloud.select(torch.randperm(len(cloud), generator=generator))


@dataclass(frozen=True)
class Crop:
    """The `points` nearest points of a random one of them, in their order: a piece of a scene. All, if there are fewer.

    >>> line = Cloud(torch.tensor([[0., 0., 0.], [1., 0., 0.], [5., 0., 0.], [6., 0., 0.]]))
    >>> Crop(2)(line, torch.Generator()).points[:, 0].diff().abs()
    tensor([1.])
    """

    points: int

    def __post_init__(self) -> None:
        _check(self.points >= 1, "points must be 1 or more", self.points)

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        if len(cloud) <= self.points:
            return cloud
        center = cloud.points[int(torch.randint(len(cloud), (), generator=generator))]
        distance2 = (cloud.points - center).square_().sum(1)
        nearest = distance2.topk(self.points, largest=False, sorted=False).indices
        return cloud.select(nearest.sort().values)


@dataclass(frozen=True)
class SamplePoints:
    """Exactly `points` points: chosen at random, in a random order, if there are more; if there are fewer, all of them,
    followed by repetitions, spread as evenly as possible and chosen at random. A cloud of that size stays as it is, and
    so does one without points.

    >>> pair = Cloud(torch.tensor([[1., 0., 0.], [2., 0., 0.]]))
    >>> SamplePoints(5)(pair, torch.Generator()).points[:4, 0]
    tensor([1., 2., 1., 2.])
    """

    points: int

    def __post_init__(self) -> None:
        _check(self.points >= 1, "points must be 1 or more", self.points)

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        count = len(cloud)
        if count in (0, self.points):
            return cloud
        rounds = self.points // count
        rest = torch.randperm(count, generator=generator)[: self.points - rounds * count]
        return cloud.select(torch.cat([torch.arange(count).repeat(rounds), rest]))


@dataclass(frozen=True)
class VoxelSample:
    """One point of each voxel of an edge length, the nearest to its centre; see `pointgrad.voxel_sampling`. Points that
    are not finite are left out.

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
    """Moves the mean of the points to the origin; "sphere" then scales the farthest one to distance 1.

    Points that all lie in one place end up at the origin.

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
    """Leaves out points with a coordinate that is NaN or infinite; depth cameras write them where they saw nothing.

    >>> len(DropInvalid()(Cloud(torch.tensor([[0., 0., 0.], [float("nan"), 0., 0.]])), torch.Generator()))
    1
    """

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        valid = cloud.points.isfinite().all(1)
        return cloud if valid.all() else cloud.select(valid)


@dataclass(frozen=True)
class DropFeatures:
    """With a probability, sets features to zero in the whole cloud, so that a network does not rest on them alone.

    >>> cloud = Cloud(torch.zeros(2, 3), {"red": torch.ones(2)})
    >>> DropFeatures(["red"], 1.0)(cloud, torch.Generator()).features["red"]
    tensor([0., 0.])
    """

    names: Sequence[str]
    probability: float = 0.2

    def __post_init__(self) -> None:
        _check_share("probability", self.probability)

    def __call__(self, cloud: Cloud, generator: Generator) -> Cloud:
        cloud.need(self.names)
        if _uniform(generator, 0, 1) >= self.probability:
            return cloud
        zeros = {name: torch.zeros_like(cloud.features[name]) for name in self.names}
        return replace(cloud, features={**cloud.features, **zeros})


def _with_normals(features: dict[str, Tensor], change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """The features, with `change` (N, 3) -> (N, 3) applied to normals."""
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


def _check_share(name: str, value: float) -> None:
    _check(0 <= value <= 1, f"{name} must be from 0 to 1", value)

"""Networks with known outputs, and scenes and files for them, for tests of prediction."""

import numpy as np
import pytest
import torch

import pointgrad
from pointgrad import data
from pointgrad.data import Cloud, Prepare
from pointgrad.train import Trained


class Height(torch.nn.Module):
    """Classifies points as "high" if their height, or first feature, is above a threshold; records its inputs."""

    def __init__(self, threshold=0.0):
        super().__init__()
        self.threshold, self.seen = threshold, []

    def forward(self, points, features=None, *, offsets=None, lengths=None, category=None):
        self.seen.append((points, features, offsets))
        height = (points[..., 2] if features is None else features[..., 0]) - self.threshold
        return torch.stack([-height, height], dim=-1)


class Relative(torch.nn.Module):
    """Compares each point with the mean of all points of its input, so that predictions depend on the input."""

    def __init__(self):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.tensor([3.0, 2.0, 10.0]))

    def forward(self, points, features=None, *, offsets=None, lengths=None, category=None):
        if offsets is None:
            mean = points.mean(1, keepdim=True).expand_as(points)
        else:
            sizes = offsets.diff()
            mean = pointgrad.segment(points, offsets, "mean").repeat_interleave(sizes, 0)
        height = ((points - mean) * self.slope).sum(-1)
        return torch.stack([-height, height], dim=-1)


def trained(model=None, task="segmentation", classes=("low", "high"), **prepare):
    return Trained((model or Height()).eval(), task, classes, Prepare(**{"normalize": "none", **prepare}))


def scene(count=4000, seed=0, size=(20.0, 12.0, 4.0)):
    """Random points (N, 3) with uneven density: half of them are in a corner, and some are identical."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(count, 3, generator=generator, dtype=torch.float64) * torch.tensor(size)
    points[: count // 2] *= torch.tensor([0.2, 0.2, 1.0])
    points[count // 3 : count // 3 + 50] = points[count // 3]
    points[:, 2] -= size[2] / 2
    return points


PACKAGES = {"pcd": "lzf", "las": "laspy", "laz": "laspy"}


def write(path, cloud):
    """Write a file, or skip the test if the package of the format is missing."""
    if path.suffix[1:] in PACKAGES:
        pytest.importorskip(PACKAGES[path.suffix[1:]])
    data.write(path, cloud)


def las_file(path, count=3000, version="1.4", point_format=7, **columns):
    """Write a LAS file with scaled and array extra bytes, and with records before and after the points."""
    laspy = pytest.importorskip("laspy")
    header = laspy.LasHeader(version=version, point_format=point_format)
    header.scales, header.offsets = [0.01, 0.001, 0.02], [6_000_000.0, -100.0, 0.5]
    header.add_extra_dims(
        [
            laspy.ExtraBytesParams("depth", np.int16, "scaled", offsets=np.array([3.0]), scales=np.array([0.5])),
            laspy.ExtraBytesParams("wave", "3f8"),
            *(laspy.ExtraBytesParams(name, column.dtype) for name, column in columns.items()),
        ]
    )
    header.vlrs.append(laspy.VLR("someone", 77, "theirs", b"content"))
    header.system_identifier, header.generating_software = "a scanner", "a program"
    random = np.random.default_rng(0)
    las = laspy.LasData(header, laspy.ScaleAwarePointRecord.zeros(count, header=header))
    las.X = np.sort(random.integers(0, 2000, count))  # chunks differ
    las.Y = random.integers(0, 2000, count)
    las.Z = random.integers(-100, 100, count)
    for name in las.point_format.dimension_names:
        if name not in ("X", "Y", "Z", "depth", "wave", *columns):
            most = las.point_format.dimension_by_name(name).max
            las[name] = random.integers(0, min(most, 30000), count, endpoint=True)
    las.points.array["depth"] = random.integers(-30000, 30000, count)
    las.wave = random.random((count, 3))
    for name, column in columns.items():
        las[name] = column
    if version == "1.4":
        from laspy.vlrs.vlrlist import VLRList

        las.evlrs = VLRList([laspy.VLR("someone", 78, "after the points", b"x" * 70_000)])
    las.write(path)
    return laspy.read(path)


class Failing(Height):
    """Calls a function instead of predicting, after a few calls."""

    def __init__(self, then, calls=3):
        super().__init__()
        self.then, self.calls = then, calls

    def forward(self, points, features=None, **where):
        self.calls -= 1
        if self.calls < 0:
            self.then()
        return super().forward(points, features)


def fail():
    raise RuntimeError("the network fails")


class Spread(torch.nn.Module):
    """Classifies a cloud by the axis of its largest extent."""

    def forward(self, points, features=None, *, offsets=None, lengths=None, category=None):
        if offsets is None:
            return 20 * (points.amax(1) - points.amin(1))
        low, high = (pointgrad.segment(points, offsets, kind) for kind in ("min", "max"))
        return 20 * (high - low)


def sticks(count=6):
    """Clouds elongated along x, y, z, x ..., of different sizes, far from the origin, with a non-finite point each."""
    clouds = []
    for number in range(count):
        points = torch.rand(50 + 30 * number, 3, generator=torch.Generator().manual_seed(number))
        points[:, number % 3] *= 2
        points += 30
        points[3, 0] = torch.nan
        clouds.append(Cloud(points, label=number % 3, category=1))
    return clouds

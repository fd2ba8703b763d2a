"""Flags for data, preparation and augmentation, shared by training and evaluation."""

import contextlib
import difflib
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

import pointgrad
from pointgrad import data, models
from pointgrad.data import Cloud, Prepare, Transform
from pointgrad.data.scaling import feature_statistics, with_computed

SCENE = 16384  # data with a labelled cloud of more points are scenes, which are cropped
SURVEYED = 5  # clouds of the data that are read to choose the defaults
CROPS = 8, 64  # crops per epoch of each scene, and at least of all scenes together
NEIGHBORS = 8  # searched for the spacing; several, because the nearest ones may be duplicates
SCENE_VOXEL = 0.04  # voxel size in metres for which the radii of networks are designed


@dataclass
class PrepareFlags:
    """Preparation of clouds for the network, in training, evaluation and prediction."""

    points: int | None = None
    """Random points per cloud; 0: all. By default 1024 for classification, crop_points for scenes, else all."""

    normalize: Literal["sphere", "center", "none"] | None = None
    """Center and scale to the unit sphere, only center, or neither. By default sphere; center for scenes."""

    voxel: float | None = None
    """Keep one point per voxel of this edge length, in units of the data; 0: off.
    By default off; for scenes twice the median distance between neighboring points."""

    features: tuple[str, ...] = ()
    """Names of columns that the network receives in addition to the coordinates; height_above_ground is computed
    from the points if the files do not have it."""

    scale_features: bool = True
    """Scale each feature column by its median and spread in the training data. Normals are not scaled."""

    feature_center: tuple[float, ...] = ()
    """Value subtracted from each feature column. By default the median in the training data."""

    feature_scale: tuple[float, ...] = ()
    """Value by which each feature column is divided. By default its spread in the training data."""


@dataclass
class Augment:
    """Random augmentation of training clouds, after preparation. Defaults depend on the task."""

    rotate: Literal["none", "x", "y", "z", "any"] | None = None
    """Rotation axis. By default z for scenes, else none."""

    degrees: float = 180.0
    """Maximum rotation angle."""

    scale: tuple[float, float] | None = None
    """Range of the random scale. By default 0.67 1.5 for classification, 0.8 1.25 for parts, 0.9 1.1 for scenes."""

    scale_axes: bool | None = None
    """Scale each axis separately. By default only for classification."""

    translate: float | None = None
    """Maximum shift along each axis. By default 0.2 for classification, else 0."""

    jitter: float | None = None
    """Standard deviation of noise on each coordinate, clipped at five deviations. By default 0."""

    flip: str | None = None
    """Axes along which a cloud is mirrored with probability 1/2. By default none; xy for scenes."""

    dropout: float | None = None
    """Maximum fraction of dropped points. By default 0."""

    def check(self) -> None:
        """Raise ValueError for values out of range."""
        low, high = self.scale or (1.0, 1.0)
        for name, valid, contract in (
            ("degrees", 0 <= self.degrees <= 180, "in [0, 180]"),
            ("scale", 0 < low <= high, "two positive numbers in increasing order"),
            ("translate", (self.translate or 0) >= 0, "at least 0"),
            ("jitter", (self.jitter or 0) >= 0, "at least 0"),
            ("flip", set(self.flip or "") <= set("xyz"), "a subset of xyz"),
            ("dropout", 0 <= (self.dropout or 0) <= 1, "in [0, 1]"),
        ):
            if not valid:
                raise ValueError(f"augment.{name} must be {contract}, got {getattr(self, name)}")

    def transforms(self) -> list[Transform]:
        """Return the transforms in order, for flags with all defaults filled in."""
        out: list[Transform] = []
        if self.rotate not in (None, "none"):
            out.append(data.Rotate(cast(Any, self.rotate), self.degrees))
        if self.scale is not None and self.scale != (1.0, 1.0):
            out.append(data.Scale(*self.scale, per_axis=bool(self.scale_axes)))
        if self.flip:
            out.append(data.Flip(self.flip))
        if self.translate:
            out.append(data.Translate(self.translate))
        if self.jitter:
            out.append(data.Jitter(self.jitter, 5 * self.jitter))
        if self.dropout:
            out.append(data.Dropout(self.dropout))
        return out


@dataclass
class DataFlags:
    """Flags for the data and the network."""

    data: str = ""
    """Data set: shapes (built in); an .npz or .h5 file of arrays; a folder of point clouds, or one file with a class
    for each point, which is divided by area; or a published one: modelnet:ROOT, scanobjectnn:ROOT,
    shapenetpart:ROOT, s3dis:ROOT, semantickitti:ROOT."""

    task: Literal["auto", "classification", "segmentation"] = "auto"
    """One class per cloud, or per point; auto: depends on the labels of the data."""

    classes: tuple[str, ...] = ()
    """Classes of the points in a folder or file: --classes ground=2 vegetation=3,4,5 building=6, or a YAML file with
    lines name: code. By default those of classes.yaml or classes.txt in the folder, else the codes that occur."""

    other_classes: Literal["ignore", "refuse"] = "ignore"
    """Points whose code belongs to no class are ignored in training and evaluation, or refused with an error."""

    model: str = "pointnet2"
    """Network; `pointgrad models` lists them."""

    options: tuple[str, ...] = ()
    """Options of the network: --options variant=msg dropout=0.3. For scenes, the radius or voxel
    of the network follows from --prepare.voxel."""

    prepare: PrepareFlags = field(default_factory=PrepareFlags)
    augment: Augment = field(default_factory=Augment)

    batch_size: int = 0
    """Clouds per batch and process; 0: 32, 16 for parts, 8 for scenes.
    Training drops the last batch of an epoch if it is incomplete; the dropped clouds differ from epoch to epoch."""

    crop_points: int | None = None
    """Crop scenes to this many points around random centers; 0: no cropping. By default 8192 for scenes: data with
    clouds of more than 16384 points, or one file."""

    crop_balance: float | None = None
    """Choice of the centers of crops in training, from 0 (all labelled points are equally likely) to 1 (all classes of
    a cloud are equally likely, also rare ones). By default 1. Validation always uses 0."""

    samples_per_cloud: int | None = None
    """Random crops of each cloud per epoch. By default 8 for scenes, more if there are fewer than 8, else 1."""

    workers: int = -1
    """Processes that read and transform clouds; -1: with a GPU one per core, at most 8; else 0.
    Results do not depend on it."""

    skip_bad: bool = False
    """Skip and count unreadable samples instead of stopping."""

    def check_data(self) -> None:
        """Raise ValueError for values out of range."""
        if self.model not in (known := models.names()):
            near = difflib.get_close_matches(self.model, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"model must be one of {', '.join(known)}, got {self.model!r}{hint}")
        for name, value, least in (
            ("batch_size", self.batch_size, 0),
            ("workers", self.workers, -1),
            ("samples_per_cloud", self.samples_per_cloud, 1),
            ("crop_points", self.crop_points, 0),
            ("points", self.prepare.points, 0),
            ("voxel", self.prepare.voxel, 0),
        ):
            if value is not None and value < least:
                inner = "prepare." if hasattr(self.prepare, name) else ""
                raise ValueError(f"{inner}{name} must be at least {least}, got {value}")
        if self.crop_balance is not None and not 0 <= self.crop_balance <= 1:
            raise ValueError(f"crop_balance must be in [0, 1], got {self.crop_balance}")
        self.augment.check()
        center, scale = self.prepare.feature_center, self.prepare.feature_scale
        if len(center) != len(scale):
            raise ValueError(f"prepare.feature_scale must have one value for each of {len(center)} of "
                             f"--prepare.feature-center, got {len(scale)}")  # fmt: skip
        if not all(each > 0 for each in scale):
            raise ValueError(f"prepare.feature_scale must be positive, got {' '.join(map(str, scale))}")


def resolve(flags: DataFlags, dataset: Any) -> DataFlags:
    """Return the flags with all defaults that depend on the data filled in."""
    classify = dataset.task == "classification"
    size, apart = (0, 0.0) if classify else survey(dataset)
    scene = not classify and (size > SCENE or bool(flags.crop_points) or getattr(dataset, "by_area", False))
    kind = 0 if classify else 2 if scene else 1

    def default(value: Any, *choices: Any) -> Any:
        return choices[kind] if value is None else value

    prepare, augment = flags.prepare, flags.augment
    crop = default(flags.crop_points, 0, 0, 8192)
    voxel = prepare.voxel
    if voxel is None:
        voxel = float(f"{2 * apart:.1g}") if scene else 0.0
    options = flags.options
    if scene and voxel:
        given = {each.partition("=")[0] for each in options}
        found = scale_options(flags.model, voxel).items()
        options = (*options, *(f"{name}={value}" for name, value in found if name not in given))
    statistics = prepare.feature_center, prepare.feature_scale
    if prepare.features and prepare.scale_features and statistics == ((), ()):
        statistics = feature_statistics(dataset, prepare.features)
    elif statistics[0] and len(statistics[0]) != (width := channels(dataset, prepare.features)):
        raise ValueError(
            f"prepare.feature_center must have a value for each of {width} feature columns, got {len(statistics[0])}; "
            "without --prepare.feature-center and --prepare.feature-scale, they are computed from the data"
        )
    return replace(
        flags,
        task=dataset.task,
        options=options,
        batch_size=flags.batch_size or (32, 16, 8)[kind],
        crop_points=crop,
        crop_balance=default(flags.crop_balance, 0.0, 0.0, 1.0),
        samples_per_cloud=default(flags.samples_per_cloud, 1, 1, max(CROPS[0], -(-CROPS[1] // len(dataset)))),
        prepare=replace(
            prepare,
            points=default(prepare.points, 1024, 0, crop),
            normalize=default(prepare.normalize, "sphere", "sphere", "center"),
            voxel=voxel,
            feature_center=statistics[0],
            feature_scale=statistics[1],
        ),
        augment=replace(
            augment,
            rotate=default(augment.rotate, "none", "none", "z"),
            scale=default(augment.scale, (0.67, 1.5), (0.8, 1.25), (0.9, 1.1)),
            scale_axes=default(augment.scale_axes, True, False, False),
            translate=default(augment.translate, 0.2, 0.0, 0.0),
            jitter=default(augment.jitter, 0.0, 0.0, 0.0),
            flip=default(augment.flip, "", "", "xy"),
            dropout=default(augment.dropout, 0.0, 0.0, 0.0),
        ),
    )


def scale_options(model: str, voxel: float) -> dict[str, str]:
    """Return the options of a network that depend on the voxel size of a scene."""
    with torch.device("meta"):
        config = models.build(model, task="segmentation", classes=2).config
    values = {"radius": f"{voxel / SCENE_VOXEL:.3g}", "voxel": f"{voxel:.3g}"}
    return {name: value for name, value in values.items() if name in config}


def first_cloud(dataset: Any) -> Cloud:
    """Return the first cloud that can be read. Raises ValueError or OSError if there is none."""
    for index in range(len(dataset)):
        with contextlib.suppress(ValueError, OSError):
            return dataset[index]
    if not len(dataset):
        raise ValueError("data must have clouds to train on, got none")
    return dataset[0]  # raises the reason


def survey(dataset: Any) -> tuple[int, float]:
    """Return the largest number of points, and the median spacing, of a few evenly distributed clouds."""
    sizes, distances = [], []
    for index in spread(len(dataset), SURVEYED):
        with contextlib.suppress(ValueError, OSError):
            points = dataset[index].points
            sizes.append(len(points))
            distances.append(spacing(points))
    if not sizes:
        sizes.append(len(first_cloud(dataset)))
    return max(sizes), typical(distances)


def spread(total: int, most: int) -> list[int]:
    """Return at most `most` evenly distributed indices below `total`."""
    return torch.linspace(0, total - 1, min(total, most)).round().long().tolist()


def spacing(points: Tensor) -> float:
    """Return the median distance to the nearest point at a different position, over a thousand points; NaN for none."""
    points = points[points.isfinite().all(1)].float()
    if not len(points):
        return math.nan
    chosen = points[:: max(len(points) // 1000, 1)]
    distance2 = pointgrad.knn(points, min(NEIGHBORS, len(points)), chosen).distance2
    nearest = distance2.masked_fill(distance2 == 0, math.inf).amin(1)
    return float(nearest[nearest.isfinite()].median().sqrt())


def typical(distances: Sequence[float]) -> float:
    """Return the median of the positive distances; 1 mm if there are none."""
    return statistics.median([each for each in distances if each > 0] or [1e-3])


def preparation(flags: DataFlags) -> Prepare:
    """Return the preparation that checkpoints hold, for flags with all defaults filled in."""
    own = flags.prepare
    assert own.points is not None
    assert own.normalize is not None
    assert own.voxel is not None
    return Prepare(own.points, own.normalize, own.voxel, own.features, own.feature_center, own.feature_scale)


def workers(wanted: int, device: torch.device) -> int:
    """Return the number of processes that read clouds; `wanted`: the flag."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return wanted if wanted >= 0 else min(8, cores) if device.type == "cuda" else 0


def channels(dataset: Any, features: Sequence[str]) -> int:
    """Return the number of columns of the features."""
    columns = with_computed(first_cloud(dataset), features).stack(features)
    return 0 if columns is None else columns.shape[1]

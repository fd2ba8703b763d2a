"""Flags of `train` and the defaults that depend on the data: checks, scenes, crops in memory, counts."""

import math

import pytest
import torch

from pointgrad import data
from pointgrad.cli import main
from pointgrad.cli.crops import Repeated
from pointgrad.cli.inventory import Inventory, describe_features, missing_classes, unreadable
from pointgrad.cli.learning import DataFlags, PrepareFlags, resolve, spacing
from pointgrad.cli.status import with_flags
from pointgrad.cli.train import Train


def test_scenes_are_found_by_any_large_cloud():
    """The first cloud may be small, or have a single point."""

    class Tiles:
        classes, task = ("a", "b"), "segmentation"

        def __init__(self, *sizes):
            self.sizes = sizes

        def __len__(self):
            return len(self.sizes)

        def __getitem__(self, index):
            size = self.sizes[index]
            points = torch.zeros(size, 3, dtype=torch.float64)
            points[:, 0] = 0.5 * torch.arange(size)
            return data.Cloud(points, labels=torch.zeros(size, dtype=torch.long))

    for sizes, flags, normalize, voxel in (
        ((1, 500, 20_000), DataFlags(), "center", 1.0),
        ((1, 500, 16_384), DataFlags(), "sphere", 0.0),
        ((1, 500, 600), DataFlags(crop_points=100), "center", 1.0),
        ((1,), DataFlags(crop_points=100), "center", 0.002),
    ):
        prepare = resolve(flags, Tiles(*sizes)).prepare
        assert (prepare.normalize, prepare.voxel) == (normalize, voxel)


def test_spacing_is_that_of_different_positions():
    """Scans that store points twice have the spacing, and so the voxels, of the same scans without duplicates."""
    points = torch.rand(500, 3, generator=torch.Generator().manual_seed(0))
    twice = points.repeat_interleave(2, 0)
    distances = torch.cdist(points.double(), points.double()).fill_diagonal_(torch.inf).amin(1)
    assert spacing(points) == pytest.approx(float(distances.median()), rel=1e-5)
    assert spacing(twice) == pytest.approx(spacing(points), rel=1e-5)
    for special in (points[:0], points[:1], points[:1].repeat(9, 1), points[:1] * torch.nan):
        assert math.isnan(spacing(special))


def test_ranges_and_scales_of_features():
    class Clouds:
        classes, task = ("a", "b"), "segmentation"

        def __len__(self):
            return 1

        def __getitem__(self, index):
            values = torch.tensor([1.0, torch.nan, 7669.0])
            columns = {
                "intensity": values,
                "empty": values * torch.nan,
                "pair": torch.tensor([[0.0, 5.0]]).repeat(3, 1),
            }
            return data.Cloud(torch.eye(3), columns, labels=torch.tensor([0, 1, -1]))

    names = ("pair", "empty", "intensity")
    found = Inventory(Clouds(), names)
    flags = Train(prepare=PrepareFlags(features=names))
    assert describe_features(flags, found) == [
        "features: pair 0 to 5, empty, intensity 1 to 7669; not scaled",
        "warning: empty has no finite values in train: the network cannot learn from it",
    ]
    flags.prepare.feature_center, flags.prepare.feature_scale = (0.0, 5.0, 0.0, 533.0), (1.0, 2.0, 1.0, 1582.0)
    assert describe_features(flags, found)[0] == (
        "features: pair 0 to 5 (0 ± 1, 5 ± 2), empty (0 ± 1), intensity 1 to 7669 (533 ± 1582); "
        "scaled by the center ± spread in parentheses"
    )


def test_scenes_stay_in_memory_up_to_a_limit():
    class Counted:
        classes, task = ("a",), "segmentation"

        def __init__(self):
            self.reads = []

        def __len__(self):
            return 3

        def __getitem__(self, index):
            self.reads.append(index)
            return data.Cloud(torch.full((10, 3), float(index)))

    size = 120  # bytes of a cloud
    for keep, reads in ((0, [0, 0, 1, 1, 2, 2]), (size, [0, 1, 1, 2, 2]), (3 * size, [0, 1, 2])):
        dataset = Counted()
        repeated = Repeated(dataset, 2, keep=keep)
        assert [float(repeated[index].points[0, 0]) for index in range(6)] == [0, 0, 1, 1, 2, 2]
        assert dataset.reads == reads


def test_errors_name_flags():
    flags = Train()
    for text, expected in (
        ("batch_size must be at least 1, got 0", "--batch-size must be at least 1, got 0"),
        ("a b.ply: features must contain x, got y", "a b.ply: --prepare.features must contain x, got y"),
        ("prepare.voxel must be at least 0", "--prepare.voxel must be at least 0"),
        ("a.ply: points must be (N, 3), got (3,)", "a.ply: points must be (N, 3), got (3,)"),
        ("the lr must be small", "the lr must be small"),
    ):
        assert with_flags(text, flags) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--classes", "ground=x"], "--classes: codes of class 'ground' must be integers from 0 to 65534, got 'x'"),
        (["--classes", "a=1", "a=2"], "--classes: class names must be unique, got 'a' twice"),
        (["--model", "pointnt"], "--model must be one of pointnet, "),
        (["--ema", "2"], "--ema must be in [0, 1], got 2.0"),
        (["--augment.scale", "2", "1"], "--augment.scale must be two positive numbers in increasing order"),
        (["--augment.flip", "xq"], "--augment.flip must be a subset of xyz, got xq"),
        (["--augment.jitter", "-1"], "--augment.jitter must be at least 0, got -1.0"),
        (["--augment.translate", "-1"], "--augment.translate must be at least 0, got -1.0"),
        (["--augment.dropout", "2"], "--augment.dropout must be in [0, 1], got 2.0"),
        (["--augment.degrees", "200"], "--augment.degrees must be in [0, 180], got 200.0"),
        (
            ["--prepare.feature-scale", "1"],
            "--prepare.feature-scale must have one value for each of 0 of --prepare.feature-center, got 1",
        ),
        (
            ["--prepare.feature-center", "1", "--prepare.feature-scale", "0"],
            "--prepare.feature-scale must be positive, got 0.0",
        ),
    ],
)
def test_wrong_flags_are_reported_before_data_are_read(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(data, "open_dataset", None)
    assert main(["train", "--data", "raw", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pointgrad train: {message}")


def test_counts_of_a_sample_of_clouds():
    class Clouds:
        classes, task = ("a", "b", "c"), "segmentation"

        def __init__(self, count):
            self.count = count

        def __len__(self):
            return self.count

        def __getitem__(self, index):
            if index == 3:
                raise ValueError("unreadable")
            return data.Cloud(torch.zeros(5, 3), labels=torch.tensor([0, 0, 1, -1, -1]))

    class Broken(Clouds):
        def __init__(self):
            self.count = 2

        def __getitem__(self, index):
            raise ValueError("damaged")

    some = Inventory(Clouds(10), ())
    (line,) = unreadable({"train": some}, False)
    assert line.startswith("warning: unreadable clouds in train: 1, an error in training, unless --skip-bad skips them")
    assert line.endswith("; the first: unreadable")
    assert unreadable({"train": Inventory(Clouds(3), ())}, True) == []
    assert some.describe(Clouds(10)) == "10 clouds; 45 points in the 9 that could be read"
    many = Inventory(Clouds(5000), ())
    assert many.describe(Clouds(5000)) == f"5,000 clouds; {5 * many.read:,} points in the {many.read} that were counted"
    assert (some.classes.tolist(), some.unlabelled) == ([18, 9, 0], 18)
    assert Inventory(Clouds(5000), ()).read <= 128
    none = Inventory(Broken(), ())
    assert none.describe(Broken()) == "2 clouds, none of which could be read"
    assert unreadable({"val": none}, False)[0].startswith(
        "warning: unreadable clouds in val: 2, an error in validation, unless --skip-bad skips them; the first: damaged"
    )
    unsure = "warning: train has nothing of c: the clouds that were not counted may have some"
    assert missing_classes(Clouds.classes, {"train": some, "val": some})[0] == unsure
    found = {"train": Inventory(Clouds(3), ()), "val": Inventory(Clouds(0), ())}
    assert missing_classes(Clouds.classes, found) == [
        "warning: train has nothing of c: the network cannot learn it",
        "warning: there are no validation data: the training metrics select the best epoch",
    ]

"""Scaling of input features, and height above ground."""

import numpy as np
import pytest
import torch

from pointgrad.data import Cloud, Compose, Crop, Prepare, feature_statistics, height_above_ground
from pointgrad.data.scaling import ComputeFeatures
from tests.support.places import DATA


def cloud_of(**features):
    count = len(next(iter(features.values())))
    return Cloud(torch.rand(count, 3), dict(features))


def random(seed=0):
    return torch.Generator().manual_seed(seed)


# Statistics


def test_statistics_of_a_normal_column_are_its_mean_and_deviation():
    values = torch.randn(16_000, generator=random()) * 700 + 2000
    center, scale = feature_statistics([cloud_of(intensity=values)], ["intensity"])
    assert center == pytest.approx((float(values.median()),), rel=1e-3)
    assert scale == pytest.approx((700.0,), rel=0.03)


def test_a_few_huge_values_hardly_change_the_statistics():
    values = torch.rand(10_000, generator=random()) * 100
    wild = torch.cat([values, torch.full((40,), 65535.0)])
    clean, other = (feature_statistics([cloud_of(a=each)], ["a"]) for each in (values, wild))
    torch.testing.assert_close(torch.tensor(other), torch.tensor(clean), rtol=0.02, atol=0.5)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (torch.full((50,), 7.0), (7.0, 1.0)),
        (torch.tensor([1] * 999 + [2]), (1.0, float(np.std([1] * 999 + [2])))),
        (torch.tensor([torch.nan, torch.inf, 3.0, -torch.inf]), (3.0, 1.0)),
        (torch.full((5,), torch.nan), (0.0, 1.0)),
        (torch.tensor([5.0]), (5.0, 1.0)),
    ],
    ids=["constant", "nearly constant", "one finite value", "no finite value", "one point"],
)
def test_statistics_of_special_columns(values, expected):
    (center,), (scale,) = feature_statistics([cloud_of(a=values)], ["a"])
    assert (center, scale) == pytest.approx(expected)


def test_statistics_of_each_column_in_the_order_of_the_names():
    both = torch.stack([torch.arange(101.0), 1000 + torch.arange(101.0)], 1)
    cloud = cloud_of(a=both, nx=torch.linspace(-1, 1, 101), b=torch.zeros(101))
    center, scale = feature_statistics([cloud], ["b", "nx", "a"])
    assert center == (0.0, 0.0, 50.0, 1050.0)
    assert scale[:2] == (1.0, 1.0)
    assert scale[2] == scale[3] > 1


def test_statistics_skip_unreadable_clouds_but_not_missing_features():
    class Damaged(list):
        def __getitem__(self, index):
            if index == 0:
                raise ValueError("damaged")
            return super().__getitem__(index)

    good = cloud_of(a=torch.arange(101.0))
    assert feature_statistics(Damaged([good, good]), ["a"])[0] == (50.0,)
    with pytest.raises(ValueError, match="features must contain b, got a"):
        feature_statistics([good], ["b"])
    with pytest.raises(ValueError, match="data must have clouds that can be read"):
        feature_statistics(Damaged([good]), ["a"])


# Scaling in Prepare


def test_prepare_scales_the_features():
    values = torch.randint(1, 7670, (5000,), generator=random())
    colors = torch.randint(0, 256, (5000, 3), generator=random(), dtype=torch.uint8)
    cloud = cloud_of(intensity=values, rgb=colors)
    names = ("intensity", "rgb")
    prepare = Prepare(0, "none", 0.0, names, *feature_statistics([cloud], names))
    out = prepare(cloud, random()).stack(names)
    raw = torch.cat([values[:, None].double(), colors.double() / 255], 1)
    expected = (raw - torch.tensor(prepare.feature_center)) / torch.tensor(prepare.feature_scale)
    torch.testing.assert_close(out, expected.float(), rtol=1e-5, atol=1e-6)
    assert out.median(0).values.abs().max() < 0.05
    assert out.std(0).min() > 0.5
    assert out.std(0).max() < 1.5
    assert cloud.features["intensity"] is values  # the input is unchanged


def test_scaled_values_are_finite_and_limited():
    values = torch.tensor([0.0, 1.0, 2.0, 1e30, -torch.inf, torch.nan])
    out = Prepare(0, "none", 0.0, ("a",), (1.0,), (2.0,))(cloud_of(a=values), random()).features["a"]
    assert out.tolist() == [-0.5, 0.0, 0.5, 10.0, 0.0, 0.0]


def test_normals_are_not_scaled():
    normals = torch.randn(10, 1)
    prepare = Prepare(0, "none", 0.0, ("nx",), *feature_statistics([cloud_of(nx=normals)], ["nx"]))
    assert torch.equal(prepare(cloud_of(nx=normals), random()).features["nx"], normals)


def test_prepare_refuses_bad_statistics():
    for center, scale in (((0.0,), ()), ((0.0,), (0.0,)), ((0.0,), (-1.0,)), ((0.0,), (torch.inf,))):
        with pytest.raises(ValueError, match="feature_scale must have a positive value for each of 1 values"):
            Prepare(features=("a",), feature_center=center, feature_scale=scale)
    with pytest.raises(ValueError, match="features must have 2 columns in total, got 1"):
        Prepare(0, "none", 0.0, ("a",), (0.0, 0.0), (1.0, 1.0))(cloud_of(a=torch.zeros(4)), random())


# Height above ground


def scene(slope=(0.0, 0.0), seed=0):
    """Terrain of 120 m with a building of 20 m, trees and points far below the ground; heights above ground."""
    generator = random(seed)
    xy = torch.rand(60_000, 2, generator=generator).double() * 120
    height = torch.randn(60_000, generator=generator).double() * 0.02
    roof = (xy > 30).all(1) & (xy < 50).all(1)
    height[roof] = 9.0
    trees = ((xy - 90).norm(dim=1) < 8) & (torch.rand(60_000, generator=generator) < 0.7)
    height[trees] = 2 + 10 * torch.rand(int(trees.sum()), generator=generator).double()
    below = torch.zeros(60_000, dtype=torch.bool)
    below[torch.randperm(60_000, generator=generator)[:30]] = True
    height[below] = -15.0
    ground = xy @ torch.tensor(slope).double() + torch.sin(xy[:, 0] / 25)
    return torch.cat([xy, (ground + height)[:, None]], 1), height, below


@pytest.mark.parametrize("slope", [(0.0, 0.0), (0.1, -0.05), (0.3, 0.2)])
def test_height_above_ground_of_a_scene(slope):
    world, expected, below = scene(slope)
    world += torch.tensor([6e5, 5e6, 300.0])
    error = (height_above_ground(world).double() - expected).abs()[~below]
    assert error.median() < 0.15
    assert error.quantile(0.95) < 0.6
    assert error.max() < 2.5


@pytest.mark.parametrize(("rise", "period"), [(3, 63), (5, 90), (10, 190)])
def test_hills_are_ground_and_buildings_are_not(rise, period):
    """Hills that are narrower than the largest buildings, with buildings and trees on them."""
    generator = random(rise)
    xy = torch.rand(60_000, 2, generator=generator).double() * 120
    terrain = rise * torch.sin(xy[:, 0] * 2 * torch.pi / period) + rise / 2 * torch.cos(xy[:, 1] * 4 / period)
    height = torch.where((xy % 60 > 40).all(1), 8.0, 0.0).double()
    trees = (height == 0) & (torch.rand(60_000, generator=generator) < 0.3)
    height[trees] = 12 * torch.rand(int(trees.sum()), generator=generator).double()
    found = height_above_ground(torch.cat([xy, (terrain + height)[:, None]], 1)).double()
    roof = height == 8.0
    assert (found - height)[~roof].abs().quantile(0.95) < 0.3
    assert found[roof].quantile(0.05) > 5  # above ground without points


def test_height_does_not_depend_on_the_order_of_points():
    world, _, _ = scene()
    order = torch.randperm(len(world), generator=random())
    assert torch.equal(height_above_ground(world[order]), height_above_ground(world)[order])


def test_height_of_special_clouds():
    one = torch.tensor([[4.0, 5.0, 6.0]]).double()
    assert height_above_ground(one).tolist() == [0.0]
    assert height_above_ground(one[:0]).shape == (0,)
    assert height_above_ground(one * torch.nan).isnan().all()
    mixed = torch.cat([one, one * torch.inf, one + torch.tensor([0, 0, 3.0])])
    assert height_above_ground(mixed).nan_to_num(nan=-9).tolist() == [0.0, -9.0, 3.0]
    apart = torch.cat([one, one + torch.tensor([1e8, 1e8, 50.0])])  # farther apart than any grid has cells
    assert height_above_ground(apart).isfinite().all()


def test_height_is_computed_before_cropping():
    world, expected, below = scene()
    keep = ~below
    cloud = Cloud(world[keep].float())
    names = ("height_above_ground",)
    steps = Compose(ComputeFeatures(names), Crop(60), Prepare(0, "center", 0.0, names))
    roofs = expected[keep] == 9.0
    for seed in range(300):  # some crops contain only the roof
        number = Cloud(cloud.points, {"number": torch.arange(len(cloud))})
        out = steps(number, random(seed))
        on_roof = roofs[out.features["number"]]
        if on_roof.all():
            assert (out.features["height_above_ground"] - 9).abs().max() < 1
            break
    else:
        raise AssertionError("no crop was inside the roof")


def test_own_column_takes_precedence():
    own = torch.full((5,), 3.0)
    cloud = Cloud(torch.rand(5, 3), {"height_above_ground": own})
    out = Prepare(0, "none", 0.0, ("height_above_ground",))(cloud, random())
    assert torch.equal(out.features["height_above_ground"], own)


@pytest.mark.parametrize(("name", "fraction"), [("dallas", 0.99), ("house", 0.99)])  # the house stands on a hillside
def test_ground_of_real_scans(name, fraction):
    from pointgrad import data

    folder = DATA / "scans"
    if not folder.exists():
        pytest.skip(f"no real scans at {DATA}; set POINTGRAD_TEST_DATA to the folder that holds them")
    if name == "dallas":
        cloud = data.read(folder / "dallas1.xyzcirn.txt.gz", columns="x y z class intensity return returns")
    else:
        pytest.importorskip("laspy")
        cloud = data.read(folder / "house.laz")
    height, ground = height_above_ground(cloud.world()), cloud.labels == 2
    assert height[ground].abs().median() < 0.3
    assert (height[ground].abs() < 1).float().mean() > fraction
    assert height.max() > 3

"""Images of clouds: occlusion, camera, dots, legends, and independence of order and parts."""

import doctest
import importlib
import pkgutil
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pointgrad
from pointgrad import data, render
from pointgrad.data import Cloud
from pointgrad.render.camera import NEAREST, Frame, View
from pointgrad.render.scene import Scene
from pointgrad.render.still import Look, compose, shared_scales

RED, BLUE, GREEN = (255, 0, 0), (0, 0, 255), (0, 255, 0)


def colored(points, colors):
    """Points with the given colors; float64, so that coordinates are exact."""
    channels = torch.tensor(colors, dtype=torch.uint8).T
    return Cloud(torch.as_tensor(points).double(), dict(zip(("red", "green", "blue"), channels, strict=True)))


def drawn(cloud, **look):
    return render.picture(cloud, **{"size": (96, 72), "legend": False, **look})


def has(image, color):
    return bool((image[..., :3] == color).all(-1).any())


def shifted(cloud, origin):
    return Cloud(cloud.points, cloud.features, cloud.labels, origin=torch.tensor(origin, dtype=torch.float64))


def test_near_points_hide_far_points():
    cloud = colored([[1.0, 0, 0], [-1.0, 0, 0]], [RED, BLUE])
    front, back = (drawn(cloud, azimuth=azimuth, elevation=0.0, point_size=12) for azimuth in (0.0, 180.0))
    assert has(front, RED)
    assert not has(front, BLUE)
    assert has(back, BLUE)
    assert not has(back, RED)


@pytest.mark.parametrize(
    ("look", "left", "top"),
    [
        ({"azimuth": 0.0, "elevation": 0.0}, RED, GREEN),  # from +x: y points right, z up
        ({"azimuth": 180.0, "elevation": 0.0}, BLUE, GREEN),
        ({"azimuth": -90.0, "elevation": 90.0}, (255, 255, 0), BLUE),  # from above, x points right, y up
    ],
)
def test_directions(look, left, top):
    cloud = colored(
        [[0, -1.0, 0], [0, 1.0, 0], [0, 0, 1.0], [-1.0, 0, 0]], [RED, BLUE, GREEN, (255, 255, 0)]
    )  # fmt: skip
    image = drawn(cloud, point_size=6, **look)
    filled = (image != 255).any(-1)
    row, column = np.argwhere(filled.T)[0][::-1]  # leftmost
    assert has(image[row - 2 : row + 3, column : column + 5], left)
    row, column = np.argwhere(filled)[0]  # topmost
    assert has(image[row : row + 5, column - 2 : column + 3], top)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6), azimuth=st.floats(-360, 360), elevation=st.floats(-90, 90),
    scale=st.sampled_from([1e-6, 1.0, 1e5]), aspect=st.sampled_from([(120, 40), (40, 120), (80, 80)]),
)  # fmt: skip
def test_every_cloud_fills_the_image(seed, azimuth, elevation, scale, aspect):
    """The points never cross the margin. They reach it on two sides unless the camera is at its minimum distance."""
    generator = torch.Generator().manual_seed(seed)
    stretch = torch.rand(3, generator=generator).double() ** 3
    cloud = Cloud(torch.randn(300, 3, generator=generator).double() * stretch * scale)
    image = drawn(cloud, size=aspect, azimuth=azimuth, elevation=elevation, point_size=1)
    rows, columns = (np.nonzero((image != 255).any(-1).any(axis))[0] for axis in (1, 0))
    margin = round(0.035 * min(aspect))
    assert rows[0] >= margin - 1
    assert columns[0] >= margin - 1
    assert rows[-1] <= aspect[1] - margin
    assert columns[-1] <= aspect[0] - margin
    camera = Scene(lambda: [cloud], View(azimuth, elevation)).camera(Frame(*aspect, margin))
    depth = (cloud.points - camera.anchor) @ camera.view.axes()[2]
    front, rear = float(depth.max()), float(depth.min())
    if camera.distance > 1.001 * (front + NEAREST * (front - rear)):
        free = [rows[0] + aspect[1] - 1 - rows[-1], columns[0] + aspect[0] - 1 - columns[-1]]
        assert min(free) <= 2 * margin + 4


def test_image_does_not_depend_on_order_and_parts(monkeypatch):
    monkeypatch.setattr("pointgrad.render.scene.SAMPLE", 500)
    cloud = data.street(6000, length=20.0)
    look = Look((160, 120), legend=False)

    def image(parts, by):
        scenes = [Scene(parts, look.view, by, most=500)]
        return next(compose(scenes, shared_scales(scenes, by), look))

    order = torch.randperm(len(cloud))
    moved = shifted(cloud.select(order), [0.0, 0.0, 0.0])
    for by in ("label", "rgb", "height", "intensity", None):
        whole = image(lambda: [cloud], by)
        assert np.array_equal(whole, image(lambda: [moved], by)), by
        chunks = [moved.select(part) for part in torch.arange(len(cloud)).split(1001)]
        assert np.array_equal(whole, image(lambda: chunks, by)), by  # noqa: B023
    assert np.array_equal(whole, image(lambda: [cloud], None))


def test_sample_is_bounded_and_counts_include_all_points(monkeypatch):
    cloud = data.street(6000, length=20.0)
    scene = Scene(lambda: [cloud, cloud], Look().view, None, most=500)
    assert 125 < len(scene.sample) <= 500
    assert scene.count == 12_000
    assert scene.scale("label", None).counts == {
        number: 2 * int((cloud.labels == number).sum()) for number in range(6)
    }  # fmt: skip
    same = Scene(lambda: [Cloud(torch.ones(3000, 3))], Look().view, None, most=500)
    assert 0 < len(same.sample) <= 500


@pytest.mark.parametrize("by", ["rgb", "height"])
def test_large_coordinates_lose_no_precision(by):
    cloud = data.street(3000, length=12.0)
    cloud = Cloud((cloud.points * 1024).round().double() / 1024, cloud.features)  # exact at any offset
    expected = drawn(cloud, by=by)
    assert np.array_equal(drawn(shifted(cloud, [6e6, -5e6, 4e6]), by=by), expected)
    moved = Cloud(cloud.points + torch.tensor([6e6, -5e6, 4e6], dtype=torch.float64), cloud.features)
    assert np.array_equal(drawn(moved, by=by), expected)


def test_non_finite_points_are_not_drawn():
    cloud = data.street(3000, length=12.0)
    expected = drawn(cloud)
    nasty = cloud.points.clone()[:3]
    nasty[0, 0], nasty[1, 1], nasty[2, 2] = torch.nan, torch.inf, -torch.inf
    more = Cloud(
        torch.cat([nasty, cloud.points]),
        {name: torch.cat([column[:3], column]) for name, column in cloud.features.items()},
        torch.cat([cloud.labels[:3], cloud.labels]),
    )
    assert np.array_equal(drawn(more), expected)
    with pytest.raises(ValueError, match="expected points with finite coordinates, got 3 points with NaN or infinity"):
        drawn(Cloud(nasty))
    with pytest.raises(ValueError, match="expected points with finite coordinates, got no points"):
        drawn(Cloud(torch.zeros(0, 3), source=""))
    with pytest.raises(ValueError, match=r"expected coordinates up to 1e\+30, got"):
        drawn(Cloud(torch.tensor([[0.0, 0, 0], [1e200, 0, 0]], dtype=torch.float64)))
    with pytest.raises(ValueError, match="cloud must contain at least one cloud, got none"):
        render.picture([])


@pytest.mark.parametrize(
    "points",
    [
        torch.tensor([[5.0, 6, 7]]),
        torch.full((1000, 3), 3e6),
        torch.linspace(0, 1, 50)[:, None] * torch.tensor([1.0, 2, 3]),
        torch.linspace(0, 1, 50)[:, None] * torch.tensor([1.0, 0, 0]),
        torch.rand(500, 3) * torch.tensor([1.0, 1, 0]),
        torch.rand(500, 3) * 1e30,
        torch.rand(500, 3) * 1e-30,
    ],
    ids=["a point", "all equal", "a line", "a line to the camera", "a plane", "huge", "tiny"],
)
@pytest.mark.parametrize("view", [(0.0, 0.0), (-60.0, 30.0), (0.0, 90.0)])
def test_clouds_without_extent(points, view):
    image = drawn(Cloud(points), azimuth=view[0], elevation=view[1])
    filled = (image != 255).any(-1)
    assert filled.any()
    assert not filled[0].any()
    assert not filled[:, 0].any()
    if len(points.unique(dim=0)) == 1:  # a dot in the center
        middle = np.argwhere(filled).mean(0)
        assert np.abs(middle - [35.5, 47.5]).max() <= 1


def test_dots_are_round_and_have_the_given_size():
    image = drawn(colored([[0.0, 0, 0]], [RED]), point_size=20)
    covered = 1 - image[..., 1].astype(float) / 255  # fraction of white, from the green channel
    assert covered.sum() == pytest.approx(np.pi * 10**2, rel=0.1)
    rows, columns = (covered.any(axis).sum() for axis in (1, 0))
    assert abs(rows - 20) <= 1
    assert abs(columns - 20) <= 1
    near_and_far = colored([[10.0, -1, 0], [-10.0, 1, 0]], [RED, BLUE])
    image = drawn(near_and_far, azimuth=0.0, elevation=0.0, point_size=8)
    sizes = [int((image[..., channel] < 128).sum()) for channel in (2, 0)]  # red has no blue
    assert sizes[0] > 1.5 * sizes[1]


def test_default_dots_close_surfaces():
    """Uniform points of a plane leave almost no holes, regardless of their number."""
    for count in (10_000, 40_000, 160_000):
        plane = torch.rand(count, 3) * torch.tensor([4.0, 3.0, 0.0])
        image = drawn(Cloud(plane), azimuth=-90.0, elevation=90.0, size=(320, 240), by="height")
        middle = image[30:-30, 30:-30]
        assert (middle == 255).all(-1).mean() < 0.03, count


def test_points_in_one_place_are_visible():
    for count in (1, 5000):
        image = drawn(Cloud(torch.ones(count, 3)), size=(320, 240), by="height")
        assert 20 < (image != 255).any(-1).sum() < 80, count


def test_edges_are_darker_than_planes():
    """Shading depends on depth only: two plates of one color at different heights."""
    flat = torch.rand(20_000, 3) * torch.tensor([4.0, 3.0, 0.0])
    flat[:, 2] = (flat[:, 0] > 2).float()
    cloud = colored(flat, [(200, 200, 200)] * len(flat))
    image = drawn(cloud, azimuth=-90.0, elevation=90.0, size=(160, 120), by="rgb")[30:90].astype(float).mean((0, 2))
    assert image[30:60].min() > 185
    assert image[95:130].min() > 185
    assert image[65:95].min() < 150


def test_backgrounds():
    cloud = data.street(2000, length=12.0)
    white, dark, clear = (drawn(cloud, background=name) for name in ("white", "dark", "transparent"))
    assert white.shape == dark.shape == (72, 96, 3)
    assert clear.shape == (72, 96, 4)
    assert (white[0] == 255).all()
    assert (dark[0] < 40).all()
    assert (clear[0, :, 3] == 0).all()
    solid = clear[..., 3] == 255
    assert solid.any()
    assert np.array_equal(clear[solid][:, :3], white[solid])
    assert np.array_equal(clear[solid][:, :3], dark[solid])
    over = clear[..., :3] * (clear[..., 3:] / 255) + 255 * (1 - clear[..., 3:] / 255)
    assert np.abs(over - white).max() <= 1


def test_legend_shows_names():
    pytest.importorskip("PIL")
    cloud = data.street(2000, length=12.0)
    names = dict(enumerate(data.STREET_CLASSES))
    look = {"size": (400, 240), "by": "label"}
    without, numbers, named, dark = (
        render.picture(cloud, **look, **more)
        for more in ({"legend": False}, {}, {"names": names}, {"names": names, "background": "dark"})
    )
    assert (without[:, -4:] == 255).all()
    assert not np.array_equal(numbers, named)
    scale = render.scale(cloud, "label", names)
    column = named[:, 260:]
    for number in range(6):
        swatch = (column == scale.color(number)).all(-1).sum()
        assert 80 < swatch < 300, number
    assert ((dark > 200).all(-1)).any()  # light text
    other = render.picture(cloud, **look, names={**names, 0: "vehicle"})
    differs = (other != named).any(-1)
    rows = np.nonzero(differs.any(1))[0]
    assert 0 < rows[-1] - rows[0] < 20  # only that line changes
    assert np.array_equal(render.picture(cloud, **{**look, "by": "rgb"}).shape, (240, 400, 3))


def test_legend_shows_the_range_of_a_quantity():
    pytest.importorskip("PIL")
    one, two = (
        render.picture(Cloud(torch.rand(500, 3) * size), "height", size=(400, 240)) for size in (1.0, 7.0)
    )  # fmt: skip
    assert not np.array_equal(one[:, 300:], two[:, 300:])
    bar = one[:, 300:].reshape(-1, 3)
    assert len(np.unique(bar, axis=0)) > 80


def test_legend_of_many_classes_and_long_names_fits():
    pytest.importorskip("PIL")
    labels = torch.arange(3000) % 300 - 1
    cloud = Cloud(torch.rand(3000, 3), labels=labels)
    image = render.picture(
        cloud, size=(300, 200), names={number: "long name " * 9 + str(number) for number in range(300)}
    )
    assert image.shape == (200, 300, 3)
    filled = (image[:, :190] != 255).any(-1)
    assert filled.any()
    assert (image[:, 212:] != 255).any()


def test_several_clouds_share_a_scale():
    pytest.importorskip("PIL")
    low, high = Cloud(torch.rand(500, 3)), Cloud(torch.rand(500, 3) + torch.tensor([0.0, 0, 1]))
    image = render.picture([low, high], "height", size=(320, 120), legend=False, titles=["low", "high"])
    left, right = (half[(half != 255).any(-1)].mean(0) for half in (image[20:, :160], image[20:, 160:]))
    assert left[2] > left[0]  # blue
    assert right[0] > right[2]  # yellow
    assert (image[:12, 50:110] < 200).any()
    assert not np.array_equal(image[:12, :160], image[:12, 160:])
    with pytest.raises(ValueError, match="titles must have one entry for each of 2 clouds, got 1"):
        render.picture([low, high], titles=["one"])
    mixed = [Cloud(torch.rand(9, 3), labels=torch.arange(9)), low]
    assert np.array_equal(render.picture(mixed, size=(99, 60)), render.picture(mixed, "height", size=(99, 60)))


def test_column_called_rgb_without_colors():
    cloud = Cloud(torch.rand(60, 3), {"rgb": torch.rand(60)})
    assert "rgb" in render.choices(cloud)
    other = Cloud(cloud.points, {"other": cloud.features["rgb"]})
    size = {"size": (64, 48), "legend": False}
    assert np.array_equal(render.picture(cloud, "rgb", **size), render.picture(other, "other", **size))
    with pytest.raises(ValueError, match="by must be one of height, other, got rgb"):
        render.picture(other, "rgb", **size)


def test_maximum_duration(tmp_path):
    frames = [np.full((8, 8, 3), shade, np.uint8) for shade in (0, 255)]
    for suffix in ("gif", "webp"):
        render.save(tmp_path / f"a.{suffix}", frames, seconds=600)
        with pytest.raises(ValueError, match=r"seconds must be in \(0, 600\], got 1000"):
            render.save(tmp_path / f"b.{suffix}", frames, seconds=1000)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": (0, 10)}, "size must be 16 to 16384 pixels, got 0 x 10"),
        ({"size": (10**6, 100)}, "size must be"),
        ({"point_size": 0.0}, r"point_size must be in \(0, "),
        ({"point_size": float("nan")}, r"point_size must be in \(0, "),
        ({"background": "pink"}, "background must be one of white, dark, transparent, got pink"),
        ({"elevation": 91.0}, r"elevation must be in \[-90, 90\], got 91"),
        ({"azimuth": float("inf")}, "azimuth must be in"),
        ({"by": "nothing"}, "by must be one of height, got nothing"),
    ],
)
def test_wrong_arguments(wrong, message):
    with pytest.raises(ValueError, match=message):
        render.picture(Cloud(torch.rand(5, 3)), **{"legend": False, **wrong})


def test_turntable_is_a_full_rotation():
    cloud = data.street(3000, length=12.0)
    frames = render.turntable(cloud, "label", frames=12, size=(96, 72), legend=False, azimuth=20.0)
    assert len(frames) == 12
    steps = [np.abs(one.astype(int) - two).mean() for one, two in zip(frames, frames[1:] + frames[:1], strict=True)]
    assert min(steps) > 0.5
    assert steps[-1] < 1.5 * max(steps[:-1])  # the step from last to first equals the others
    round_trip = render.turntable(cloud, "label", frames=12, size=(96, 72), legend=False, azimuth=20.0 + 120)
    same = np.abs(frames[4].astype(int) - round_trip[0]).mean()
    assert same < 0.05
    for frame in frames:
        filled = (frame != 255).any(-1)
        assert not filled[[0, -1]].any()
        assert not filled[:, [0, -1]].any()
    with pytest.raises(ValueError, match="frames must be at least 1, got -1"):
        render.turntable(cloud, frames=-1)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif"])
def test_saved_images_are_restored(tmp_path, suffix):
    image = pytest.importorskip("PIL.Image")
    picture = drawn(data.street(2000, length=12.0))
    path = tmp_path / "new" / f"a.{suffix}"
    render.save(path, picture)
    with image.open(path) as opened:
        again = np.asarray(opened.convert("RGB")).astype(int)
    assert np.abs(again - picture).mean() < {"png": 1e-9, "webp": 1e-9}.get(suffix, 4)
    before = path.read_bytes()
    with pytest.raises(data.FileError, match="already exists; set overwrite"):
        render.save(path, picture // 2)
    assert path.read_bytes() == before
    render.save(path, picture // 2, overwrite=True)
    assert path.read_bytes() != before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", ["gif", "webp"])
def test_saved_animations_loop(tmp_path, suffix):
    image = pytest.importorskip("PIL.Image")
    frames = render.turntable(data.street(2000, length=12.0), frames=5, size=(96, 72), legend=False)
    render.save(tmp_path / f"a.{suffix}", frames, seconds=2)
    with image.open(tmp_path / f"a.{suffix}") as again:
        assert again.n_frames == 5
        assert again.info["loop"] == 0
        durations = []
        for number, frame in enumerate(frames):
            again.seek(number)
            again.load()
            durations.append(again.info["duration"])
            shown = np.asarray(again.convert("RGB")).astype(int)
            assert np.abs(shown - frame).mean() < 6
    assert sum(durations) == pytest.approx(2000, abs=50)


def test_save_errors(tmp_path):
    picture, clear = np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8, 4), np.uint8)
    for name, images, message in (
        ("a.bmp", picture, "expected a name that ends in .png"),
        ("a", picture, "expected a name that ends in .png"),
        ("a.png", [picture, picture], "expected a name that ends in .gif, .webp for several frames"),
        ("a.jpg", clear, "expected a name that ends in .png, .webp for a transparent image"),
    ):
        with pytest.raises(data.FileError, match=message):
            render.save(tmp_path / name, images)
    assert not list(tmp_path.iterdir())


def test_examples_of_a_run():
    """Images drawn by training: right and wrong predictions for whole clouds and for points."""
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("lightning_fabric")
    import io

    from pointgrad.train import pictures
    from pointgrad.train.evaluation import Example

    def opened(chosen, classes):
        return np.asarray(image.open(io.BytesIO(pictures.examples(chosen, classes))).convert("RGB"))

    def example(points, target, predicted):
        right = float((predicted == target)[target >= 0].float().mean())
        return Example(points, target, predicted, "", -1, right, right, 1.0)

    points = torch.rand(300, 3)
    target = torch.arange(300) % 3 - 1
    right, wrong = target.clamp(min=0), 1 - target.clamp(min=0)
    right[1], wrong[1] = wrong[1].item(), right[1].item()  # both have right and wrong predictions
    good, bad = (opened([example(points, target, predicted)] * 2, ["a", "b"]) for predicted in (right, wrong))
    third = good.shape[0] // 3
    assert np.array_equal(good[:third, :500], bad[:third, :500])  # ground truth
    assert not np.array_equal(good[third : 2 * third, :500], bad[third : 2 * third, :500])

    def red(image):
        return int(((image[..., 0] > 150) & (image[..., 1:] < 80).all(-1)).sum())

    assert red(bad[2 * third :, :500]) > 20 * max(red(good[2 * third :, :500]), 1)
    classes = ["bed", "chair"]
    images = [opened([example(points, torch.tensor(1), torch.tensor(predicted))], classes) for predicted in (0, 1)]
    assert red(images[0]) > 10
    assert red(images[1]) == 0


def test_points_with_gradients_are_drawn():
    points = torch.rand(50, 3, requires_grad=True)
    cloud = Cloud(points, {"depth": points[:, 1] * 2})
    for by in ("height", "depth"):
        plain = Cloud(points.detach(), {"depth": cloud.features["depth"].detach()})
        assert np.array_equal(drawn(cloud, by=by), drawn(plain, by=by))


def test_documented_examples_run():
    ran = 0
    for _, name, _ in pkgutil.iter_modules(render.__path__, "pointgrad.render."):
        result = doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch})
        assert result.failed == 0
        ran += result.attempted
    assert ran > 10


def test_images_of_tensors_and_arrays():
    """Each is drawn like the cloud with the same columns."""
    Image = pytest.importorskip("PIL.Image")
    points, labels = torch.rand(500, 3), torch.arange(500) % 2
    look = {"size": (200, 120), "legend": False}
    drawn = pointgrad.render(points, labels=labels, classes=["ground", "water"], **look)
    assert isinstance(drawn, Image.Image)
    expected = render.picture(Cloud(points, labels=labels), names={0: "ground", 1: "water"}, **look)
    assert np.array_equal(np.asarray(drawn), expected)
    values = pointgrad.render(points.numpy(), points[:, 0], **look)
    assert np.array_equal(np.asarray(values), render.picture(Cloud(points, {"v": points[:, 0]}), "v", **look))
    red = np.asarray(pointgrad.render(points, np.array([[255, 0, 0]] * 500, np.uint8), **look)).astype(int)
    assert ((red[..., 0] > red[..., 1]) | (red == 255).all(2)).all()
    clouds = {"a": points, "b": points[:50]}
    both = render.picture([Cloud(each) for each in clouds.values()], titles=list(clouds), size=(200, 120))
    assert np.array_equal(np.asarray(pointgrad.render(clouds, size=(200, 120))), both)
    assert np.asarray(pointgrad.render(torch.rand(2, 50, 3), background="transparent", **look)).shape == (120, 200, 4)
    with pytest.raises(ValueError, match="they look transposed"):
        pointgrad.render(points.T)
    with pytest.raises(ValueError, match="by must be one of height, got nothing"):
        pointgrad.render(points, by="nothing", **look)
    with pytest.raises(ValueError, match=r"points\['b'\] must have at least one finite point, got none"):
        pointgrad.render({"a": points, "b": points[:0]}, **look)
    for size in (200, (200.0, 120), "ab", (200, 120, 3), (True, 120)):
        with pytest.raises(TypeError, match="size must be two integers, width and height, got"):
            pointgrad.render(points, size=size)


def test_image_without_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match=r"^images need pillow: pip install 'pointgrad\[view\]'$"):
        pointgrad.render(torch.rand(5, 3))

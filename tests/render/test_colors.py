"""Colors of points, class names of files, and labels stored next to files."""

import numpy as np
import pytest
import torch

from pointgrad import data, predict, render
from pointgrad.data import Cloud
from pointgrad.render.colors import NONE, PALETTE, RIGHT, WRONG, ramp
from tests.support.scenes import las_file, trained, write


def labeled(numbers, **features):
    return Cloud(torch.zeros(len(numbers), 3), features, torch.tensor(numbers))


def test_all_choices_can_be_painted():
    channels = {name: torch.zeros(5, dtype=torch.uint8) for name in ("red", "green", "blue")}
    features = {**channels, "normal": torch.rand(5, 3), "depth": torch.rand(5), "wave": torch.rand(5, 2, 2)}
    cloud = Cloud(torch.rand(5, 3), features, torch.arange(5))
    found = render.choices(cloud)
    assert found[:3] == ["label", "rgb", "height"]
    assert {"depth", "normal[0]", "normal[2]"} < set(found)
    assert not any(name.startswith("wave") for name in found)
    for by in found:
        assert render.paint(cloud, render.scale(cloud, by)).shape == (5, 3)
    with pytest.raises(ValueError, match=r"a\.ply: by must be one of height, got rgb"):
        render.scale(Cloud(torch.rand(5, 3), source="a.ply"), "rgb")
    with pytest.raises(ValueError, match="got normal"):
        render.scale(cloud, "normal")


@pytest.mark.parametrize("wrong", ["normal[3]", "normal[x]", "normal[-1]", "depth[0]", "normal[1"])
def test_missing_columns(wrong):
    cloud = Cloud(torch.rand(5, 3), {"normal": torch.rand(5, 3), "depth": torch.rand(5)})
    with pytest.raises(ValueError, match="by must be one of height, normal"):
        render.scale(cloud, wrong)


def test_columns_of_any_type():
    features = {
        "flag": torch.tensor([True, False]), "huge": torch.tensor([1, 2**63 + 1], dtype=torch.uint64),
        "half": torch.tensor([0.5, 1.0]).half(), "name[0]": torch.tensor([0.0, 1.0]),
    }  # fmt: skip
    cloud = Cloud(torch.zeros(2, 3), features)
    for by in features:
        first, second = render.paint(cloud, render.scale(cloud, by)).tolist()
        assert first != second


def test_first_choice_distinguishes_points():
    red = {"red": torch.tensor([0, 9]), "green": torch.zeros(2), "blue": torch.zeros(2)}
    assert render.first_choice(labeled([1, 2], **red)) == "label"
    assert render.first_choice(labeled([1, 1], **red)) == "rgb"
    black = {name: torch.zeros(2) for name in red}
    assert render.first_choice(labeled([1, 1], **black)) == "height"
    assert render.first_choice(Cloud(torch.zeros(0, 3))) == "height"


def test_classes_have_distinct_colors_that_are_not_gray():
    cloud = labeled([0, 1, 2, 15, -1, 2])
    scale = render.scale(cloud, "label", {1: "tree"})
    colors = render.paint(cloud, scale)
    assert len({tuple(color) for color in colors.tolist()}) == 5
    assert colors[2].tolist() == colors[5].tolist() == list(scale.color(2))
    assert tuple(colors[4]) == NONE
    assert scale.counts == {-1: 1, 0: 1, 1: 1, 2: 2, 15: 1}
    assert [scale.name(number) for number in (-1, 1, 2)] == ["none", "tree", "2"]
    assert len({tuple(color) for color in PALETTE.tolist()} | {NONE}) == len(PALETTE) + 1


def test_integers_with_many_distinct_values_are_quantities():
    many, few = torch.arange(1000), torch.arange(1000) % 64
    cloud = Cloud(torch.zeros(1000, 3), {"few": few, "many": many}, many)
    assert render.scale(cloud, "few").kind == "class"
    assert render.scale(cloud, "many").kind == "value"
    assert render.scale(cloud, "label").kind == "class"  # regardless of their number


def test_errors_are_red():
    cloud = Cloud(torch.zeros(2, 3), {"error": torch.tensor([0, 1])})
    assert render.paint(cloud, render.scale(cloud, "error")).tolist() == [list(RIGHT), list(WRONG)]


def test_outliers_do_not_stretch_the_range():
    depth = torch.linspace(0, 1, 1001)
    depth[0], depth[1], depth[2] = 1e9, torch.nan, -torch.inf
    cloud = Cloud(torch.zeros(1001, 3), {"depth": depth})
    scale = render.scale(cloud, "depth")
    assert 0 < scale.low < 0.03
    assert 0.97 < scale.high < 1
    colors = render.paint(cloud, scale).tolist()
    assert colors[0] == colors[-1] == list(ramp(np.array([1.0]), 0, 1)[0])
    assert colors[1] == colors[2] == list(NONE)


def test_lightness_of_the_ramp_increases_within_its_range():
    colors = ramp(np.linspace(-1, 2, 301), 0, 1).astype(float)
    light = colors @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(light[100:200]) >= -0.5).all()
    assert light[200] - light[100] > 150
    assert (colors[:100] == colors[100]).all()
    assert (colors[200:] == colors[200]).all()
    assert (ramp(np.full(3, 7.0), 7.0, 7.0) == colors[0]).all()  # empty range
    assert (ramp(np.array([0.0, 1e300]), -1e308, 1e308) >= 0).all()


def test_height_uses_world_coordinates_unless_there_is_a_column_of_that_name():
    points = torch.rand(100, 3).double()
    far = Cloud(points, origin=torch.tensor([0.0, 0.0, 5e6], dtype=torch.float64))
    assert 5e6 < render.scale(far, "height").low < 5e6 + 1
    near = Cloud(points)
    expected = render.paint(near, render.scale(near, "height"))
    assert np.abs(render.paint(far, render.scale(far, "height")).astype(int) - expected).max() <= 1
    named = Cloud(points, {"height": torch.full((100,), 3.0)})
    assert render.scale(named, "height").low == 3


@pytest.mark.parametrize(
    ("dtype", "white"),
    [
        (torch.uint8, 255),
        (torch.int32, 65535),
        (torch.int32, 255),
        (torch.int64, 255),
        (torch.float32, 1.0),
        (torch.float64, 255),
        (torch.float32, 65535),
    ],
)
def test_colors_of_all_types(dtype, white):
    """8 bits, 16 bits, 8 bits stored in 16, fractions, and 8 or 16 bits as floats."""
    shares = torch.tensor([0.0, 0.5, 1.0])
    channel = (shares * white).to(dtype)
    cloud = Cloud(torch.zeros(3, 3), dict.fromkeys(("red", "green", "blue"), channel))
    painted = render.paint(cloud, render.scale(cloud, "rgb"))
    assert np.abs(painted[:, 0].astype(int) - [0, 127, 255]).max() <= 1
    assert (painted == painted[:, :1]).all()


def test_names_from_a_file_next_to_the_cloud(tmp_path):
    (tmp_path / "train").mkdir()
    for path in (tmp_path / "a.ply", tmp_path / "train" / "b.ply"):
        write(path, labeled([0, 1]))
        assert render.class_names(path) == {}
    (tmp_path / "classes.txt").write_text("road\n\ntree\n")
    for path in (tmp_path / "a.ply", tmp_path / "train" / "b.ply"):  # train is a split of the dataset
        assert render.class_names(path) == {0: "road", 1: "tree"}
        assert render.class_names(path, "predicted_label") == {0: "road", 1: "tree"}
        assert render.class_names(path, "confidence") == {}
    (tmp_path / "classes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(data.FileError, match=r"classes\.txt: expected a list"):
        render.class_names(tmp_path / "a.ply")


def test_names_of_las_classes(tmp_path):
    las_file(tmp_path / "a.las", count=50)
    standard = render.class_names(tmp_path / "a.las")
    assert (standard[2], standard[6], standard[18]) == ("ground", "building", "high noise")
    assert render.class_names(tmp_path / "a.las", "classification") == standard
    predict.label_file(trained(), tmp_path / "a.las", tmp_path / "out" / "a.las")
    made = tmp_path / "out" / "a.las"
    (tmp_path / "out" / "classes.txt").unlink()  # from the file itself
    assert render.class_names(made) == {0: "low", 1: "high"}
    assert render.class_names(made, "classification") == standard
    (tmp_path / "classes.txt").write_text("one\ntwo\n")  # as in training
    assert render.class_names(tmp_path / "a.las") == {0: "one", 1: "two"}


def test_names_if_the_file_already_has_a_confidence(tmp_path):
    """The labels of the file are then its classification, and the predictions have a different column."""
    las_file(tmp_path / "a.las", count=50, confidence=np.zeros(50, np.float32))
    predict.label_file(trained(), tmp_path / "a.las", tmp_path / "out" / "a.las")
    made = tmp_path / "out" / "a.las"
    assert render.class_names(made)[2] == "ground"
    assert render.class_names(made, "predicted_label") == {0: "low", 1: "high"}


def test_labels_from_files_next_to_the_cloud(tmp_path):
    cloud = Cloud(torch.rand(4, 3), {"intensity": torch.rand(4)})
    data.write(tmp_path / "a.bin", cloud)
    read = data.read(tmp_path / "a.bin")
    assert render.with_labels(read, tmp_path / "a.bin").labels is None
    np.array([1, 0xFFFF, 5 << 16 | 2, 0], np.uint32).tofile(tmp_path / "a.label")
    np.save(tmp_path / "a.confidence.npy", np.array([0.5, 0, 1, 0.25], np.float32))
    found = render.with_labels(read, tmp_path / "a.bin")
    assert found.labels.tolist() == [1, -1, 2, 0]
    assert found.features["confidence"].tolist() == [0.5, 0, 1, 0.25]
    np.save(tmp_path / "a.labels.npy", np.array([3, -1, 3, 3]))
    assert render.with_labels(read, tmp_path / "a.bin").labels.tolist() == [3, -1, 3, 3]
    np.save(tmp_path / "a.labels.npy", np.array([3, 3]))
    with pytest.raises(data.FileError, match=r"a\.bin: expected 4 labels in a\.labels\.npy, .* got 2"):
        render.with_labels(read, tmp_path / "a.bin")
    np.save(tmp_path / "a.labels.npy", np.zeros(4, int))
    np.save(tmp_path / "a.confidence.npy", np.zeros(3))
    with pytest.raises(data.FileError, match=r"a\.confidence\.npy: expected 4 numbers"):
        render.with_labels(read, tmp_path / "a.bin")


def test_street():
    scene = data.street(20_000, length=40.0, seed=3)
    again = data.street(20_000, length=40.0, seed=3)
    assert torch.equal(scene.points, again.points)
    assert not torch.equal(scene.points, data.street(20_000, length=40.0, seed=4).points)
    assert scene.points.dtype == torch.float32
    names = {name: scene.points[scene.labels == number] for number, name in enumerate(data.STREET_CLASSES)}
    assert all(len(points) for points in names.values())
    assert names["ground"][:, 2].abs().max() < 0.4
    assert names["building"][:, 2].max() > 5
    assert 1.2 < names["car"][:, 2].max() < 1.7
    assert scene.points[:, 0].min() > -2.5
    assert scene.points[:, 0].max() < 42.5
    assert bool(scene.features["intensity"].isfinite().all())
    for wrong in ({"points": 0}, {"length": 3.0}, {"length": float("nan")}):
        with pytest.raises(ValueError, match="must be"):
            data.street(**wrong)

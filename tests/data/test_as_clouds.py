"""Clouds from tensors and arrays, with their colors and labels, and errors for everything else."""

import doctest

import numpy as np
import pytest
import torch

from pointgrad import data
from pointgrad.data import Cloud
from pointgrad.data import as_clouds as module
from pointgrad.data.as_clouds import as_clouds, class_map, stored_names


def test_layouts_types_and_names():
    points = torch.rand(6, 3)
    (cloud,) = as_clouds(points).values()
    assert torch.equal(cloud.points, points)
    for given, dtype in (
        (points.numpy().astype(">f4"), torch.float32),
        (points.double().numpy()[::-1], torch.float64),
        (points.half(), torch.float32),
        (points.bfloat16(), torch.float32),
        ((points * 100).to(torch.int32), torch.float64),
        ((points * 100).numpy().astype(np.uint16), torch.float64),
        (points.numpy().astype(np.longdouble), torch.float64),
        (points.clone().requires_grad_(), torch.float32),
        (points.T.contiguous().T, torch.float32),
    ):
        (cloud,) = as_clouds(given).values()
        expected = given.detach().double().numpy() if isinstance(given, torch.Tensor) else given.astype(float)
        assert cloud.points.dtype == dtype
        assert np.array_equal(cloud.points.double().numpy(), expected)
        assert not cloud.points.requires_grad
    assert list(as_clouds(points, name="a")) == ["a"]
    assert list(as_clouds(Cloud(points, source="/data/house.laz"))) == ["house.laz"]
    assert list(as_clouds([points, Cloud(points, source="b.ply"), Cloud(points, source="b.ply")])) == [
        "0",
        "b.ply",
        "2",
    ]
    assert list(as_clouds({"x": points, "y": points[:0]})) == ["x", "y"]
    batch = torch.rand(2, 6, 3)
    assert [torch.equal(cloud.points, own) for cloud, own in zip(as_clouds(batch).values(), batch, strict=True)] == [
        True, True,
    ]  # fmt: skip


def test_points_are_copied():
    points, label, value = torch.rand(4, 3), torch.arange(4), np.arange(4.0)
    (cloud,) = as_clouds(points, value, label).values()
    (other,) = as_clouds(Cloud(points, {"value": torch.from_numpy(value)}, label)).values()
    points.zero_(), label.zero_(), value.fill(0)
    for each in (cloud, other):
        assert each.points.abs().sum() > 0
        assert each.labels.tolist() == each.features["value"].tolist() == [0, 1, 2, 3]


def test_colors_and_labels():
    points = np.zeros((3, 3))
    colors = np.array([[0, 0.5, 1], [1.0005, 0, 0.2], [0, 0, 0]])
    (cloud,) = as_clouds(points, colors).values()
    assert torch.stack([cloud.features[name] for name in ("red", "green", "blue")], 1).tolist() == [
        [0, 128, 255], [255, 0, 51], [0, 0, 0],
    ]  # fmt: skip
    for whole in (np.array([[0, 1, 255]] * 3, np.uint8), torch.tensor([[0, 1, 255]] * 3)):
        (cloud,) = as_clouds(points, whole).values()
        assert cloud.features["blue"].dtype == torch.uint8
        assert [int(cloud.features[name][0]) for name in ("red", "green", "blue")] == [0, 1, 255]
    (cloud,) = as_clouds(points, labels=np.array([True, False, True])).values()
    assert cloud.labels.tolist() == [1, 0, 1]
    clouds = as_clouds({"a": points, "b": points}, {"b": [1.0, 2.0, 3.0]}, {"a": [0, -1, 2]})
    assert "value" not in clouds["a"].features
    assert clouds["b"].features["value"].tolist() == [1, 2, 3]
    assert clouds["b"].labels is None
    batch = as_clouds(np.zeros((2, 3, 3)), np.arange(6.0).reshape(2, 3), np.arange(6).reshape(2, 3))
    assert [cloud.labels.tolist() for cloud in batch.values()] == [[0, 1, 2], [3, 4, 5]]
    assert class_map(("a", "b")) == {0: "a", 1: "b"}
    assert class_map({np.int64(4): "a", -1: "none"}) == {4: "a", -1: "none"}


P = torch.zeros(5, 3)
BAD = [
    ((torch.zeros(3, 100),), ValueError, "got (3, 100); they look transposed: pass points.T"),
    ((torch.zeros(9, 4),), ValueError, "got (9, 4): pass points[:, :3], and other columns"),
    ((torch.zeros(2, 9, 4),), ValueError, "got (2, 9, 4): pass points[..., :3], and other columns"),
    ((np.zeros((2, 3, 9)),), ValueError, "got (2, 3, 9); they look transposed: pass points.swapaxes(1, 2)"),
    ((torch.zeros(5, 3, device="meta"),), TypeError, "points must have data, got a tensor on the device meta"),
    ((torch.zeros(5),), ValueError, "points must be (N, 3) or (B, N, 3), got (5,)"),
    ((torch.zeros(0, 3),), ValueError, "points must have at least one point, got none"),
    ((torch.full((4, 3), torch.nan),), ValueError, "finite coordinates, got NaN or infinity in every point"),
    (("scan.laz",), TypeError, "got a file name: pass pointgrad.data.read(...)"),
    ((None,), TypeError, "points must be a tensor, an array, a Cloud, or a dict or list of these, got NoneType"),
    (([[0, 0, 0]],), TypeError, "points[0] must be a tensor, an array or a Cloud, got list"),
    (([],), ValueError, "points must have at least one cloud, got none"),
    ((P.bool(),), TypeError, "points must be numbers, got bool"),
    ((P + 1j,), TypeError, "points must be numbers, got complex64"),
    ((P.to_sparse(),), TypeError, "points must be a dense tensor, got torch.sparse_coo"),
    ((np.array([["a", "b", "c"]]),), TypeError, "points must be numbers, got <U1"),
    ((P, "height"), TypeError, "colors must be an array, got 'height'; to color by a column, pass by='height'"),
    ((P, torch.zeros(4, 3)), ValueError, "colors must be (5, 3) or (5,) like points, got (4, 3)"),
    ((P, torch.zeros(5, 4)), ValueError, "got (5, 4): pass colors[:, :3]"),
    ((P, torch.full((5, 3), 200.0)), ValueError, "colors must be from 0 to 1 as float32, got 200 to 200"),
    ((P, torch.full((5, 3), torch.nan)), ValueError, "colors must be from 0 to 1 as float32, got nan"),
    ((P, torch.full((5, 3), 256)), ValueError, "colors must be from 0 to 255 as int64, got 256 to 256"),
    ((P, None, torch.zeros(5, 13)), ValueError, "got (5, 13); of scores, pass labels.argmax(-1)"),
    ((P, None, torch.zeros(5)), TypeError, "labels must be integers, got float32"),
    ((P, None, [0, 1]), ValueError, "labels must be (5,) like points, got (2,)"),
    (({"a": P}, None, torch.zeros(5)), TypeError, "labels must be a dict like points, got Tensor"),
    (({"a": P}, {"b": P}), ValueError, "colors must have names of points, a; got b"),
    (([P, P], [P]), ValueError, "colors must have one entry for each of 2 clouds, got 1"),
    (([P], {"a": P}), TypeError, "colors must have one entry per cloud like points, got dict"),
    (({1: P},), TypeError, "the name of a cloud must be a non-empty string, got 1"),
    (({"a": torch.zeros(2, 5, 3)},), ValueError, "points['a'] must be (N, 3), got (2, 5, 3)"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "kind", "message"), BAD, ids=[message for *_, message in BAD])
def test_errors(arguments, kind, message):
    with pytest.raises(kind) as caught:
        as_clouds(*arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_errors_of_names():
    with pytest.raises(ValueError, match="name must be given with a single cloud only"):
        as_clouds([P, P], name="a")
    with pytest.raises(TypeError, match="non-empty string, got ''"):
        as_clouds(P, name="")
    for classes in ("road", [1], {"a": "b"}, 3):
        with pytest.raises(TypeError, match="classes must be a list of names or a dict"):
            class_map(classes)


def test_class_names_of_the_files_that_clouds_were_read_from(tmp_path):
    clouds = {}
    for folder, names in (("a", "road\ntree\n"), ("b", "road\ntree\n"), ("c", "car\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "classes.txt").write_text(names)
        data.write(tmp_path / folder / "scan.ply", Cloud(P, labels=torch.arange(5) % 2))
        clouds[folder] = data.read(tmp_path / folder / "scan.ply")
    assert stored_names({name: clouds[name] for name in "ab"}) == {0: "road", 1: "tree"}
    assert stored_names(clouds) == {}
    assert stored_names({"x": Cloud(P, source="shapes train 3"), "y": Cloud(P)}) == {}


def test_documented_examples():
    assert doctest.testmod(module, extraglobs={"torch": torch, "np": np}).failed == 0

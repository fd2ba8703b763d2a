"""`Arrays`: valid and invalid files, splits, and real data."""

import re

import numpy as np
import pytest
import torch

from benchmarks import modelnet40
from pointgrad.data import Arrays, Cloud, FileError, Loader, Prepare
from pointgrad.data.datasets.split import held_out
from pointgrad.data.scaling import columns
from tests.support.places import DATA

SPLITS = ("train", "val", "test")


def arrays(n=20, p=6, **more):
    rng = np.random.default_rng(0)
    return {"points": rng.random((n, p, 3), np.float32), "label": np.arange(n) % 2, **more}


def packed(**more):
    rng = np.random.default_rng(0)
    return {"points": rng.random((10, 3)), "offsets": np.array([0, 3, 4, 10]), "label": np.array([0, 2, 1]), **more}


def raises(error, message):
    """Expect an exception with exactly this message, which is one line."""
    return pytest.raises(error, match=f"^{re.escape(message)}$")


# Splits


@pytest.mark.parametrize("seed", range(3))
def test_held_out_is_a_tenth_of_each_class(seed):
    strata = torch.tensor([0] * 50 + [1] * 20 + [2] * 3 + [3])
    chosen = held_out(strata, seed)
    assert [int(chosen[strata == k].sum()) for k in range(4)] == [5, 2, 1, 0]
    assert torch.equal(chosen, held_out(strata, seed))
    assert not torch.equal(chosen, held_out(strata, seed + 1))


# Arrays


@pytest.mark.parametrize("kind", ["npz", "h5", "dict"])
def test_padded_arrays(tmp_path, kind):
    source = given = arrays(classes=np.array(["cat", "dog"]), red=np.arange(120, dtype=np.uint8).reshape(20, 6))
    if kind == "npz":
        source = tmp_path / "a.npz"
        np.savez_compressed(source, **given)
    elif kind == "h5":
        h5py = pytest.importorskip("h5py")
        source = tmp_path / "a.h5"
        with h5py.File(source, "w") as file:
            for name, array in given.items():
                file[name] = array.astype("S") if array.dtype.kind == "U" else array
    data = Arrays(source)
    assert (len(data), data.classes, data.task) == (20, ("cat", "dog"), "classification")
    for number in (0, 7, 19):
        cloud = data[number]
        assert np.array_equal(cloud.points.numpy(), given["points"][number])
        assert (cloud.label, cloud.labels, cloud.category) == (number % 2, None, None)
        assert cloud.features["red"].tolist() == given["red"][number].tolist()
        assert cloud.source.endswith(f"[{number}]")


def test_packed_arrays_with_point_labels():
    given = packed(
        label=np.array([0, 1, -1, 2, 2, 2, 0, 1, 1, 0]), category=np.array([1, 0, 1]), number=np.array([7, 8, 9])
    )
    data = Arrays({**given, "normal": np.ones((10, 3), np.float16), "height": np.arange(10)}, task="segmentation")
    assert (data.task, data.classes, data.categories) == ("segmentation", ("0", "1", "2"), ("0", "1"))
    assert data.parts == ((2,), (0, 1, 2))  # classes that occur in each category
    assert torch.equal(data.labels, torch.from_numpy(given["label"]))
    cloud = data[2]
    assert torch.equal(cloud.points, torch.from_numpy(given["points"][4:]))
    assert cloud.points.dtype == torch.float64
    assert cloud.labels.tolist() == [2, 2, 0, 1, 1, 0]
    assert (cloud.label, cloud.category) == (None, 1)
    assert set(cloud.features) == {"normal", "height"}
    assert cloud.features["height"].tolist() == [4, 5, 6, 7, 8, 9]
    wide = Arrays({**packed(), "intensity": np.arange(10, dtype=np.uint16) * 7000})
    assert wide[1].select(torch.tensor([0])).features["intensity"].tolist() == [21000]
    assert (
        Arrays({"points": np.zeros((2, 3, 3), "f2"), "label": np.zeros((2, 3), "u1")})[0].points.dtype == torch.float32
    )


def test_split_by_val_or_by_seed():
    val = np.zeros(20, bool)
    val[[2, 5]] = True
    parts = {split: Arrays(arrays(val=val), split) for split in SPLITS}
    assert {split: len(part) for split, part in parts.items()} == {"train": 18, "val": 2, "test": 20}
    assert [cloud.source for cloud in parts["val"]] == ["arrays[2]", "arrays[5]"]
    train, held = Arrays(arrays(), "train"), Arrays(arrays(), "val")
    assert (len(train), len(held)) == (18, 2)
    assert sorted(c.source for c in (*train, *held)) == sorted(f"arrays[{n}]" for n in range(20))
    assert sorted(cloud.label for cloud in held) == [0, 1]
    assert [c.source for c in Arrays(arrays(), "val", seed=3)] != [c.source for c in held]
    assert train.labels.tolist() == [cloud.label for cloud in train]


def bad(base, **changes):
    changed = {**base, **changes}
    return {name: array for name, array in changed.items() if array is not None}


NAN = arrays()["points"].copy()
NAN[3, 1, 2], NAN[17, 0, 0] = np.nan, np.inf

BAD_ARRAYS = [
    (bad(arrays(), label=None), "arrays must contain label, got points"),
    (bad(arrays(), points=None, label=None, x=np.ones(2)), "arrays must contain points and label, got x"),
    (bad(arrays(), points=np.ones((20, 6, 2))),
     "points must be (P, 3) with offsets, or (n, p, 3) without, got (20, 6, 2)"),
    (bad(arrays(), points=np.ones((20, 3))), "points must be (P, 3) with offsets, or (n, p, 3) without, got (20, 3)"),
    (bad(arrays(), points=np.ones((20, 6, 3), int)), "points must be floating-point, got int64"),
    (bad(arrays(), points=np.ones((20, 0, 3))),
     "each cloud must have at least one point, got none in clouds 0, 1, 2, 3, 4 and 15 more"),
    (bad(arrays(), points=np.ones((0, 6, 3))), "points must contain at least one cloud, got none"),
    (bad(arrays(), points=NAN), "coordinates must be finite, got NaN or infinity in clouds 3, 17"),
    (bad(arrays(), label=np.ones(20)), "label must be integers, got float64"),
    (bad(arrays(), label=np.ones(7, int)),
     "label must have one entry per cloud (20,) or per point (120,), got (7,)"),
    (bad(arrays(), label=np.ones((6, 20), int)),
     "label must have one entry per cloud (20,) or per point (120,), got (6, 20)"),
    (bad(arrays(), classes=np.array(["cat"])), "label must be from 0 to 0 for 1 classes, got 0 to 1"),
    (bad(arrays(), label=np.arange(20) - 1), "label must be from 0 to 18 for 19 classes, got -1 to 18"),
    (bad(arrays(), val=np.ones(20)), "val must be bool (20,), one per cloud, got float64 (20,)"),
    (bad(arrays(), val=np.ones(20, bool)), "val must select at least one cloud for train, got none"),
    (bad(arrays(), label=np.zeros((20, 6), int), category=np.ones(3, int)),
     "category must be (20,), one per cloud, got (3,)"),
    (bad(packed(), offsets=np.array([0, 4, 3, 10])), "offsets must not decrease, got 4 then 3 at entry 2"),
    (bad(packed(), offsets=np.array([0, 3, 4, 9])), "offsets must run from 0 to 10, the number of points, got 0 to 9"),
    (bad(packed(), offsets=np.array([0, 3, 3, 10])), "each cloud must have at least one point, got none in cloud 1"),
    (bad(packed(), offsets=np.array([[0, 10]])), "offsets must be (n + 1,), got (1, 2)"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "message"), BAD_ARRAYS, ids=[message[:40] for _, message in BAD_ARRAYS])
def test_bad_arrays(tmp_path, given, message):
    path = tmp_path / "a.npz"
    np.savez(path, **given)
    with raises(FileError, f"{path}: {message}"):
        Arrays(path, "train")


def test_files_without_valid_arrays(tmp_path):
    path = tmp_path / "a.npz"
    with raises(FileError, f"{path}: expected an .npz file of plain arrays, got: No such file or directory"):
        Arrays(path)
    np.savez_compressed(path, **arrays(200))
    whole = path.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:cut])
        with pytest.raises(FileError, match=f"^{re.escape(str(path))}: expected an .npz file.*$"):
            Arrays(path)
    np.savez(path, points=np.array([object()]), label=np.ones(1))
    with pytest.raises(FileError, match="expected numbers, found Python objects in points"):
        Arrays(path)
    pytest.importorskip("h5py")
    other = tmp_path / "a.h5"
    other.write_bytes(whole)
    with pytest.raises(FileError, match=f"^{re.escape(str(other))}: expected an HDF5 file, got: .*$"):
        Arrays(other)
    with raises(ValueError, "split must be one of train, val, test, None, got 'validation'"):
        Arrays(arrays(), "validation")
    with raises(FileError, "arrays: label must have one entry per point for segmentation, got (20,)"):
        Arrays(arrays(), task="segmentation")


# Real data


@pytest.mark.parametrize(
    ("name", "train", "val", "classes", "sizes"),
    [("modelnet40", 8569, 951, 40, {1024}), ("dales", 199, 50, 5, None), ("kitti", 512, 512, 4, {128})],
)
def test_real_data_as_arrays(name, train, val, classes, sizes):
    source, convert = modelnet40.SOURCES[name]
    path = DATA / "classification" / source
    if not path.exists():
        pytest.skip(f"no real data at {DATA}; set POINTGRAD_TEST_DATA to the folder that holds them")
    converted = convert(path)
    sets = [Arrays(converted, split) for split in ("train", "val")]
    assert [len(data) for data in sets] == [train, val]
    assert [len(data.classes) for data in sets] == [classes] * 2
    batch = next(iter(Loader(sets[1], batch_size=30, shuffle=True, transform=Prepare())))
    assert batch.points.isfinite().all()
    first = batch.points[: batch.sizes[0]]
    assert first.norm(dim=1).max() == pytest.approx(1, abs=1e-5)
    if sizes:
        assert set(batch.sizes) == sizes
    else:
        assert min(batch.sizes) >= 106
        assert max(batch.sizes) <= 1024
        assert len(set(batch.sizes)) > 5
    if name == "modelnet40":
        points = converted["points"][:100].astype(float)
        levels = points * 127.5 + 127.5
        np.testing.assert_allclose(levels, levels.round(), atol=0.07)  # float16 rounds 256 levels
        farthest = np.linalg.norm(points, axis=2).max(axis=1)
        assert farthest.max() < 1.01  # quantized, in the unit sphere
        assert np.median(farthest) > 0.98
        # Points were sorted by position in the source and must be shuffled here.
        step = np.linalg.norm(np.diff(points, axis=1), axis=2).mean()
        any_two = np.linalg.norm(points[:, :512] - points[:, 512:], axis=2).mean()
        assert step == pytest.approx(any_two, rel=0.02)


def test_color_range_does_not_depend_on_the_format():
    """8 bits in PLY and 16 bits in LAS (int32 in torch) are both scaled so that white is 1; counts are not colors."""
    points, white = torch.zeros(1, 3), {"red": torch.tensor([255], dtype=torch.uint8), "height": torch.tensor([7])}
    wide = {"red": torch.tensor([65535], dtype=torch.int32), "height": torch.tensor([7])}
    ready = {"red": torch.tensor([1.0]), "height": torch.tensor([7])}
    for features in (white, wide, ready):
        assert Cloud(points, features).stack(["red", "height"]).tolist() == [[1, 7]]
    for dtype in (torch.uint8, torch.int32, torch.float32):
        returns = Cloud(points, {"return_number": torch.tensor([3], dtype=dtype)})
        assert returns.stack(["return_number"]).tolist() == [[3]]
        assert columns(returns, "return_number").tolist() == [[3]]

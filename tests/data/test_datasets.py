"""Folders and published datasets: a small copy of each layout, and errors for wrong ones."""

import json
import re
import shutil

import numpy as np
import pytest
import torch

from pointgrad.data import (
    S3DIS,
    Arrays,
    Cloud,
    FileError,
    Folder,
    ModelNet,
    ScanObjectNN,
    SemanticKITTI,
    ShapeNetPart,
    Shapes,
    open_dataset,
    write,
)
from pointgrad.data.datasets import semantickitti

SPLITS = ("train", "val", "test")


def raises(error, message):
    """Expect an exception with exactly this message, which is one line."""
    return pytest.raises(error, match=f"^{re.escape(message)}$")


# Folder


def put(path, n=5, value=0.0, labels=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, Cloud(torch.rand(n, 3) + value, labels=None if labels is None else torch.tensor(labels)))
    return path


def test_folder_per_class(tmp_path):
    for label, name in enumerate(("cat", "dog")):
        for number in range(10):
            put(
                tmp_path / name / ("deeper" if number > 7 else "") / f"{number}.{('ply', 'xyz')[number % 2]}",
                value=label,
            )
    (tmp_path / "README.txt").write_text("not a cloud")
    (tmp_path / "cat" / "notes.pdf").write_text("not a cloud")
    data = Folder(tmp_path)
    assert (len(data), data.classes, data.task) == (20, ("cat", "dog"), "classification")
    for cloud in data:
        assert data.classes[cloud.label] in cloud.source
        assert cloud.points.min() >= cloud.label
        assert cloud.labels is None
    train, val = Folder(tmp_path, "train"), Folder(tmp_path, "val")
    assert (len(train), len(val), len(Folder(tmp_path, "test"))) == (18, 2, 20)
    assert set(train.files) | set(val.files) == set(data.files)
    assert train.classes == val.classes == data.classes


def test_folder_with_splits(tmp_path):
    for split, count in (("train", 10), ("test", 3)):
        for number in range(count):
            put(tmp_path / split / "cat" / f"{number}.npz")
    put(tmp_path / "train" / "dog" / "0.npz")
    sizes = {split: len(Folder(tmp_path, split)) for split in SPLITS}
    assert sizes == {"train": 10, "val": 1, "test": 3}  # val is taken from train, which keeps the only dog
    assert Folder(tmp_path, "test").classes == ("cat", "dog")
    put(tmp_path / "val" / "dog" / "1.npz")
    assert {split: len(Folder(tmp_path, split)) for split in SPLITS} == {"train": 11, "val": 1, "test": 3}
    assert Folder(tmp_path, "val")[0].label == 1
    shutil.rmtree(tmp_path / "test")
    with raises(FileError, f"{tmp_path}: expected a folder test in addition to train, found none"):
        Folder(tmp_path, "test")


def test_folder_with_a_table(tmp_path):
    for name in ("a", "b", "c"):
        put(tmp_path / "clouds" / f"{name}.ply")
    table = tmp_path / "labels.csv"
    table.write_text("file,class\nclouds/a.ply,10\nclouds/b.ply, 9\n\nclouds/c.ply,10\n")
    data = Folder(tmp_path)
    assert data.classes == ("9", "10")
    assert [cloud.label for cloud in data] == [1, 0, 1]
    for text, message in (
        ("clouds/a.ply\n", "expected file,class, got 'clouds/a.ply' in line 1"),
        ("file,class\nclouds/a.ply,1\nclouds/x.ply,1", "expected files that exist, got 'clouds/x.ply' in line 3"),
    ):
        table.write_text(text)
        with raises(FileError, f"{table}: {message}"):
            Folder(tmp_path)


def test_folder_with_point_labels(tmp_path):
    put(tmp_path / "a.ply", labels=[0, 1, 2, 2, -1])
    put(tmp_path / "b.xyz")
    np.save(tmp_path / "b.labels.npy", np.array([3, 0, 0, 0, 1], np.uint8))
    put(tmp_path / "c.npy")
    (np.array([1, 1, 2, 2, 0], np.uint32) + (77 << 16)).tofile(tmp_path / "c.label")
    data = Folder(tmp_path)
    assert (data.task, data.classes) == ("segmentation", ("0", "1", "2", "3"))
    assert [cloud.labels.tolist() for cloud in data] == [[0, 1, 2, 2, -1], [3, 0, 0, 0, 1], [1, 1, 2, 2, 0]]
    assert all(cloud.label is None for cloud in data)
    (tmp_path / "classes.txt").write_text("ground\ntree\nhouse\n")
    named = Folder(tmp_path)
    assert named.classes == ("ground", "tree", "house")
    with raises(FileError, f"{tmp_path / 'b.xyz'}: expected labels from -1 to 2, got 0 to 3"):
        named[1]
    np.save(tmp_path / "b.labels.npy", np.zeros(4, int))
    with raises(FileError, f"{tmp_path / 'b.xyz'}: expected 5 labels in b.labels.npy, one for each point, got (4,)"):
        named[1]
    np.save(tmp_path / "b.labels.npy", np.zeros(5))
    with raises(FileError, f"{tmp_path / 'b.labels.npy'}: expected integers, got float64"):
        named[1]
    (tmp_path / "b.labels.npy").unlink()
    with pytest.raises(
        FileError, match=r"b.xyz: expected a label for each point, in a column called label or class, in "
    ):
        named[1]
    assert len(Folder(tmp_path, "train")) == 2


def test_folder_of_meshes(tmp_path):
    """Points are sampled from the surface, the same ones each time."""
    (tmp_path / "tile").mkdir()
    (tmp_path / "tile" / "a.off").write_text("OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n")
    data = Folder(tmp_path, sample=50)
    points = data[0].points
    assert points.shape == (50, 3)
    assert (points.sum(1) <= 1 + 1e-6).all()
    assert torch.equal(points, data[0].points)
    assert len(Folder(tmp_path)[0]) == 3


def test_folders_without_clouds(tmp_path):
    with pytest.raises(FileError, match=r"no: expected a folder of clouds as CLASS/\*.ply, .*: it does not exist$"):
        Folder(tmp_path / "no")
    with pytest.raises(FileError, match=r"it is empty$"):
        Folder(tmp_path)
    (tmp_path / "a.pdf").touch()
    with pytest.raises(FileError, match=r"found a.pdf$"):
        Folder(tmp_path)
    put(tmp_path / "b.ply")
    with pytest.raises(FileError, match="expected clouds as"):
        Folder(tmp_path, task="classification")


# Published datasets


def triangle(size, glued=False):
    return f"OFF{'' if glued else chr(10)}3 1 0\n0 0 0\n{size} 0 0\n0 {size} 0\n3 0 1 2\n"


def modelnet_meshes(root):
    for size, name in enumerate(("bed", "night_stand"), start=1):
        for part, count in (("train", 10), ("test", 3)):
            folder = root / "ModelNet40" / name / part
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"{name}_{number:04}.off").write_text(triangle(size, glued=number % 2 == 1))


def modelnet_text(root):
    root = root / "modelnet40_normal_resampled"
    (root / "bed").mkdir(parents=True)
    (root / "night_stand").mkdir()
    (root / "modelnet40_shape_names.txt").write_text("bed\nnight_stand\n")
    rng = np.random.default_rng(0)
    for part, numbers in (("train", range(10)), ("test", range(10, 13))):
        entries = [f"{name}_{number:04}" for name in ("bed", "night_stand") for number in numbers]
        (root / f"modelnet40_{part}.txt").write_text("\n".join(entries) + "\n")
        for entry in entries:
            value = entry.startswith("n") + 1.0
            np.savetxt(root / entry.rpartition("_")[0] / f"{entry}.txt", rng.random((8, 6)) * value, "%.6f", ",")


def modelnet_h5(root):
    h5py = pytest.importorskip("h5py")
    root = root / "modelnet40_ply_hdf5_2048"
    root.mkdir()
    (root / "shape_names.txt").write_text("bed\nnight_stand\n")
    rng = np.random.default_rng(0)
    for name, labels in (("train0", [0] * 8), ("train1", [0] * 2 + [1] * 10), ("test0", [0, 1, 0, 1, 0, 1])):
        with h5py.File(root / f"ply_data_{name}.h5", "w") as file:
            scale = np.array(labels)[:, None, None] + 1
            file["data"] = (rng.random((len(labels), 8, 3)) * scale).astype("f4")
            file["normal"] = rng.random((len(labels), 8, 3)).astype("f4")
            file["label"] = np.array(labels, np.uint8)[:, None]
    return root


@pytest.mark.parametrize("make", [modelnet_meshes, modelnet_text, modelnet_h5])
def test_modelnet(tmp_path, make):
    make(tmp_path)
    sets = {split: ModelNet(tmp_path, split, sample=16) for split in (*SPLITS, "train+val")}
    assert {split: len(data) for split, data in sets.items()} == {"train": 18, "val": 2, "test": 6, "train+val": 20}
    for data in sets.values():
        assert (data.task, data.classes) == ("classification", ("bed", "night_stand"))
        for cloud in data:
            assert cloud.points.dtype == torch.float32
            limit = cloud.label + 1
            assert limit / 2 < cloud.points.max() <= limit  # clouds of different classes have different sizes
            assert set(cloud.features) == (set() if make is modelnet_meshes else {"nx", "ny", "nz"})
    ours, both = ({cloud.source for cloud in sets[split]} for split in ("val", "train+val"))
    assert ours < both
    assert ours.isdisjoint(cloud.source for cloud in sets["train"])
    again = ModelNet(tmp_path, "test", sample=16)
    assert all(torch.equal(a.points, b.points) for a, b in zip(again, sets["test"], strict=True))


def test_cache_is_used_until_the_source_changes(tmp_path):
    modelnet_meshes(tmp_path)
    root = tmp_path / "ModelNet40"
    data = ModelNet(root, "test", sample=16)
    first = data[0].points
    kept = root / "pointgrad_cache" / "bed" / "test" / "bed_0000.off.16.npz"
    assert kept.is_file()
    kept.write_bytes(kept.read_bytes()[:100])  # truncated: computed again
    assert torch.equal(data[0].points, first)
    assert len(ModelNet(root, "test", sample=32)[0]) == 32
    mesh = root / "bed" / "test" / "bed_0000.off"
    mesh.write_text(triangle(77))
    assert data[0].points.max() > 10
    mesh.unlink()
    with raises(FileError, f"{mesh}: expected a file that can be read, got: No such file or directory"):
        data[0]


def test_cache_on_a_read_only_disk(tmp_path):
    modelnet_meshes(tmp_path)
    root = tmp_path / "ModelNet40"
    (root / "pointgrad_cache").write_text("a file in the way")
    assert len(ModelNet(root, "test", sample=16)[0]) == 16


def test_bad_modelnet(tmp_path):
    with pytest.raises(FileError) as raised:
        ModelNet(tmp_path / "no", "train")
    assert str(raised.value) == (
        f"{tmp_path / 'no'}: expected ModelNet as CLASS/train/*.off and CLASS/test/*.off (the official meshes); or "
        "ply_data_train*.h5, ply_data_test*.h5 and shape_names.txt (HDF5, 2048 points); or modelnet40_shape_names.txt, "
        "modelnet40_train.txt, modelnet40_test.txt and CLASS/*.txt (text, 10,000 points). Looked in "
        f"{tmp_path / 'no'} or ModelNet40/ in it or ModelNet10/ in it or modelnet40_ply_hdf5_2048/ in it or "
        "modelnet40_normal_resampled/ in it: it does not exist"
    )
    modelnet_text(tmp_path)
    root = tmp_path / "modelnet40_normal_resampled"
    file = root / "bed" / "bed_0010.txt"
    file.write_text("1,2,3,4,5,6\n1,2,3,x,5,6\n")
    with pytest.raises(
        FileError, match=r"bed_0010.txt: expected 6 numbers per line, got: could not convert string 'x'"
    ):
        ModelNet(root, "test")[0]
    file.write_text("1,2,3\n")
    with raises(FileError, f"{file}: expected 6 numbers per line, got 3"):
        ModelNet(root, "test")[0]
    listing = root / "modelnet40_test.txt"
    listing.write_text("bed_0010\nsofa_0001\n")
    with raises(
        FileError,
        f"{listing}: expected CLASS_NUMBER with a class of modelnet40_shape_names.txt, got 'sofa_0001' in line 2",
    ):
        ModelNet(root, "test")
    listing.unlink()
    with pytest.raises(
        FileError, match=r"modelnet40_test.txt: expected a list, one entry per line, got: .*No such file"
    ):
        ModelNet(root, "test")
    with raises(ValueError, "split must be one of train, val, test, train+val, got 'dev'"):
        ModelNet(root, "dev")


def test_bad_modelnet_h5(tmp_path):
    h5py = pytest.importorskip("h5py")
    root = modelnet_h5(tmp_path)
    with h5py.File(root / "ply_data_test0.h5", "w") as file:
        file["label"] = np.zeros((2, 1))
    with raises(FileError, f"{root / 'ply_data_test0.h5'}: expected arrays data, label, got label"):
        ModelNet(root, "test")
    with h5py.File(root / "ply_data_test0.h5", "w") as file:
        file["data"], file["label"] = np.zeros((1, 8, 3)), np.array([[2]])
    with raises(FileError, f"{root}: label must be from 0 to 1 for 2 classes, got 2 to 2"):
        ModelNet(root, "test")
    (root / "ply_data_test0.h5").unlink()
    with raises(FileError, f"{root}: expected ply_data_test*.h5, found none"):
        ModelNet(root, "test")


def test_scanobjectnn(tmp_path):
    h5py = pytest.importorskip("h5py")
    for folder, end, scale in (
        ("main_split", "", 1),
        ("main_split", "_augmentedrot_scale75", 2),
        ("main_split_nobg", "", 3),
    ):
        (tmp_path / "h5_files" / folder).mkdir(parents=True, exist_ok=True)
        for part, count in (("training", 30), ("test", 15)):
            with h5py.File(tmp_path / "h5_files" / folder / f"{part}_objectdataset{end}.h5", "w") as file:
                file["data"] = np.full((count, 8, 3), scale, np.float32)
                file["label"] = np.arange(count) % 15
                file["mask"] = np.full((count, 8), -1)
    data = ScanObjectNN(tmp_path, "test")
    assert (len(data), data.task, len(data.classes)) == (15, "classification", 15)
    assert [data.classes[data[n].label] for n in (0, 4, 14)] == ["bag", "chair", "toilet"]
    assert data[0].points[0, 0] == 2
    assert data[0].features["mask"].tolist() == [-1] * 8
    assert ScanObjectNN(tmp_path / "h5_files", "test", variant="OBJ")[0].points[0, 0] == 1
    assert ScanObjectNN(tmp_path, "test", variant="OBJ", background=False)[0].points[0, 0] == 3
    assert [len(ScanObjectNN(tmp_path, split)) for split in ("train", "val", "train+val")] == [15, 15, 30]
    with pytest.raises(
        FileError, match=r"expected ScanObjectNN as main_split/test_objectdataset_augmented25rot.h5. Looked "
    ):
        ScanObjectNN(tmp_path, "test", variant="PB_T25_R")
    with raises(ValueError, "variant must be one of OBJ, PB_T25, PB_T25_R, PB_T50_R, PB_T50_RS, got 'hard'"):
        ScanObjectNN(tmp_path, "test", variant="hard")


def shapenetpart_text(root):
    root = root / "shapenetcore_partanno_segmentation_benchmark_v0_normal"
    (root / "train_test_split").mkdir(parents=True)
    (root / "synsetoffset2category.txt").write_text("Airplane\t02691156\nMug\t03797390\n")
    rng = np.random.default_rng(0)
    for synset, first in (("02691156", 0), ("03797390", 36)):
        (root / synset).mkdir()
        for number in range(4):
            rows = np.concatenate([rng.random((9, 6)), first + np.arange(9)[:, None] % 2], axis=1)
            np.savetxt(root / synset / f"{number:x}.txt", rows, "%.6f")
    for split, numbers in (("train", (0, 1)), ("val", (2,)), ("test", (3,))):
        entries = [f"shape_data/{synset}/{n:x}" for n in numbers for synset in ("02691156", "03797390")]
        (root / "train_test_split" / f"shuffled_{split}_file_list.json").write_text(json.dumps(entries))
    return root


def shapenetpart_h5(root):
    h5py = pytest.importorskip("h5py")
    root = root / "hdf5_data"
    root.mkdir()
    rng = np.random.default_rng(0)
    for name, count in (("train0", 2), ("train1", 2), ("val0", 2), ("test0", 2)):
        with h5py.File(root / f"ply_data_{name}.h5", "w") as file:
            file["data"] = rng.random((count, 9, 3)).astype("f4")
            file["label"] = np.array([[0], [11]] * (count // 2), np.uint8)
            file["pid"] = np.array([np.arange(9) % 2, 36 + np.arange(9) % 2] * (count // 2), np.uint8)
    return root


@pytest.mark.parametrize("make", [shapenetpart_text, shapenetpart_h5])
def test_shapenetpart(tmp_path, make):
    make(tmp_path)
    sets = {split: ShapeNetPart(tmp_path, split) for split in (*SPLITS, "train+val")}
    assert {split: len(data) for split, data in sets.items()} == {"train": 4, "val": 2, "test": 2, "train+val": 6}
    data = sets["test"]
    assert (data.task, len(data.classes), len(data.categories)) == ("segmentation", 50, 16)
    # As published, category by category.
    assert dict(zip(data.categories, data.parts, strict=True)) == {
        "Airplane": (0, 1, 2, 3), "Bag": (4, 5), "Cap": (6, 7), "Car": (8, 9, 10, 11), "Chair": (12, 13, 14, 15),
        "Earphone": (16, 17, 18), "Guitar": (19, 20, 21), "Knife": (22, 23), "Lamp": (24, 25, 26, 27),
        "Laptop": (28, 29), "Motorbike": (30, 31, 32, 33, 34, 35), "Mug": (36, 37), "Pistol": (38, 39, 40),
        "Rocket": (41, 42, 43), "Skateboard": (44, 45, 46), "Table": (47, 48, 49),
    }  # fmt: skip
    assert [data.categories[cloud.category] for cloud in data] == ["Airplane", "Mug"]
    assert data[1].labels.tolist() == [36, 37] * 4 + [36]
    assert set(data[0].features) == ({"nx", "ny", "nz"} if make is shapenetpart_text else set())
    for repeat in range(2):  # parsed, then from the cache
        assert torch.equal(data[0].points, ShapeNetPart(tmp_path, "test")[0].points), repeat


def test_bad_shapenetpart(tmp_path):
    with pytest.raises(FileError, match=r"expected ShapeNetPart as synsetoffset2category.txt, .*: it is empty$"):
        ShapeNetPart(tmp_path, "train")
    root = shapenetpart_text(tmp_path)
    file = root / "03797390" / "3.txt"
    np.savetxt(file, np.full((4, 7), 5.0))
    with raises(FileError, f"{file}: expected parts 36 to 37 of Mug, got 5 to 5"):
        ShapeNetPart(root, "test")[1]
    listing = root / "train_test_split" / "shuffled_test_file_list.json"
    listing.write_text('["shape_data/99/a"]')
    with raises(FileError, f"{listing}: expected a synset of synsetoffset2category.txt, got 'shape_data/99/a'"):
        ShapeNetPart(root, "test")
    for text in ("[1]", "{", ""):
        listing.write_text(text)
        with pytest.raises(FileError, match="expected a JSON list of shape_data/SYNSET/NAME, got"):
            ShapeNetPart(root, "test")
    (root / "synsetoffset2category.txt").write_text("Spoon\t1\n")
    with pytest.raises(FileError, match=r"expected a category of Airplane, .*, got 'Spoon'"):
        ShapeNetPart(root, "test")


def s3dis(root):
    rng = np.random.default_rng(0)
    for area in range(1, 7):
        for room in ("office_1", "hallway_6"):
            folder = root / "Stanford3dDataset_v1.2_Aligned_Version" / f"Area_{area}" / room / "Annotations"
            folder.mkdir(parents=True)
            (folder / ".DS_Store").touch()
            for name, count in (("wall_1", 3), ("chair_12", 2), ("stairs_1", 1)):
                rows = np.concatenate([rng.random((count, 3)) + area, rng.integers(0, 256, (count, 3))], axis=1)
                np.savetxt(folder / f"{name}.txt", rows, ["%.3f"] * 3 + ["%d"] * 3)
    return root / "Stanford3dDataset_v1.2_Aligned_Version"


def test_s3dis(tmp_path):
    s3dis(tmp_path)
    sets = {split: S3DIS(tmp_path, split) for split in (*SPLITS, "train+val")}
    assert {split: len(data) for split, data in sets.items()} == {"train": 9, "val": 1, "test": 2, "train+val": 10}
    assert all("Area_5" in cloud.source for cloud in sets["test"])
    assert not any("Area_5" in cloud.source for cloud in sets["train+val"])
    assert [c.source for c in S3DIS(tmp_path, "test", test_area=1)] != [c.source for c in sets["test"]]
    for _ in range(2):  # parsed, then from the cache
        cloud = sets["test"][0]
        assert [sets["test"].classes[label] for label in cloud.labels] == ["chair"] * 2 + ["clutter"] + ["wall"] * 3
        assert (cloud.points.floor() == 5).all()
        assert {name: column.dtype for name, column in cloud.features.items()} == {
            "red": torch.uint8, "green": torch.uint8, "blue": torch.uint8,
        }  # fmt: skip


def test_s3dis_with_control_character_and_bad_files(tmp_path):
    """Version 1.2 has a control character between two numbers of Area_5/hallway_6."""
    root = s3dis(tmp_path)
    file = root / "Area_5" / "hallway_6" / "Annotations" / "wall_1.txt"
    file.write_bytes(b"5.1 5.2 5.3 1 2 3\n5.1 5.2 5.3 4\x105 6\n")
    cloud = S3DIS(root, "test")[0]
    assert cloud.features["red"].tolist()[-2:] == [1, 4]
    assert cloud.features["green"].tolist()[-2:] == [2, 5]
    file.write_text("1 2 3 4 5 6\n1 2 3 4 5\n")
    with pytest.raises(FileError, match=r"wall_1.txt: expected 6 numbers per line, got: "):
        S3DIS(root, "test")[0]
    file.write_text("")
    with raises(FileError, f"{file}: expected 6 numbers per line, got: an empty file"):
        S3DIS(root, "test")[0]
    with pytest.raises(
        FileError, match=r"expected S3DIS as Area_1 ... Area_6/ROOM/Annotations/CLASS_NUMBER.txt. Looked in "
    ):
        S3DIS(root / "Area_1", "test")
    with raises(FileError, f"{root}: expected rooms of Area_9, got Area_1, Area_2, Area_3, Area_4, Area_5, Area_6"):
        S3DIS(root, "test", test_area=9)


def semantic_kitti(root, sequences=("00", "08", "11")):
    rng = np.random.default_rng(0)
    for sequence in sequences:
        for folder in ("velodyne", "labels"):
            (root / "dataset" / "sequences" / sequence / folder).mkdir(parents=True)
        for number in range(2):
            place = root / "dataset" / "sequences" / sequence
            rng.random((6, 4), np.float32).tofile(place / "velodyne" / f"{number:06}.bin")
            if int(sequence) <= 10:
                raw = np.array([0, 10, 252, 81, 99, 40], np.uint32) + (number << 16)
                raw.tofile(place / "labels" / f"{number:06}.label")
    return root / "dataset"


def test_semantickitti(tmp_path):
    root = semantic_kitti(tmp_path)
    sets = {split: SemanticKITTI(tmp_path, split) for split in (*SPLITS, "train+val")}
    assert {split: len(data) for split, data in sets.items()} == {"train": 2, "val": 2, "test": 2, "train+val": 4}
    data = sets["train"]
    assert (data.task, len(data.classes)) == ("segmentation", 19)
    for cloud in sets["train+val"]:
        names = [data.classes[label] if label >= 0 else None for label in cloud.labels.tolist()]
        assert names == [None, "car", "car", "traffic-sign", None, "road"]
    assert sets["test"][0].labels.tolist() == [-1] * 6
    raw = np.fromfile(root / "sequences/00/velodyne/000000.bin", np.float32).reshape(-1, 4)
    assert np.array_equal(data[0].points.numpy(), raw[:, :3])
    assert np.array_equal(data[0].features["intensity"].numpy(), raw[:, 3])
    # As published: 34 labels, 4 of which are ignored.
    assert len(semantickitti.LABELS) + len(semantickitti.NONE) == 34
    assert set(semantickitti.LABELS.values()) == set(range(19))


def test_bad_semantickitti(tmp_path):
    root = semantic_kitti(tmp_path)
    data = SemanticKITTI(root, "val")
    labels = root / "sequences/08/labels/000000.label"
    np.array([10] * 5, np.uint32).tofile(labels)
    with raises(FileError, f"{labels}: expected 6 labels, one for each point of the sweep, got 5"):
        data[0]
    np.array([10] * 5 + [12], np.uint32).tofile(labels)
    with raises(FileError, f"{labels}: expected published labels, got 12"):
        data[0]
    labels.unlink()
    with raises(FileError, f"{labels}: expected a file that can be read, got: No such file or directory"):
        data[0]
    sweep = root / "sequences/08/velodyne/000001.bin"
    sweep.write_bytes(sweep.read_bytes()[:-3])
    with raises(FileError, f"{sweep}: expected records of 16 bytes, got 93 bytes"):
        data[1]
    shutil.rmtree(root / "sequences/08")
    with raises(FileError, f"{root}: expected sequences/NN/velodyne/*.bin of 08 for val, found none"):
        SemanticKITTI(root, "val")
    with pytest.raises(
        FileError, match=r"expected SemanticKITTI as sequences/00 ... 21/velodyne/\*.bin and, .*found 00/, 11/"
    ):
        SemanticKITTI(root / "sequences", "val")


# open_dataset


def test_open_dataset(tmp_path):
    np.savez(tmp_path / "a.npz", points=np.zeros((4, 5, 3)), label=np.arange(4) % 2)
    modelnet_meshes(tmp_path)
    semantic_kitti(tmp_path)
    put(tmp_path / "folder" / "cat" / "a.ply")
    for spec, kind in (
        ("shapes", Shapes),
        (tmp_path / "a.npz", Arrays),
        (f"modelnet:{tmp_path}", ModelNet),
        (f"semantickitti:{tmp_path}", SemanticKITTI),
        (tmp_path / "folder", Folder),
    ):
        assert type(open_dataset(spec, "test")) is kind
    assert len(open_dataset("shapes", "val", size=7)) == 7
    assert open_dataset("shapes", "test", "segmentation").task == "segmentation"
    assert open_dataset(f"modelnet:{tmp_path}", "test", "classification", sample=5)[0].points.shape == (5, 3)


def test_open_dataset_errors(tmp_path):
    forms = (
        "data must be shapes, a .npz or .h5 file, modelnet:FOLDER, scanobjectnn:FOLDER, shapenetpart:FOLDER, "
        "s3dis:FOLDER, semantickitti:FOLDER, a folder or a file of points, got "
    )
    with raises(ValueError, f"{forms}'shape', which does not exist; did you mean shapes?"):
        open_dataset("shape", "train")
    with raises(ValueError, f"{forms}'ModelNet40:/x', which does not exist; did you mean modelnet:FOLDER?"):
        open_dataset("ModelNet40:/x", "train")
    with raises(ValueError, f"{forms}'qqq', which does not exist"):
        open_dataset("qqq", "train")
    (tmp_path / "a.jpg").write_bytes(b"x")
    with raises(ValueError, f"{forms}a file of a different format"):
        open_dataset(tmp_path / "a.jpg", "train")
    with raises(ValueError, "data must be s3dis:FOLDER, got 's3dis:'"):
        open_dataset("s3dis:", "train")
    modelnet_meshes(tmp_path)
    with raises(ValueError, "task must be classification for modelnet, got segmentation"):
        open_dataset(f"modelnet:{tmp_path}", "train", "segmentation")


def labeled(path, labels):
    """Write a cloud with a label for each point."""
    write(path, Cloud(torch.rand(len(labels), 3), labels=torch.tensor(labels)))


class TestFolderWithInvalidLabels:
    def test_unreadable_file_does_not_hide_the_classes(self, tmp_path):
        labeled(tmp_path / "a.ply", [0, 2])
        (tmp_path / "b.ply").write_text("ply\n")
        folder = Folder(tmp_path)
        assert folder.classes == ("0", "2")
        with pytest.raises(FileError, match=r"b\.ply"):
            folder[1]

    def test_no_readable_file(self, tmp_path):
        (tmp_path / "b.ply").write_text("ply\n")
        with pytest.raises(FileError, match=r"b\.ply"):
            Folder(tmp_path)

    def test_label_beyond_the_maximum(self, tmp_path):
        labeled(tmp_path / "a.ply", [7, 100_000_000])
        with pytest.raises(FileError, match=r"a\.ply: expected labels up to 65534, got 100000000"):
            Folder(tmp_path)

    def test_only_missing_labels(self, tmp_path):
        labeled(tmp_path / "a.ply", [-1, -1])
        with pytest.raises(FileError, match="expected labels other than -1, found none"):
            Folder(tmp_path)

    def test_splits_without_train(self, tmp_path):
        for name in ("val/x", "test/x"):
            (tmp_path / name).mkdir(parents=True)
            labeled(tmp_path / name / "a.ply", [0])
        with pytest.raises(FileError, match="expected a folder train in addition to val and test, found none"):
            Folder(tmp_path)

    def test_whole_is_true_for_all_clouds_only(self, tmp_path):
        for name in "abcdefghijklmnopqrstuvwx":
            labeled(tmp_path / f"{name}.ply", [0, 1])
        assert [Folder(tmp_path, split).whole for split in ("train", "val", "test", None)] == [False, False, True, True]

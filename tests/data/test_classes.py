"""Classes and their codes in files, and the division of one scan by area."""

import re

import numpy as np
import pytest
import torch

from pointgrad.data import ClassMap, Cloud, FileError, Folder, read, write
from pointgrad.data.classes import ASPRS, choose_classes, ignored_note
from pointgrad.data.datasets.blocks import in_validation
from pointgrad.data.names import class_names
from pointgrad.data.open import default_split, open_dataset
from pointgrad.data.stream import Source

THREE = ClassMap(("ground", "green", "built"), ((2,), (3, 4, 5), (65534, 6)))


# ClassMap


@pytest.mark.parametrize("seed", range(5))
def test_map_against_a_dictionary(seed):
    rng = np.random.default_rng(seed)
    codes = rng.permutation(300)[:40]
    owner = rng.integers(0, 7, 40)
    owner[:7] = np.arange(7)
    classes = ClassMap(tuple(f"c{n}" for n in range(7)), tuple(tuple(codes[owner == n].tolist()) for n in range(7)))
    labels = torch.from_numpy(rng.integers(-3, 400, 1000))
    known = dict(zip(codes.tolist(), owner.tolist(), strict=True))
    expected = [known.get(code, -1) for code in labels.tolist()]
    assert classes.apply(labels).tolist() == expected
    first = {number: classes.codes[number][0] for number in range(7)} | {-1: -1}
    assert classes.restore(torch.tensor(expected)).tolist() == [first[number] for number in expected]
    counts = dict(zip(*(each.tolist() for each in labels.unique(return_counts=True)), strict=True))
    assert sum(classes.sums(counts)) + sum(classes.others(counts).values()) == int((labels >= 0).sum())


def test_map_of_unusual_labels():
    assert THREE.apply(torch.tensor([])).tolist() == []
    assert THREE.apply(torch.tensor([2**40, -(2**40), 65534])).tolist() == [-1, -1, 2]
    assert THREE.apply(torch.tensor([2, 5, 9], dtype=torch.uint8)).tolist() == [0, 1, -1]
    assert THREE.apply(torch.arange(12).view(2, 6)[:, 2]).tolist() == [0, -1]  # not contiguous


def test_flags_and_yaml_give_the_same_classes(tmp_path):
    texts = ["ground=2", "green=3,4,5", "built=65534, 6"]
    (tmp_path / "a.yaml").write_text("ground: 2\ngreen: [3, 4, 5]\nbuilt: [65534, 6]\n")
    assert ClassMap.parse(texts) == ClassMap.parse([str(tmp_path / "a.yaml")]) == THREE
    (tmp_path / "b.YML").write_text(THREE.yaml())
    assert ClassMap.parse([str(tmp_path / "b.YML")]) == ClassMap.parse(THREE.texts()) == THREE
    odd = ClassMap.parse(["a=b=1", " wet: [ground] # =2"])
    assert odd.names == ("a=b", "wet: [ground] #")
    (tmp_path / "c.yaml").write_text(odd.yaml())
    assert ClassMap.read(tmp_path / "c.yaml") == odd


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["ground"], "classes must be name=code,code or one .yaml file, got 'ground'"),
        (["=2"], "class names must be printable and not empty, got ''"),
        (["a=1", "a=2"], "class names must be unique, got 'a' twice"),
        (["a=1", "b=1"], "codes must be unique, got 1 for 'a' and 'b'"),
        (["a="], "class 'a' must have at least one code, got none"),
        (["a=x"], "codes of class 'a' must be integers from 0 to 65534, got 'x'"),
        (["a=1.5"], "codes of class 'a' must be integers from 0 to 65534, got '1.5'"),
        (["a=-1"], "codes of class 'a' must be integers from 0 to 65534, got -1"),
        (["a=65535"], "codes of class 'a' must be integers from 0 to 65534, got 65535"),
        (["a=1,1"], "codes must be unique, got 1 for 'a' and 'a'"),
        ([], "classes must have one list of codes each, got 0 and 0"),
    ],
)
def test_malformed_classes(texts, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ClassMap.parse(texts)


@pytest.mark.parametrize("content", ["- 1", "3", "", "a: x", "a: [1, [2]]", "a: true", "a: 1\nb: 1", "a: ["])
def test_malformed_yaml_is_one_line_that_begins_with_the_file(tmp_path, content):
    path = tmp_path / "classes.yaml"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: ") as caught:
        ClassMap.read(path)
    assert "\n" not in str(caught.value)


def test_yaml_with_other_lines_says_what_it_has(tmp_path):
    path = tmp_path / "classes.yaml"
    for content, found in (("2: ground\n6: building\n", "lines code: name"), ("", "none"), ("- ground", "none")):
        path.write_text(content)
        with pytest.raises(ValueError, match=rf"expected lines name: code, found {found}$"):
            ClassMap.read(path)
    path.write_text("2: 6\n6: 2\n")  # numbers as names
    assert ClassMap.read(path).texts() == ("2=6", "6=2")


def test_notes_are_grammatical():
    assert ignored_note({7: 1}) == "1 point with code 7 is ignored"
    assert ignored_note({18: 3, 7: 1201}) == "1,204 points with codes 7, 18 are ignored"


def test_order_of_another_network():
    assert THREE.ordered(("built", "ground", "green")).codes == ((65534, 6), (2,), (3, 4, 5))
    assert THREE.ordered(("ground", "green")) is None
    assert THREE.ordered(("ground", "green", "house")) is None


def test_classes_chosen_for_las():
    counts = {-1: 3, 0: 5, 1: 10, 2: 7, 6: 1}
    assert choose_classes(counts, las=True) == ClassMap(("ground", "building"), ((2,), (6,)))
    # nothing else is classified: the unclassified points are a class
    assert choose_classes({1: 10, 2: 7}, las=True).names == ("unclassified", "ground")
    assert choose_classes({40: 1, 64: 1, 2: 1}, las=True).names == ("ground", "class 40", "class 64")
    assert choose_classes({0: 1, 1: 1, 2: 1}, las=False) is None
    assert choose_classes({3: 1, 7: 1}, las=False) == ClassMap(("3", "7"), ((3,), (7,)))
    assert (ASPRS[2], ASPRS[9], ASPRS[18], ASPRS[22]) == ("ground", "water", "high noise", "temporal exclusion")


# Folders and files with codes


def scan(path, codes, count=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(count, 3, generator=generator).double() * 40
    labels = torch.tensor(codes)[torch.randint(len(codes), (count,), generator=generator)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, Cloud(points, labels=labels))
    return labels


def test_folder_of_raw_las(tmp_path):
    pytest.importorskip("laspy")
    first, second = scan(tmp_path / "a.las", [1, 2, 6]), scan(tmp_path / "b.las", [2, 9, 18], seed=1)
    folder = Folder(tmp_path)
    assert folder.classes == ("ground", "building", "water", "high noise")
    assert folder[1].labels.tolist() == [{2: 0, 9: 2, 18: 3}[code] for code in second.tolist()]
    assert folder[0].labels.tolist() == [{1: -1, 2: 0, 6: 1}[code] for code in first.tolist()]
    assert folder.ignored == {1: int((first == 1).sum())}
    found, classes, ignored = folder.describe_classes().splitlines()
    assert found.startswith(f"labels found: 1 (unclassified): {int((first == 1).sum())}, 2 (ground): ")
    assert classes == "classes: ground=2 building=6 water=9 high noise=18"
    assert ignored == f"{int((first == 1).sum())} points with code 1 are ignored"
    scan(tmp_path / "c.ply", [1, 2], seed=2)  # the same codes in another format
    (tmp_path / "d.las").write_bytes(b"LASF damaged")
    assert Folder(tmp_path).classes == folder.classes


def test_codes_that_are_refused(tmp_path):
    scan(tmp_path / "a.ply", [2, 5, 77])
    keep = ClassMap(("ground", "green"), ((2,), (5,)))
    assert Folder(tmp_path, classes=keep).classes == ("ground", "green")
    strict = Folder(tmp_path, classes=ClassMap(keep.names, keep.codes, "refuse"))
    with pytest.raises(
        FileError,
        match=r"a\.ply: expected only codes of the classes ground=2 green=5, found also \d+ points? with code 77$",
    ):
        strict[0]
    with pytest.raises(FileError, match=r"found also \d+ points? with code 77$"):
        strict.describe_classes()
    absent = Folder(tmp_path, classes=ClassMap(("x", "y"), ((11,), (12,))))
    with pytest.raises(FileError, match=r"expected points of the classes x=11 y=12, found none; labels found: 2: "):
        absent.describe_classes()


def test_classes_yaml_in_the_folder(tmp_path):
    labels = scan(tmp_path / "a.ply", [2, 5, 6])
    (tmp_path / "classes.yaml").write_text("all green: [5]\nrest: [2, 6]\n")
    folder = Folder(tmp_path)
    assert folder.classes == ("all green", "rest")
    assert folder[0].labels.tolist() == (labels != 5).long().tolist()
    assert class_names(tmp_path / "a.ply") == {5: "all green", 2: "rest", 6: "rest"}


def test_label_files_store_no_label_as_65535(tmp_path):
    """`predict` writes it to .label files; a folder of its results can be trained on and evaluated."""
    np.random.default_rng(0).random((3, 4), np.float32).tofile(tmp_path / "a.bin")
    np.array([0xFFFF, 0x10000 | 7, 2], np.uint32).tofile(tmp_path / "a.label")
    folder = Folder(tmp_path)
    assert folder.codes == {-1: 1, 2: 1, 7: 1}
    assert folder[0].labels.tolist() == [-1, 1, 0]


def test_source_with_classes(tmp_path):
    labels = scan(tmp_path / "a.ply", [2, 5, 6, 9])
    source = Source(tmp_path / "a.ply", None, THREE)
    (part,) = source.parts()
    assert part.labels.tolist() == [{2: 0, 5: 1, 6: 2, 9: -1}[code] for code in labels.tolist()]
    assert source.names("label") == {0: "ground", 1: "green", 2: "built"}
    assert source.names("predicted_label")[65534] == "built"
    assert source.names("intensity") == {}
    strict = Source(tmp_path / "a.ply", None, ClassMap(THREE.names, THREE.codes, "refuse"))
    with pytest.raises(FileError, match=r"a\.ply: expected only codes"):
        list(strict.parts())


# One scan, divided by area


def test_blocks_are_areas_of_equal_size():
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(3200, 3, generator=generator) * torch.tensor([300.0, 20.0, 5.0])
    chosen = in_validation(points, torch.zeros(3200, dtype=torch.long))
    assert int(chosen.sum()) == 600
    # the longer side is divided first: no point of the other part is inside the bounds of a block of 200
    x = points[:, 0].sort().values
    cuts = torch.searchsorted(x, points[chosen, 0].sort().values)
    assert (cuts.diff() > 1).sum() <= 6  # of few runs, where random points would give hundreds
    order = torch.randperm(3200, generator=generator)
    assert torch.equal(in_validation(points[order], torch.zeros(3200, dtype=torch.long)), chosen[order])


def test_blocks_balance_rare_classes():
    generator = torch.Generator().manual_seed(1)
    points = torch.rand(16_000, 3, generator=generator) * 100
    labels = torch.zeros(16_000, dtype=torch.long)
    for x, y in ((10, 10), (90, 90)):  # two small spots of a rare class
        labels[(points[:, :2] - torch.tensor([x, y])).norm(dim=1) < 4] = 7
    labels[::9] = -1
    chosen = in_validation(points, labels)
    for code in (0, 7):
        assert 0 < int((labels[chosen] == code).sum()) < int((labels == code).sum())


@pytest.mark.parametrize("single", ["file", "folder"])
def test_one_file_is_divided(tmp_path, single):
    labels = scan(tmp_path / "only" / "a.ply", [2, 5], count=800)
    spec = tmp_path / "only" / ("a.ply" if single == "file" else "")
    train, val = (open_dataset(spec, split, classes=THREE) for split in ("train", "val"))
    assert train.by_area
    assert (len(train), len(val), len(train[0]), len(val[0])) == (1, 1, 650, 150)
    both = {tuple(point) for part in (train[0], val[0]) for point in part.points.tolist()}
    assert both == {tuple(point) for point in read(tmp_path / "only" / "a.ply").points.tolist()}
    everything = open_dataset(spec, "test", classes=THREE)
    assert everything.whole
    assert not everything.by_area
    assert everything[0].labels.tolist() == (labels == 5).long().tolist()
    # the division does not depend on the classes
    merged = open_dataset(spec, "val", classes=ClassMap(("all", "none"), ((2, 5), (9,))))
    assert torch.equal(merged[0].points, val[0].points)


def test_missing_labels_are_reported_with_the_columns_of_the_file(tmp_path):
    (tmp_path / "a.txt").write_text("0 0 0 2 7\n1 1 1 5 8\n")
    with pytest.raises(FileError, match=r"found the columns x, y, z, column4, column5; `pointgrad convert --columns`"):
        Folder(tmp_path / "a.txt")
    write(tmp_path / "b.ply", Cloud(torch.rand(4, 3), {"intensity": torch.rand(4)}))
    with pytest.raises(FileError, match=r"b\.labels\.npy, found the columns x, y, z, intensity$"):
        Folder(tmp_path / "b.ply")


def test_files_that_cannot_be_divided(tmp_path):
    scan(tmp_path / "a.ply", [2, 5], count=1)
    with pytest.raises(FileError, match=r"a\.ply: expected enough points to divide into blocks, got too few"):
        _ = [open_dataset(tmp_path / "a.ply", split, classes=THREE)[0] for split in ("train", "val")]
    with pytest.raises(FileError, match="expected a folder for classification, got one file"):
        open_dataset(tmp_path / "a.ply", "train", "classification")
    write(tmp_path / "b.ply", Cloud(torch.rand(50, 3)))
    with pytest.raises(FileError, match=r"b\.ply: expected a label for each point"):
        open_dataset(tmp_path / "b.ply", "train")
    (tmp_path / "c.ply").write_text("junk")
    with pytest.raises(FileError, match=r"c\.ply: "):
        open_dataset(tmp_path / "c.ply", "train")


def test_default_split(tmp_path):
    assert default_split("semantickitti:/x", trained_on=False) == "val"
    assert default_split("s3dis:/x", trained_on=True) == "test"
    (tmp_path / "train").mkdir()
    assert default_split(tmp_path, trained_on=False) == "val"
    (tmp_path / "test").mkdir()
    assert default_split(tmp_path, trained_on=True) == "test"
    assert default_split(tmp_path / "train", trained_on=False) == "test"
    assert default_split(tmp_path / "train", trained_on=True) == "val"

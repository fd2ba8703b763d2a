"""Commands on raw LAS scans: class maps, features, what `train` prints, and one mIoU in all commands."""

import json
import re

import numpy as np
import pytest
import torch

import pointgrad
from pointgrad import data, train
from pointgrad.cli import main
from pointgrad.train.evaluation import EVALUATION
from pointgrad.train.evaluation import read as read_evaluation

laspy = pytest.importorskip("laspy")
pytest.importorskip("lightning_fabric")
pytest.importorskip("yaml")

CODES = (1, 6, 5, 4, 1, 2)  # of car, building, tree, pole, fence, ground
MAP = ("ground=2", "vegetation=5,4", "building=6")
NUMBERS = {2: 0, 5: 1, 4: 1, 6: 2}
FAST = [
    *("--epochs", "2", "--samples-per-cloud", "4", "--crop-points", "512", "--batch-size", "4"),
    *("--options", "width=0.125", "--accelerator", "cpu"),
]


def street(path, seed, extra=()):
    """Write a street with LAS codes and intensities from 0 to 7000; `extra`: codes of the first points."""
    cloud = data.street(17_000, length=15, seed=seed)
    labels = torch.tensor(CODES)[cloud.labels]
    labels[: len(extra)] = torch.tensor(extra)
    intensity = (cloud.features["intensity"] * 7000 / cloud.features["intensity"].max()).round().int()
    path.parent.mkdir(parents=True, exist_ok=True)
    data.write(path, data.Cloud(cloud.points, {"intensity": intensity}, labels=labels))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Folder with raw scans, a run on them, and what the training printed."""
    path = tmp_path_factory.mktemp("scans")
    for number in range(2):
        street(path / "raw" / "train" / f"{number}.laz", number)
    street(path / "raw" / "val" / "2.laz", 2, extra=(9,))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        flags = ["--classes", *MAP, "--prepare.features", "intensity", "height_above_ground"]
        assert main(["train", "--data", "raw", "--out", "run", "--no-tensorboard", *FAST, *flags]) == 0
    return path


@pytest.fixture
def inside(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


def metrics_of(capsys, *arguments):
    """Run evaluate, and return its metrics and its output."""
    assert main(["evaluate", "run", "--data", "raw", "--json", "metrics.json", *arguments]) == 0
    with open("metrics.json") as file:
        return json.load(file), capsys.readouterr().out


def test_train_prints_what_it_found(inside):
    log = re.sub(r"^\S+ \S+ ", "", (inside / "run" / "log.txt").read_text(), flags=re.M)
    scans = {name: [data.read(path) for path in sorted((inside / "raw" / name).iterdir())] for name in ("train", "val")}
    labels = {name: torch.cat([scan.labels for scan in each]) for name, each in scans.items()}
    assert "labels found: 1 (unclassified): " in log
    assert "classes: ground=2 vegetation=5,4 building=6\n" in log
    assert "points with codes 1, 9 are ignored\n" in log
    assert "train: 2 clouds, 34,000 points\nval: 1 cloud, 17,000 points\n" in log
    for name, codes in (("ground", [2]), ("vegetation", [4, 5]), ("building", [6]), ("no class", [1, 9])):
        counts = [int(torch.isin(labels[split], torch.tensor(codes)).sum()) for split in ("train", "val")]
        (row,) = re.findall(rf"^  {name} +([\d,]+) +([\d,]+)$", log, flags=re.M)
        assert [int(cell.replace(",", "")) for cell in row] == counts
    low, high = torch.cat([scan.features["intensity"] for scan in scans["train"]]).aminmax()
    assert f"features: intensity {int(low)} to {int(high)} (" in log
    trained = train.load("run")
    count = sum(parameter.numel() for parameter in trained.model.parameters())
    assert re.search(rf"network: pointnet2 width=0.125 radius=[\d.]+, {count:,} parameters\n", log)
    assert (
        "validation: 4 random crops of each cloud, the same in all epochs; the last validation of the run is on whole"
        in log
    )
    assert re.search(r"time: about [\d.]+ (m?s|min.*) per epoch, for 2 steps of ", log)
    assert log.index("time: about") < log.index("epoch 1/2")
    assert re.search(r"best epoch \d: val miou 0\.\d+ on crops; see run\n", log)
    assert "warning" not in log


def test_the_map_and_the_scaling_are_kept_in_the_run(inside):
    trained = train.load("run")
    assert trained.class_map.texts() == MAP
    intensity = torch.cat([data.read(path).features["intensity"] for path in (inside / "raw" / "train").iterdir()])
    assert trained.prepare.feature_center[0] == pytest.approx(float(intensity.double().median()), rel=0.02)
    assert 0 < trained.prepare.feature_scale[0] < 7000
    prepared = trained.prepare(data.read(inside / "raw" / "val" / "2.laz"), torch.Generator())
    assert prepared.features["intensity"].abs().max() <= 10


def test_one_miou_in_all_commands(inside, capsys):
    """Training, `evaluate` and `predict --evaluate` label the same points with the same weights."""
    found, printed = metrics_of(capsys)
    assert printed.startswith("evaluated: val of raw, whole scans, 3 votes\n")
    assert re.search(r"\d+ points with codes 1, 9 are ignored", printed)
    last = read_evaluation(inside / "run" / EVALUATION)
    assert last.confusion.tolist() == found["confusion"]
    log = (inside / "run" / "log.txt").read_text()
    assert "validation on whole scans, 3 votes, epoch" in log
    assert f"miou: {found['miou']:.4f}" in log
    assert main(["predict", "run", "raw/val", "--out", "one", "--evaluate"]) == 0
    printed = capsys.readouterr().out
    confusion = np.array(found["confusion"])
    assert f"accuracy {found['accuracy']:.4f}, mIoU {found['miou']:.4f} of {confusion.sum()} points" in printed
    written = laspy.read("one/2.laz")
    truth = np.array([NUMBERS.get(code, -1) for code in np.asarray(written.classification).tolist()])
    predicted = np.array([NUMBERS[code] for code in np.asarray(written.label).tolist()])
    cells = np.bincount(truth[truth >= 0] * 3 + predicted[truth >= 0], minlength=9)
    assert np.array_equal(cells.reshape(3, 3), confusion)


def test_metrics_are_printed_even_if_they_cannot_be_written(inside, capsys):
    evaluate = ["evaluate", "run", "--data", "raw", "--votes", "1", "--json"]
    assert main([*evaluate, "nowhere/metrics.json"]) == 2
    out, error = capsys.readouterr()
    assert error == "pointgrad evaluate: --json must be in a folder that exists, got nowhere/metrics.json\n"
    assert not out  # the scans were not labelled
    assert main([*evaluate, "raw"]) == 1
    out, error = capsys.readouterr()
    assert "miou: " in out
    assert "raw: cannot be written" in error


def test_crops_are_an_option_that_says_so(inside, capsys):
    found, printed = metrics_of(capsys, "--crops", "3")
    assert printed.startswith("evaluated: val of raw, 3 random crops of each scan, 1 vote\n")
    assert sum(map(sum, found["confusion"])) < 3 * 512
    assert main(["evaluate", "run", "--data", "raw", "--split", "train", "--votes", "1"]) == 0
    assert capsys.readouterr().out.startswith("evaluated: train of raw, whole scans, 1 vote\n")


def test_predictions_have_the_codes_of_the_files(inside, capsys):
    assert main(["predict", "run", "raw/val", "--out", "codes", "--votes", "1", "--classification"]) == 0
    written = laspy.read("codes/2.laz")
    assert set(np.unique(written.label).tolist()) <= {2, 5, 6}  # 5 is the first code of vegetation
    assert np.array_equal(written.label, written.classification)
    assert (inside / "codes" / "classes.yaml").read_text() == '"ground": [2]\n"vegetation": [5, 4]\n"building": [6]\n'
    assert data.class_names("codes/2.laz") == {2: "ground", 5: "vegetation", 4: "vegetation", 6: "building"}
    capsys.readouterr()
    assert main(["info", "codes/2.laz"]) == 0
    assert re.search(r"2\s+\(ground\): ", capsys.readouterr().out.replace("│", ""))
    assert main(["predict", "run", "raw/val", "--out", "own", "--votes", "1", "--evaluate",
                 "--classes", "building=66", "ground=22", "vegetation=55"]) == 0  # fmt: skip
    assert "no point has a label of the network's classes" in capsys.readouterr().out
    again = np.asarray(laspy.read("own/2.laz").label)
    assert np.array_equal(again, np.asarray(written.label) * 11)


def test_codes_that_are_unknown_or_refused(inside, capsys):
    assert main(["predict", "run", "raw/val", "--out", "other", "--votes", "1", "--evaluate"]) == 0
    assert re.search(r"points with codes 1, 9 are ignored", capsys.readouterr().out)
    refused = ["--evaluate", "--other-classes", "refuse"]
    assert main(["predict", "run", "raw/val", "--out", "refused", "--votes", "1", *refused]) == 1
    error = capsys.readouterr().err
    assert error.startswith(
        "pointgrad predict: raw/val/2.laz: expected only codes of the classes ground=2 vegetation=5,4"
    )
    assert error.count("2.laz") == 1
    assert main(["evaluate", "run", "--data", "raw", "--other-classes", "refuse"]) == 2
    assert re.search(r"found also [\d,]+ points with codes 1, 9$", capsys.readouterr().err.strip())
    assert main(["train", "--data", "raw", "--out", "none", "--classes", *MAP, "--other-classes", "refuse"]) == 2
    assert (
        "raw: expected only codes of the classes ground=2 vegetation=5,4 building=6, found also"
        in capsys.readouterr().err
    )
    assert not (inside / "none").exists()
    # also without --classes: of the codes that occur, 1 (unclassified) is not a class
    assert main(["train", "--data", "raw", "--out", "none", "--other-classes", "refuse"]) == 2
    assert re.search(r"building=6 water=9, found also [\d,]+ points with code 1$", capsys.readouterr().err.strip())
    for command in (["render", "raw/val/2.laz", "--out", "a.png"], ["view", "raw/val/2.laz"]):
        assert main([*command, "--other-classes", "refuse"]) == 2
        assert capsys.readouterr().err == f"pointgrad {command[0]}: --other-classes refuse requires --classes\n"


def test_a_run_keeps_its_codes_when_it_is_resumed(inside, capsys):
    resume = ["train", "--out", "run", "--resume", "--classes", "ground=6", "vegetation=5,4", "building=2"]
    assert main(resume) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        "its classes must have the codes of the data, ground=6, vegetation=5,4, building=2, got [[2], [5, 4], [6]]"
        in line
    )


def test_classes_of_other_data(inside, capsys, tmp_path):
    """Evaluation data with other codes: given by a flag, or by names next to the files."""
    scan = data.read(inside / "raw" / "val" / "2.laz")
    number = torch.tensor([NUMBERS.get(code, -1) for code in scan.labels.tolist()])
    expected, _ = metrics_of(capsys, "--votes", "1")
    folder = tmp_path / "other"
    folder.mkdir()
    scan.labels = torch.where(number < 0, -1, 2 - number)
    data.write(folder / "a.ply", scan)
    (folder / "classes.txt").write_text("building\nvegetation\nground\n")
    for flags in ([], ["--classes", "building=0", "vegetation=1", "ground=2"]):
        assert main(["evaluate", "run", "--data", str(folder), "--votes", "1", "--json", "m.json", *flags]) == 0
        assert capsys.readouterr().out.startswith(f"evaluated: all of {folder}, whole scans")
        with open("m.json") as file:
            assert json.load(file)["confusion"] == expected["confusion"]
    # predict does not guess: names next to the file give other codes to the same classes
    assert main(["predict", "run", str(folder), "--out", str(tmp_path / "out"), "--evaluate"]) == 1
    assert "expected the codes of the training, ground=2 vegetation=5,4 building=6, found" in capsys.readouterr().err
    for flags, count in ((["building=0", "vegetation=1", "ground=2"], int((number >= 0).sum())), (MAP, None)):
        predict = ["predict", "run", str(folder), "--out", str(tmp_path / "out"), "--evaluate", "--overwrite"]
        assert main([*predict, "--votes", "1", "--classes", *flags]) == 0
        if count is not None:
            assert f" of {count} points" in capsys.readouterr().out
    for command, message in (
        (["predict", "run", "raw/val", "--classes", "ground=2"], "--classes must name the classes of the network"),
        (["evaluate", "run", "--data", "raw", "--classes", "road=2"], "classes must be among those of the network"),
        (["view", "raw/val/2.laz", "--checkpoint", "run", "--classes", "road=2"], "--classes must name the classes"),
    ):
        assert main(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line


def test_one_scan_is_enough(inside, capsys):
    """A single scan is divided by area; a class that is missing in a part is a warning."""
    flags = ["--out", "single", "--no-tensorboard", "--epochs", "1", "--no-final-evaluation", *FAST[2:]]
    assert main(["train", "--data", "raw/val/2.laz", *flags]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"train: blocks of one file, 13,8\d\d points\nval: blocks of one file, 3,1\d\d points\n", printed)
    assert "classes: ground=2 medium vegetation=4 high vegetation=5 building=6 water=9\n" in printed
    assert re.search(r"warning: val has nothing of (medium vegetation, )?water: validation does not measure", printed)
    assert "validation on whole scans" not in printed
    assert main(["evaluate", "single", "--data", "raw/val/2.laz", "--votes", "1"]) == 0
    out, error = capsys.readouterr()
    assert out.startswith("evaluated: val of raw/val/2.laz, whole scans, 1 vote\n")
    assert not error


def test_pictures_with_classes(inside, capsys):
    pytest.importorskip("PIL")
    render = ["render", "raw/val/2.laz", "--width", "100", "--height", "80", "--overwrite"]
    assert main([*render, "--out", "a.png", "--classes", *MAP, "--colors", "vegetation=#00ff00"]) == 0
    assert main([*render, "--out", "b.png", "--classes", *MAP, "--colors", "high vegetation=#00ff00"]) == 2
    assert "--colors must name classes of the data (ground, vegetation, building)" in capsys.readouterr().err
    assert main([*render, "--out", "b.png", "--classes", *MAP, "--other-classes", "refuse"]) == 2
    assert "expected only codes of the classes" in capsys.readouterr().err


def test_features_are_not_scaled_if_asked(inside, capsys):
    flags = ["--out", "raw_features", "--no-tensorboard", "--epochs", "1", "--no-final-evaluation", *FAST[2:]]
    features = ["--prepare.features", "intensity", "--prepare.no-scale-features"]
    assert main(["train", "--data", "raw", "--classes", *MAP, *flags, *features]) == 0
    assert re.search(r"features: intensity \d+ to 7000; not scaled\n", capsys.readouterr().out)
    assert train.load("raw_features").prepare.feature_center == ()


def test_labels_are_only_in_the_validation_data(inside, capsys):
    scan = data.read("raw/val/2.laz")
    for part, code in (("train", 9), ("val", 2)):
        (inside / "swapped" / part).mkdir(parents=True)
        data.write(inside / "swapped" / part / "a.ply", scan.select(torch.arange(5)))
        np.save(inside / "swapped" / part / "a.labels.npy", np.full(5, code))
    assert main(["train", "--data", "swapped", "--out", "none", "--classes", *MAP, *FAST]) == 2
    assert "swapped: expected labels of ground, vegetation, building in train, found none" in capsys.readouterr().err
    assert not (inside / "none").exists()


@pytest.mark.parametrize("flags", [[], ["--crop-points", "128", "--samples-per-cloud", "2"]])
def test_one_miou_for_small_clouds(tmp_path, monkeypatch, capsys, flags):
    """Clouds that are not cropped by default, thinned by voxels: all points count."""
    monkeypatch.chdir(tmp_path)
    for place, seed in (("raw/train/a.ply", 0), ("raw/val/b.ply", 1), ("raw/val/c.txt", 2)):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        generator = torch.Generator().manual_seed(seed)
        points = torch.rand(600, 3, generator=generator) * 4
        data.write(path, data.Cloud(points, labels=(points[:, 2] > 2).long() + (points[:, 0] > 3)))
    fast = ["--epochs", "1", "--options", "width=0.125", "--accelerator", "cpu", "--no-tensorboard"]
    assert main(["train", "--data", "raw", "--out", "run", "--prepare.voxel", "0.5", *fast, *flags]) == 0
    assert "the last validation of the run is on whole scans" in capsys.readouterr().out
    found, _ = metrics_of(capsys)
    confusion = read_evaluation(tmp_path / "run" / EVALUATION).confusion
    assert confusion.tolist() == found["confusion"]
    assert int(confusion.sum()) == 1200
    assert main(["predict", "run", "raw/val", "--out", "one", "--evaluate"]) == 0
    printed = capsys.readouterr().out
    assert f"all files: accuracy {found['accuracy']:.4f}, mIoU {found['miou']:.4f} of 1200 points\n" in printed


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pointgrad {pointgrad.__version__}\n"
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--version" in capsys.readouterr().out

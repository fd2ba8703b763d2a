"""`pointgrad predict`."""

import pytest
import torch

import pointgrad
from pointgrad import data
from pointgrad.data import Cloud, Prepare
from tests.support.scenes import Spread, scene, sticks, trained, write


@pytest.fixture
def command(monkeypatch, capsys):
    """Run `pointgrad predict` with a network in place of a checkpoint; return status and output."""
    pytest.importorskip("tyro")
    from pointgrad.cli import main

    def run(network, *arguments):
        if network is not None:
            monkeypatch.setattr("pointgrad.train.load", lambda path, device="cpu": network)
        status = main(["predict", "a run", *map(str, arguments)])
        return status, capsys.readouterr()

    return run


def test_segmentation_of_files_and_folders(tmp_path, command):
    points = scene(300)
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for name in ("a.ply", "b.pcd", "deep/a.ply"):
        write(tmp_path / "in" / name, Cloud(points, labels=(points[:, 2] > 0).long()))
    (tmp_path / "in" / "broken.ply").write_text("ply\nnonsense")
    write(tmp_path / "one.txt", Cloud(points, labels=(points[:, 2] > 0.5).long()))
    out = tmp_path / "out"
    status, printed = command(trained(), tmp_path / "in", tmp_path / "one.txt", "--out", out, "--evaluate", "--tile", 3)
    assert status == 1
    assert printed.err.count("\n") == 1
    assert printed.err.startswith(f"pointgrad predict: {tmp_path / 'in' / 'broken.ply'}: ")
    assert "accuracy 1.0000, mIoU 1.0000 of 300 points" in printed.out
    assert "all files: accuracy 0." in printed.out
    assert {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} == {
        "a.ply", "b.pcd", "deep/a.ply", "one.txt", "classes.txt", "deep/classes.txt",
    }  # fmt: skip
    again = data.read(out / "deep" / "a.ply", labels="predicted_label")
    assert torch.equal(again.labels, (points[:, 2] > 0).long())
    status, printed = command(trained(), tmp_path / "one.txt", "--out", out)
    assert (status, printed.err) == (
        1, f"pointgrad predict: {out / 'one.txt'}: already exists; set --overwrite to replace it\n",
    )  # fmt: skip
    status, _ = command(trained(), tmp_path / "one.txt", "--out", out, "--overwrite")
    assert status == 0


def test_unlabelled_points_are_counted(tmp_path, command):
    points = scene(20)
    points[3] = torch.nan
    write(tmp_path / "a.ply", Cloud(points))
    status, printed = command(trained(), tmp_path / "a.ply", "--out", tmp_path / "out")
    assert status == 0
    assert "1 point without finite coordinates has no label" in printed.out


def test_classification(tmp_path, command):
    for number, cloud in enumerate(sticks(3)):
        (tmp_path / "xyz"[number]).mkdir()
        write(tmp_path / "xyz"[number] / "a.ply", Cloud(cloud.points))
    (tmp_path / "z" / "b.ply").write_text("")
    network = trained(Spread(), "classification", ("x", "y", "z"), normalize="sphere")
    out = tmp_path / "out"
    folders = [tmp_path / name for name in "xyz"]
    status, printed = command(
        network, *(folder / "a.ply" for folder in folders), folders[2] / "b.ply", "--out", out, "--evaluate"
    )
    assert status == 1
    assert printed.err.startswith(f"pointgrad predict: {tmp_path / 'z' / 'b.ply'}: ")
    assert "accuracy 1.0000 of 3 files" in printed.out
    rows = [line.split(",") for line in (out / "predictions.csv").read_text().splitlines()]
    assert rows[0] == ["file", "class", "confidence", "class_2", "confidence_2", "class_3", "confidence_3"]
    assert [row[1] for row in rows[1:]] == ["x", "y", "z"]
    assert all(float(row[2]) >= float(row[4]) >= float(row[6]) for row in rows[1:])
    status, printed = command(network, folders[0] / "a.ply", "--out", out)
    assert status == 2
    assert "predictions.csv: exists already" in printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected files or folders to label, got none"),
        (["empty"], "empty: expected a folder with files that end in ply"),
        (["a/x.ply", "b/x.ply"], "would have the same result"),
        (["a/x.ply", "--device", "nonsense"], "--device must be cpu, or cuda if a GPU is available, got nonsense"),
        (["a/x.ply", "--votes", "0"], "votes must be at least 1, got 0"),
        (["a/x.ply"], "a run: "),
    ],
)
def test_errors_are_one_line_and_status_2(tmp_path, monkeypatch, command, arguments, message):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "empty"):
        (tmp_path / name).mkdir()
    for name in "ab":
        write(tmp_path / name / "x.ply", Cloud(scene(10)))
    status, printed = command(None if message == "a run: " else trained(), *arguments)
    assert status == 2
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("pointgrad predict: ")


def test_real_checkpoint(tmp_path, command):
    """A network of the library, saved as by training."""
    from dataclasses import asdict

    model = pointgrad.models.pointnet2(task="segmentation", classes=2)
    content = {
        "format": 1,
        "model": model.config,
        "state": model.state_dict(),
        "task": "segmentation",
        "classes": ["low", "high"],
        "prepare": asdict(Prepare(points=256, normalize="center", voxel=0.5)),
    }
    (tmp_path / "run").mkdir()
    torch.save(content, tmp_path / "run" / "best.pt")
    write(tmp_path / "a.ply", Cloud(scene(1500)))
    from pointgrad.cli import main

    arguments = ["predict", tmp_path / "run", tmp_path / "a.ply", "--out", tmp_path / "out", "--votes", "1"]
    assert main(list(map(str, arguments))) == 0
    labels_of = data.read(tmp_path / "out" / "a.ply").labels
    assert labels_of.min() >= 0
    assert labels_of.max() <= 1

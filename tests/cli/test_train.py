"""`pointgrad train`, `evaluate` and `models`: configuration files, defaults, one-line errors."""

import json
import re

import numpy as np
import pytest
import torch

from pointgrad import data, models, train
from pointgrad.cli import main
from pointgrad.cli.config import ConfigError, read_config
from pointgrad.cli.crops import crops
from pointgrad.cli.learning import DataFlags, preparation, resolve, spacing
from pointgrad.cli.train import Train
from pointgrad.train.report import Report
from tests.support.tiny import arrays

pytest.importorskip("lightning_fabric")
pytest.importorskip("tyro")
yaml = pytest.importorskip("yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with data and a run."""
    path = tmp_path_factory.mktemp("command")
    np.savez(path / "data.npz", **arrays(16, 16), val=np.arange(16) >= 10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Report, "curves", lambda self, **_: None)
        patch.setattr(Report, "results", lambda self: None)
        patch.chdir(path)
        status = main([
            "train", "--data", "data.npz", "--epochs", "1", "--batch-size", "5", "--options", "width=0.125",
            "--augment.rotate", "z", "--augment.scale", "0.9", "1.1", "--accelerator", "cpu", "--no-tensorboard",
            "--prepare.points", "16",
        ])  # fmt: skip
    assert status == 0
    return path


def error_of(capsys, command, *arguments):
    """Run a command that fails with status 2, and return its one-line error."""
    capsys.readouterr()
    assert main([command, *map(str, arguments)]) == 2
    out, error = capsys.readouterr()
    assert not out
    (line,) = error.splitlines()
    assert line.startswith(f"pointgrad {command}: ")
    return line.removeprefix(f"pointgrad {command}: ")


def test_the_run_is_named_after_data_and_model(folder):
    assert (folder / "runs" / "data-pointnet2-1" / "best.pt").exists()


def test_config_file_holds_the_resolved_settings(folder):
    written = read_config(Train, folder / "runs" / "data-pointnet2-1" / "config.yaml")
    assert written.epochs == 1
    assert written.options == ("width=0.125",)
    assert written.augment.scale == (0.9, 1.1)
    assert written.prepare.normalize == "sphere"  # the default
    assert written.task == "classification"


def test_config_file_is_loaded_and_flags_take_precedence(folder, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(Train, "run", lambda self: seen.append(self) or 0)
    config = folder / "runs" / "data-pointnet2-1" / "config.yaml"
    assert (
        main(["train", "--config", str(config), "--lr", "0.5", "--out", str(tmp_path), "--augment.jitter", "0.1"]) == 0
    )
    assert main(["train", "--out", str(config.parent), "--resume"]) == 0
    assert seen[0].lr == 0.5
    assert seen[0].epochs == 1
    assert seen[0].augment.rotate == "z"
    assert seen[0].augment.jitter == 0.1
    assert seen[1].lr == Train().lr
    assert seen[1].data == "data.npz"
    assert seen[1].resume


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epocs: 3", "unknown key epocs; did you mean epochs?"),
        ("augment: {rotat: z}", "unknown key augment.rotat; did you mean augment.rotate?"),
        ("epochs: many", "epochs must be a whole number, got 'many'"),
        ("epochs: true", "epochs must be a whole number, got True"),
        ("epochs: 1.5", "epochs must be a whole number, got 1.5"),
        ("lr: fast", "lr must be a number, got 'fast'"),
        ("compile: 1", "compile must be true or false, got 1"),
        ("optimizer: adagrad", "optimizer must be one of adamw, adam, sgd, got 'adagrad'"),
        ("augment: {scale: [1]}", "augment.scale must be a list of 2, got [1]"),
        ("augment: {scale: [1, big]}", "augment.scale[1] must be a number, got 'big'"),
        ("augment: 3", "augment must be keys and values, got 3"),
        ("data: 3", "data must be text, got 3"),
        ("- epochs", "expected keys and values, got list"),
        ("epochs: [", "is not YAML"),
        ("", "expected keys and values, got NoneType"),
    ],
)
def test_wrong_configs_are_one_line_errors(tmp_path, text, message):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config(Train, path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_numbers_in_yaml_notation(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("lr: 1e-3\nprecision: 32\nout: runs/a\nclip: 1\naugment: {scale: null}\nprepare: {features: [a]}")
    config = read_config(Train, path)
    assert (config.lr, config.precision, config.clip, config.augment.scale) == (1e-3, "32", 1.0, None)
    assert config.prepare.features == ("a",)
    assert str(config.out) == "runs/a"


def test_unreadable_config_ends_the_command(capsys, tmp_path):
    (tmp_path / "wrong.yaml").write_text("epocs: 3")
    for path, message in ((tmp_path / "wrong.yaml", "unknown key"), (tmp_path / "no.yaml", "No such file")):
        with pytest.raises(SystemExit) as ended:
            main(["train", f"--config={path}"])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


def test_wrong_command_lines(capsys, folder, tmp_path):
    data = folder / "data.npz"
    assert "--data is required" in error_of(capsys, "train")
    assert "--resume requires --out" in error_of(capsys, "train", "--data", data, "--resume")
    assert "exists and is kept" in error_of(capsys, "train", "--data", data, "--out", folder)
    out = ("--out", tmp_path / "run")
    assert "did you mean 'pointnet2'" in error_of(capsys, "train", "--data", data, *out, "--model", "pontnet2")
    assert "--options must be name=value" in error_of(capsys, "train", "--data", data, *out, "--options", "deep")
    for option in ("classes=5", "channels=1", "name=dgcnn"):
        message = f"--options must not set {option.partition('=')[0]}, which follows from the other flags and the data"
        assert message in error_of(capsys, "train", "--data", data, *out, "--options", option)
    assert "epochs must be positive" in error_of(capsys, "train", "--data", data, *out, "--epochs", "0")
    assert "features must contain height" in error_of(
        capsys, "train", "--data", data, *out, "--prepare.features", "height"
    )
    assert "no.npz" in error_of(capsys, "train", "--data", tmp_path / "no.npz", *out)
    assert not (tmp_path / "run").exists()


def test_every_flag_is_documented(capsys):
    for command in ("train", "evaluate", "models"):
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
        lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
        flags = [number for number, line in enumerate(lines) if re.match("--[a-z]", line)]
        assert flags
        for number in flags:
            described = lines[number].split("  ", 1)[-1] if "  " in lines[number] else lines[number + 1]
            assert not described.startswith(("--", "(default", "(required")), lines[number]


def test_evaluate(capsys, folder, tmp_path):
    run, report = folder / "runs" / "data-pointnet2-1", tmp_path / "report.json"
    arguments = ["evaluate", run, "--data", folder / "data.npz", "--split", "val", "--json", report]
    assert main([str(argument) for argument in arguments]) == 0
    printed = capsys.readouterr().out
    result = json.loads(report.read_text())
    with open(run / "metrics.csv") as file:
        header, row = (line.strip().split(",") for line in file)
    assert result["accuracy"] == pytest.approx(float(dict(zip(header, row, strict=True))["val_accuracy"]))
    assert f"accuracy: {result['accuracy']:.4f}" in printed
    assert [row["class"] for row in result["classes"]] == ["kind 0", "kind 1"]
    assert sum(map(sum, result["confusion"])) == 6
    assert main([str(argument) for argument in [*arguments[:-2], "--votes", "3"]]) == 0


def test_evaluate_matches_classes_by_name(capsys, folder, tmp_path):
    """The same clouds with the classes in reverse order, and with one class only."""
    run, content = folder / "runs" / "data-pointnet2-1", arrays(16, 16)

    def accuracy(**changed):
        np.savez(tmp_path / "other.npz", **{**content, **changed})
        report = tmp_path / "report.json"
        main(["evaluate", str(run), "--data", str(tmp_path / "other.npz"), "--json", str(report)])
        return json.loads(report.read_text())

    straight = accuracy()
    swapped = accuracy(label=1 - content["label"], classes=content["classes"][::-1])
    assert swapped["confusion"] == straight["confusion"]
    second = content["label"] == 1
    one = accuracy(points=content["points"][second], label=np.zeros(8, int), classes=np.array(["kind 1"]))
    assert one["confusion"][1] == straight["confusion"][1]
    assert one["classes"][0]["accuracy"] is None
    np.savez(tmp_path / "other.npz", **{**content, "classes": np.array(["kind 1", "truck"])})
    line = error_of(capsys, "evaluate", run, "--data", tmp_path / "other.npz")
    assert line.endswith("classes must be among those of the network, kind 0, kind 1, got truck")


def test_evaluate_refuses_files_that_are_not_checkpoints(capsys, folder, tmp_path):
    (tmp_path / "text.pt").write_text("not a network")
    for path, message in (
        (tmp_path / "text.pt", "is not a checkpoint"),
        (tmp_path / "no.pt", "no such file"),
        (tmp_path, "has neither best.pt nor last.pt"),
        (folder / "data.npz", "is not a checkpoint"),
    ):
        line = error_of(capsys, "evaluate", path, "--data", folder / "data.npz")
        assert line.startswith(str(path))
        assert message in line


def test_models(capsys):
    assert main(["models"]) == 0
    printed = capsys.readouterr().out
    for name in models.names():
        count = sum(parameter.numel() for parameter in models.build(name, classes=40).parameters())
        (line,) = [line for line in printed.splitlines() if line.split()[0] == name]
        assert f"{count:,}" in line
    assert main(["models", "pointnet2"]) == 0
    assert "1,472,360" in capsys.readouterr().out
    assert "did you mean 'pointnet2'" in error_of(capsys, "models", "pontnet2")


def test_defaults_for_scenes(tmp_path):
    """Large labelled clouds are thinned to twice their spacing, and cropped several times per epoch."""
    grid = np.stack(np.meshgrid(np.arange(150.0), np.arange(150.0), [0.0]), -1).reshape(1, -1, 3).astype("f4") * 0.05
    np.savez(tmp_path / "scene.npz", points=grid, label=(grid[..., 0] > 3).astype(int))
    dataset = data.open_dataset(str(tmp_path / "scene.npz"), "test")
    assert spacing(dataset[0].points) == pytest.approx(0.05, rel=1e-3)
    flags = resolve(DataFlags(data="scene.npz", crop_points=500), dataset)
    assert (flags.task, flags.prepare.voxel, flags.prepare.normalize) == ("segmentation", 0.1, "center")
    assert flags.options == ("radius=2.5",)
    assert resolve(DataFlags(model="pointnet"), dataset).options == ()
    assert resolve(DataFlags(model="minkunet"), dataset).options == ("voxel=0.1",)
    assert resolve(DataFlags(options=("radius=1",)), dataset).options == ("radius=1",)
    assert (flags.samples_per_cloud, flags.prepare.points, flags.augment.rotate) == (64, 500, "z")  # of one scene
    scenes = crops(dataset, preparation(flags), 500, 3, workers=0)
    piece = scenes.transform(scenes.dataset[1], torch.Generator().manual_seed(0))
    assert len(piece) == 500
    assert (piece.points.amax(0) - piece.points.amin(0)).max() < 0.1 * 60  # of 150 voxels
    torch.testing.assert_close(piece.points.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    assert len(scenes.dataset) == 3
    assert train.Metrics(2, train.metrics.parts_of(dataset)).compute().keys() == {"accuracy", "class_accuracy", "miou"}


@pytest.mark.parametrize(("model", "option"), [("minkunet", "variant=18"), ("ptv3", "drop_path=0.1")])
def test_sparse_networks_train_and_predict(tmp_path, monkeypatch, model, option):
    """Points above and below a plane, with a network on voxels; the variant is a number in YAML."""
    monkeypatch.setattr(Report, "curves", lambda self, **_: None)
    monkeypatch.setattr(Report, "results", lambda self: None)
    points = np.random.default_rng(0).uniform(-1, 1, (6, 60, 3)).astype("f4")
    np.savez(tmp_path / "a.npz", points=points, label=(points[..., 2] > 0).astype(int), val=np.arange(6) >= 4)
    status = main([
        "train", "--data", str(tmp_path / "a.npz"), "--model", model, "--epochs", "2", "--batch-size", "2",
        "--options", "width=0.125", option, "voxel=0.2", "--accelerator", "cpu", "--no-tensorboard",
        "--out", str(tmp_path / "run"),
    ])  # fmt: skip
    assert status == 0
    data.write(tmp_path / "a.ply", data.Cloud(torch.from_numpy(points[0])))
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "a.ply"), "--out", str(tmp_path / "out")]) == 0
    labels = data.read(tmp_path / "out" / "a.ply").labels
    assert labels.shape == (60,)
    assert set(labels.tolist()) <= {0, 1}


def test_a_single_class_is_refused(capsys, tmp_path):
    content = arrays(8, 8)
    np.savez(tmp_path / "one.npz", **{**content, "label": np.zeros(8, int), "classes": np.array(["chair"])})
    line = error_of(capsys, "train", "--data", tmp_path / "one.npz", "--out", tmp_path / "run")
    assert line.endswith("one.npz: expected at least two classes, found only chair")


def test_evaluate_warns_about_training_data(capsys, folder):
    run, name = folder / "runs" / "data-pointnet2-1", str(folder / "data.npz")
    assert main(["evaluate", str(run), "--data", name, "--accelerator", "cpu"]) == 0
    assert "evaluating all 16 clouds" in capsys.readouterr().err
    assert main(["evaluate", str(run), "--data", name, "--split", "val", "--accelerator", "cpu"]) == 0
    assert not capsys.readouterr().err


def test_resuming_a_finished_run_keeps_its_config(folder):
    run = folder / "runs" / "data-pointnet2-1"
    before = (run / "config.yaml").read_bytes()
    assert main(["train", "--out", str(run), "--data", str(folder / "data.npz"), "--resume", "--lr", "0.7"]) == 0
    assert (run / "config.yaml").read_bytes() == before

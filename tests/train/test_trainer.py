"""Trainer: run folder, hooks, precision, early stopping, moving average, checkpoints, and errors."""

import copy
import csv
import doctest
import errno
import json
import os
import sys

import numpy as np
import pytest
import torch

import pointgrad
from pointgrad import data, inspect, models, train
from pointgrad.train import Hook, TrainConfig, Trainer, display
from pointgrad.train.report import Report
from tests.support.tiny import Tiny, arrays, loaders

pytest.importorskip("lightning_fabric")
yaml = pytest.importorskip("yaml")


def config(**options):
    return TrainConfig(**{"epochs": 2, "accelerator": "cpu", "tensorboard": False, "clip": 0.0, **options})


def rows(folder):
    with open(folder / "metrics.csv") as file:
        return list(csv.DictReader(file))


@pytest.fixture(autouse=True)
def _no_pictures(request, monkeypatch):
    """Figures take longer than everything else."""
    if request.node.name != "test_run_folder":
        monkeypatch.setattr(Report, "curves", lambda self, **_: None)
        monkeypatch.setattr(Report, "results", lambda self: None)


@pytest.fixture
def batches():
    return loaders(4, clouds=12)


def test_run_folder(tmp_path, batches, capsys):
    pytest.importorskip("matplotlib")
    pytest.importorskip("tensorboard")
    pytest.importorskip("safetensors")
    out = tmp_path / "run"
    best = Trainer(Tiny(), *batches, config(tensorboard=True, ema=0.9), out=out).fit()
    names = {path.name for path in out.iterdir()}
    assert names == {
        "config.yaml", "environment.txt", "metrics.csv", "curves.png", "confusion.png", "examples.png", "best.pt",
        "best.safetensors", "evaluation.npz", "last.pt", "previous.pt", "log.txt", "tensorboard", ".lock",
    }  # fmt: skip
    for name in ("curves.png", "confusion.png", "examples.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    assert [row["epoch"] for row in rows(out)] == ["1", "2"]
    assert float(rows(out)[int(best["epoch"]) - 1]["val_accuracy"]) == best["val_accuracy"]
    assert yaml.safe_load((out / "config.yaml").read_text())["epochs"] == 2
    environment = (out / "environment.txt").read_text()
    assert f"torch: {torch.__version__}" in environment
    assert "seed: 0" in environment
    assert any((out / "tensorboard").iterdir())
    printed = capsys.readouterr().out
    assert "epoch 2/2" in printed
    assert printed.splitlines()[0] in (out / "log.txt").read_text()


def test_an_existing_run_is_not_overwritten(tmp_path, batches):
    (tmp_path / "results.txt").write_text("important")
    with pytest.raises(ValueError, match="exists and is kept; continue it with --resume, or give a new name"):
        Trainer(Tiny(), *batches, config(), out=tmp_path)
    file = tmp_path / "results.txt"
    with pytest.raises(ValueError, match="expected a folder"):
        Trainer(Tiny(), *batches, config(), out=file)
    assert file.read_text() == "important"


def test_content_of_checkpoints(tmp_path):
    ready = data.Prepare(points=8)
    model = Tiny()
    Trainer(model, *loaders(4, clouds=12), config(ema=0.5), out=tmp_path / "run", prepare=ready).fit()
    best, last = (torch.load(tmp_path / "run" / name, weights_only=True) for name in ("best.pt", "last.pt"))
    assert best["format"] == 1
    assert best["model"] == model.config
    assert best["task"] == "classification"
    assert best["classes"] == ["kind 0", "kind 1"]
    assert data.Prepare(**best["prepare"]) == ready
    assert "training" not in best
    assert last["training"]["epoch"] == 2
    raw, mean = last["training"]["weights"], last["state"]
    torch.testing.assert_close(raw, model.state_dict(), rtol=0, atol=0)
    assert any(not torch.equal(raw[name], mean[name]) for name in raw)


def test_current_weights_are_evaluated_without_ema(tmp_path, batches):
    """The validation loss of an epoch is that of the weights at its end, not at its beginning."""
    torch.manual_seed(3)
    model = Tiny()
    still = train.evaluate(model, batches[1], classes=2).compute()["loss"]
    trainer = Trainer(model, *batches, config(epochs=1, lr=0.05, warmup_epochs=0, ema=0.0), out=None)
    trainer.fit()
    assert trainer.history[0]["val_loss"] == pytest.approx(
        train.evaluate(model, batches[1], classes=2).compute()["loss"], rel=1e-6
    )
    assert trainer.history[0]["val_loss"] != pytest.approx(still, rel=1e-3)


class Listener(Hook):
    def __init__(self):
        self.calls = []

    def __getattribute__(self, name):
        if name.startswith(("before", "after")):
            return lambda trainer, *rest: self.calls.append((name, trainer.epoch, trainer.step))
        return super().__getattribute__(name)


def test_hooks_are_called_in_order(batches):
    listener = Listener()
    Trainer(Tiny(), *batches, config(), hooks=[listener]).fit()
    expected = [("before_train", 0, 0)]
    for epoch in (0, 1):
        expected += [("before_epoch", epoch, 0)]
        for step in range(3):
            expected += [("before_step", epoch, step), ("after_step", epoch, step + 1)]
        expected += [("after_epoch", epoch + 1, 0)]
    assert listener.calls == [*expected, ("after_train", 2, 0)]


def test_after_train_is_called_after_an_error(batches):
    class Fails(Listener):
        def extra_loss(self, trainer):
            raise KeyError

    hook = Fails()
    with pytest.raises(KeyError):
        Trainer(Tiny(), *batches, config(), hooks=[hook]).fit()
    assert hook.calls[-1][0] == "after_train"


class Inspected(Hook):
    """Attaches hooks of `pointgrad.inspect` during training."""

    def before_train(self, trainer):
        self.penalty = inspect.ActivationPenalty(trainer.module, torch.nn.ReLU)
        self.recorder = inspect.Recorder(trainer.module, "last.1")
        self.watcher = inspect.GradientWatcher(trainer.module)
        for each in (self.penalty, self.recorder, self.watcher):
            each.__enter__()

    def extra_loss(self, trainer):
        return 0.1 * self.penalty.loss()

    def after_train(self, trainer):
        for each in (self.watcher, self.recorder, self.penalty):
            each.__exit__(None, None, None)


def test_inspect_hooks_work_during_training(batches):
    """The penalty is part of the loss: the first update equals that of plain torch with the penalty."""
    hook, model = Inspected(), Tiny()
    other = copy.deepcopy(model)
    settings = config(epochs=1, optimizer="sgd", momentum=0.0, schedule="constant", smoothing=0.0, lr=0.1)
    settings.weight_decay = 0.0

    class Stop(Hook):
        def after_step(self, trainer, loss):
            trainer.stop()

    with pytest.raises(train.Interrupted, match="nothing is saved"):
        Trainer(model, *batches, settings, hooks=[hook, Stop()]).fit()
    batch = next(iter(batches[0]))
    hidden = other.first[1](other.first[0](batch.inputs()["points"]))
    loss = torch.nn.functional.cross_entropy(other(**batch.inputs()), batch.target) + 0.1 * hidden.abs().mean()
    loss.backward()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter -= 0.1 * parameter.grad
    torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=1e-4, atol=1e-6)
    assert hook.recorder["last.1"][0].output.shape == (4, 2)
    assert hook.watcher.first() is None


def test_trainer_accumulation_equals_one_large_batch():
    """12 clouds: two updates of three batches of 2, or of one batch of 6."""
    histories = []
    for batch_size, accumulate in ((2, 3), (6, 1)):
        torch.manual_seed(0)
        trainer = Trainer(Tiny(), *loaders(batch_size, clouds=12), config(accumulate=accumulate, clip=0.1))
        trainer.fit()
        histories.append([row["val_loss"] for row in trainer.history])
    assert histories[0] == pytest.approx(histories[1], rel=1e-5)


def test_early_stopping(tmp_path, batches):
    """With a learning rate so small that nothing improves."""
    trainer = Trainer(Tiny(), *batches, config(epochs=9, lr=1e-30, patience=2), out=tmp_path / "run")
    best = trainer.fit()
    assert len(trainer.history) == 3
    assert best["epoch"] == 1
    assert train.Trainer(
        Tiny(), *batches, config(epochs=9, lr=1e-30, patience=2), out=tmp_path / "run", resume=True
    ).fit() == best  # fmt: skip


def test_loss_can_select_the_best_epoch(batches):
    trainer = Trainer(Tiny(), *batches, config(epochs=3, monitor="loss"))
    assert trainer.fit()["val_loss"] == min(row["val_loss"] for row in trainer.history)


def test_training_without_validation_data_and_run_folder():
    trainer = Trainer(Tiny(), loaders(4)[0], None, config(epochs=1))
    assert 0 <= trainer.fit()["train_accuracy"] <= 1


def test_segmentation_with_bfloat16():
    torch.manual_seed(0)
    training, validation = loaders(4, clouds=24, task="segmentation")
    trainer = Trainer(Tiny(task="segmentation"), training, validation, config(epochs=3, lr=0.03, precision="bf16"))
    seen = []
    trainer.module.first[0].register_forward_hook(lambda layer, inputs, output: seen.append(output.dtype))
    trainer.fit()
    assert set(seen) == {torch.bfloat16}
    assert trainer.history[-1]["val_miou"] > trainer.history[0]["val_miou"]
    assert all(parameter.dtype == torch.float32 for parameter in trainer.module.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: whether a step waits for it")
@pytest.mark.parametrize("precision", ["32", "tf32", "bf16"])
def test_no_step_waits_for_the_gpu(precision):
    """torch raises an error at every wait, from before the copy to the device until after the update."""

    class Strict(Hook):
        def before_step(self, trainer):
            if trainer.epoch:  # the first epoch compiles kernels
                torch.cuda.set_sync_debug_mode("error")

        def after_step(self, trainer, loss):
            torch.cuda.set_sync_debug_mode("default")

    dataset = data.Arrays(arrays(64, 512))
    loader = data.Loader(dataset, batch_size=8, transform=data.Prepare(), shuffle=True)
    settings = config(accelerator="cuda", precision=precision, ema=0.9, clip=1.0, class_weights="sqrt")
    network = models.build("pointnet2", classes=2, width=0.5)
    assert Trainer(network, loader, None, settings, hooks=[Strict()]).fit()["epoch"] in (1, 2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: float16 with a scaler")
def test_float16_on_a_gpu(tmp_path):
    """Resumed with the state of the scaler."""
    training, validation = loaders(8, clouds=48)
    for epochs, resume in ((2, False), (4, True)):
        settings = config(epochs=epochs, accelerator="cuda", precision="fp16", lr=0.02, clip=1.0, schedule="constant")
        trainer = Trainer(Tiny(width=32), training, validation, settings, out=tmp_path / "run", resume=resume)
        trainer.fit()
    assert len(trainer.history) == 4
    assert trainer.history[-1]["train_loss"] < trainer.history[0]["train_loss"]
    last = torch.load(tmp_path / "run" / "last.pt", weights_only=True)
    assert last["training"]["scaler"]["scale"] > 0


def test_progress_lines_without_a_terminal(capsys, monkeypatch):
    times = iter([0.0, 30.0, 61.0, 62.0])
    monkeypatch.setattr(display.time, "monotonic", lambda: next(times))
    shown = display.Display(3, True)
    shown.begin(0, 0, 10, 0.0)
    for done, loss in ((1, 0.5), (2, 0.25), (3, 0.1)):
        shown.show(done, loss)
    # 2 of 10 steps took 61 s; 8 steps and two epochs of 10 remain.
    assert capsys.readouterr().out == "epoch 1/3  step 2/10  loss 0.2500  left 14 min 14 s\n"


def test_compiled_training_matches_eager(batches, monkeypatch):
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **rest: compile(module, backend="eager"))
    histories = []
    for compiled in (False, True):
        torch.manual_seed(0)
        trainer = Trainer(Tiny(), *batches, config(epochs=1, compile=compiled))
        trainer.fit()
        histories.append(trainer.history[0]["val_loss"])
        assert set(trainer.module.state_dict()) == set(Tiny().state_dict())
    assert histories[0] == pytest.approx(histories[1], rel=1e-6)


@pytest.mark.parametrize(("optimizer", "weights"), [("adam", "none"), ("adamw", "sqrt"), ("sgd", "inverse")])
def test_every_optimizer_learns(optimizer, weights):
    torch.manual_seed(0)
    settings = config(epochs=6, lr=0.02, optimizer=optimizer, class_weights=weights, weight_decay=1e-4)
    trainer = Trainer(Tiny(width=32), *loaders(8, clouds=48), settings)
    trainer.fit()
    assert trainer.history[-1]["train_loss"] < trainer.history[0]["train_loss"]


class LoaderWithNaN:
    """Loader that puts a NaN into one batch of one epoch."""

    def __init__(self, loader, epoch, number):
        self.loader, self.at = loader, (epoch, number)
        self.dataset, self.skipped, self.epoch = loader.dataset, {}, 0

    def __len__(self):
        return len(self.loader)

    def set_epoch(self, epoch):
        self.epoch = epoch
        self.loader.set_epoch(epoch)

    def skip(self, steps):
        self.loader.skip(steps)

    def __iter__(self):
        for number, batch in enumerate(self.loader):
            if (self.epoch, number) == self.at:
                batch.points[0, 0] = torch.nan
            yield batch


def test_non_finite_loss_stops_and_keeps_the_last_checkpoint(tmp_path, batches):
    training, validation = batches
    trainer = Trainer(Tiny(), LoaderWithNaN(training, 1, 1), validation, config(epochs=3), out=tmp_path / "run")
    with pytest.raises(
        train.NonFiniteLoss, match=r"not finite in epoch 2, step 2 of 3 \(batch 2\); .*last\.pt is from before"
    ):
        trainer.fit()
    kept = torch.load(tmp_path / "run" / "last.pt", weights_only=True)
    assert kept["training"]["epoch"] == 1
    assert all(tensor.isfinite().all() for tensor in kept["state"].values())


def test_non_finite_weights_are_not_saved(tmp_path, batches):
    """As after a finite loss with a non-finite gradient."""

    class Break(Hook):
        def after_step(self, trainer, loss):
            if trainer.updates == 6:  # the last of the second epoch
                with torch.no_grad():
                    trainer.module.last[1].weight[0, 0] = torch.inf

    with pytest.raises(train.NonFiniteLoss, match=r"weights are not finite after epoch 2; .*last\.pt"):
        Trainer(Tiny(), *batches, config(epochs=3), out=tmp_path / "run", hooks=[Break()]).fit()
    assert torch.load(tmp_path / "run" / "last.pt", weights_only=True)["training"]["epoch"] == 1


def test_part_segmentation_reports_instance_miou(tmp_path):
    content = arrays(12, task="segmentation")
    category = np.arange(12) % 2
    label = np.where(category[:, None] == 1, content["label"] + 2, content["label"])
    more = {"label": label, "classes": np.array(list("abcd")), "category": category, "categories": np.array(["x", "y"])}
    loader = data.Loader(data.Arrays({**content, **more}), batch_size=4, transform=data.Prepare())
    trainer = Trainer(Tiny(4, task="segmentation"), loader, loader, config(), out=tmp_path / "run")
    best = trainer.fit()
    assert trainer.parts == ((0, 1), (2, 3))
    assert trainer.monitor == "val_instance_miou"
    assert 0 < best["val_instance_miou"] <= 1
    assert "val_category_miou" in rows(tmp_path / "run")[0]


def test_full_disk_error_names_the_file_and_keeps_the_last_checkpoint(tmp_path, batches, monkeypatch):
    out = tmp_path / "run"
    replace, done = os.replace, []

    def full(source, target):
        done.append(target.name)
        if done.count("last.pt") == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(train.WriteError, match=r"last\.pt: cannot be written: No space left on device; .*intact"):
        Trainer(Tiny(), *batches, config(epochs=3), out=out).fit()
    assert torch.load(out / "last.pt", weights_only=True)["training"]["epoch"] == 1
    assert [file.name for file in out.glob(".*")] == [".lock"]


def test_unreadable_samples_are_counted(capsys):
    content = arrays(12)

    class Bad(data.Arrays):
        def __getitem__(self, index):
            if index == 5:
                raise data.FileError("cloud_5.ply: expected 100 vertices, but the file ends after 73")
            return super().__getitem__(index)

    loader = data.Loader(Bad(content), batch_size=4, transform=data.Prepare(), shuffle=True)
    with pytest.raises(ValueError, match=r"cloud_5\.ply: expected 100"):
        Trainer(Tiny(), loader, None, config(epochs=1)).fit()
    loader = data.Loader(Bad(content), batch_size=1, transform=data.Prepare(), shuffle=True, skip_bad=True)
    Trainer(Tiny(), loader, None, config(epochs=2)).fit()
    printed = capsys.readouterr().out
    (line,) = [line for line in printed.splitlines() if line.startswith("unreadable samples skipped so far: 1;")]
    assert line.endswith("cloud_5.ply: expected 100 vertices, but the file ends after 73")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be positive, got 0"),
        ({"lr": float("nan")}, "lr must be positive, got nan"),
        ({"ema": 1.5}, r"ema must be in \[0, 1\], got 1.5"),
        ({"precision": "fp16"}, "precision must be 32 or bf16 on the CPU, got fp16"),
        ({"monitor": "instance_miou"}, "monitor must not be instance_miou"),
    ],
)
def test_invalid_settings_are_errors(batches, options, message):
    with pytest.raises(ValueError, match=message):
        Trainer(Tiny(), *batches, config(**options))


def test_checkpoints_of_other_networks_or_data_are_refused(tmp_path, batches):
    out = tmp_path / "run"
    Trainer(Tiny(), *batches, config(epochs=1), out=out).fit()
    with pytest.raises(train.CheckpointError, match="a different network: width must be 9, got 8"):
        Trainer(Tiny(width=9), *batches, config(), out=out, resume=True)
    three = data.Loader(data.Arrays(arrays(12, classes=3)), batch_size=4)
    with pytest.raises(train.CheckpointError, match="its classes must be those of the data, kind 0, kind 1, kind 2"):
        Trainer(Tiny(3), three, None, config(), out=out, resume=True)
    (out / "last.pt").write_bytes((out / "best.pt").read_bytes())
    with pytest.raises(train.CheckpointError, match="nothing to resume from"):
        Trainer(Tiny(), *batches, config(), out=out, resume=True)
    (out / "last.pt").write_bytes((out / "best.pt").read_bytes()[:500])
    with pytest.raises(train.CheckpointError, match=r"last\.pt: is not a checkpoint, or is damaged"):
        Trainer(Tiny(), *batches, config(), out=out, resume=True)


def test_load(tmp_path):
    network = models.build("pointnet2", classes=2, width=0.25)
    training, validation = loaders(4, clouds=8)
    Trainer(network, training, validation, config(epochs=1), out=tmp_path / "run", prepare=data.Prepare(8)).fit()
    trained = train.load(tmp_path / "run")
    assert not trained.model.training
    assert trained.task == "classification"
    assert trained.classes == ("kind 0", "kind 1")
    assert trained.prepare == data.Prepare(8)
    torch.testing.assert_close(trained.model.state_dict(), network.state_dict(), rtol=0, atol=0)
    content = torch.load(tmp_path / "run" / "best.pt", weights_only=True)
    cases = {
        "belongs to a different network: .* is missing": {**content, "state": dict(list(content["state"].items())[1:])},
        "the model has no extra": {**content, "state": {**content["state"], "extra": torch.zeros(1)}},
        r"head\.4\.weight must have shape \(3, 64\), got \(2, 64\)": {
            **content,
            "model": {**content["model"], "classes": 3},
        },
        "cannot build the network": {**content, "model": {"name": "pointnet3"}},
        "expected a pointgrad checkpoint of format 1, got 2": {**content, "format": 2},
        "expected a pointgrad checkpoint of format 1, got list": [1],
        "a checkpoint must have prepare": {name: value for name, value in content.items() if name != "prepare"},
    }
    for message, wrong in cases.items():
        torch.save(wrong, tmp_path / "wrong.pt")
        with pytest.raises(train.CheckpointError, match=message):
            train.load(tmp_path / "wrong.pt")
    for path, message in ((tmp_path / "no.pt", "no such file"), (tmp_path, "neither best.pt nor last.pt")):
        with pytest.raises(train.CheckpointError, match=message):
            train.load(path)


class Own(torch.nn.Module):
    """A network that is not in `pointgrad.models`, whose attribute `config` has a meaning of its own."""

    def __init__(self, settings):
        super().__init__()
        self.config, self.tiny = settings, Tiny()

    def forward(self, points, features=None, *, offsets=None):
        return self.tiny(points, features, offsets=offsets)


@pytest.mark.parametrize("settings", [None, object(), {"layer": torch.nn.ReLU}], ids=["none", "object", "dictionary"])
def test_load_a_network_of_ones_own(settings, tmp_path):
    """`train.load` puts the weights into the network that it is given; without one, the error says how."""
    batches = loaders(4, clouds=8)
    network = Own(settings)
    Trainer(network, *batches, config(epochs=1), out=tmp_path / "run", prepare=data.Prepare(8)).fit()
    with pytest.raises(
        train.CheckpointError, match=r"of your own, which only Python can load: train\.load\(path, model=network\)$"
    ):
        train.load(tmp_path / "run")
    fresh = Own(settings)
    with torch.no_grad():
        next(fresh.parameters()).fill_(7.0)
    trained = train.load(tmp_path / "run", model=fresh)
    assert trained.model is fresh
    assert not fresh.training
    torch.testing.assert_close(fresh.state_dict(), network.state_dict(), rtol=0, atol=0)
    assert (trained.classes, trained.prepare) == (("kind 0", "kind 1"), data.Prepare(8))
    with pytest.raises(train.CheckpointError, match="belongs to a different network"):
        train.load(tmp_path / "run", model=torch.nn.Linear(3, 2))


def test_safetensors_hold_the_best_weights(tmp_path):
    """A model that loads them with safetensors alone predicts what the checkpoint predicts."""
    safetensors = pytest.importorskip("safetensors")
    from safetensors.torch import load_file

    run, batches = tmp_path / "run", loaders(4, clouds=8)
    network = models.build("pointnet2", classes=2, width=0.25)
    Trainer(network, *batches, config(epochs=3, ema=0.9), out=run, prepare=data.Prepare(8)).fit()
    trained = train.load(run)
    with safetensors.safe_open(run / "best.safetensors", "pt") as file:
        metadata = json.loads(file.metadata()["pointgrad"])
    assert metadata["classes"] == ["kind 0", "kind 1"]
    assert data.Prepare(**metadata["prepare"]) == trained.prepare
    again = models.build(**metadata["model"]).eval()
    again.load_state_dict(load_file(run / "best.safetensors"))
    inputs = next(iter(batches[1])).inputs()
    with torch.no_grad():
        assert torch.equal(again(**inputs), trained.model(**inputs))
        assert not torch.equal(again(**inputs), network.eval()(**inputs))  # the weights of the last step


def test_training_without_safetensors(tmp_path, batches, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for module in ("trainer", "state"):
        monkeypatch.setattr(f"pointgrad.train.{module}.find_spec", lambda name: None)
    Trainer(Tiny(), *batches, config(epochs=1), out=tmp_path / "run").fit()
    assert not (tmp_path / "run" / "best.safetensors").exists()
    assert (tmp_path / "run" / "best.pt").exists()
    assert "safetensors is not installed: no best.safetensors" in capsys.readouterr().out


def test_documented_examples_run():
    names = {"torch": torch, "pointgrad": pointgrad, "Hook": Hook, "TrainConfig": TrainConfig, "Trainer": Trainer}
    for module in (train.checkpoint, train.config, display, train.distributed, train.hooks, train.trainer):
        for example in doctest.DocTestFinder().find(module, globs={**vars(module), **names}):
            assert doctest.DocTestRunner().run(example).failed == 0

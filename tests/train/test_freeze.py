"""Linear probing: training of the last layers on fixed weights, and loading of trained weights into a network."""

import numpy as np
import pytest
import torch
from torch import nn

from pointgrad import data, models, train
from pointgrad.cli import main
from pointgrad.train import Interrupted, TrainConfig, Trainer, load_weights
from pointgrad.train.report import Report
from tests.support.tiny import arrays

pytest.importorskip("lightning_fabric")
safetensors = pytest.importorskip("safetensors.torch")


class Probed(nn.Module):
    """An encoder with batch norm and dropout, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.points = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16))
        self.cloud = nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, points, features=None, **_):
        return self.head(self.cloud(self.points(points).amax(1)))


def clouds(count, seed):
    """Balls that are flattened along x, along z, both or neither; the class is whether it is one axis of the two."""
    rng = np.random.default_rng(seed)
    flat = rng.integers(0, 2, (count, 2))
    scale = np.stack([1 - 0.8 * flat[:, 0], np.ones(count), 1 - 0.8 * flat[:, 1]], 1)
    points = (rng.normal(size=(count, 24, 3)) * scale[:, None]).astype(np.float32)
    return data.Arrays({"points": points, "label": flat.sum(1) % 2, "classes": np.array(["even", "odd"])})


def trainer(network, count=96, out=None, resume=False, **options):
    settings = {"epochs": 8, "lr": 1e-2, "accelerator": "cpu", "tensorboard": False, "ema": 0.5, **options}
    loaders = [
        data.Loader(clouds(size, seed), batch_size=16, transform=data.Prepare(), shuffle=not seed)
        for size, seed in ((count, 0), (200, 1))
    ]
    return Trainer(network, *loaders, TrainConfig(**settings), out=out, resume=resume)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A file with the weights of a trained encoder, without the last layer."""
    torch.manual_seed(0)
    network = Probed()
    assert trainer(network, 640, epochs=12).fit()["val_accuracy"] > 0.9
    path = tmp_path_factory.mktemp("encoder") / "encoder.safetensors"
    state = {name: tensor for name, tensor in network.state_dict().items() if not name.startswith("head.")}
    path.write_bytes(safetensors.save(state))
    return path


def probe(path):
    """A network with the weights of a file, if one is given."""
    torch.manual_seed(1)
    network = Probed()
    if path is not None:
        assert load_weights(network, path) == (["head.weight", "head.bias"], [], [])
    return network


def copied(network):
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def test_only_the_last_layer_changes_and_it_learns(encoder):
    trained = probe(encoder)
    before = copied(trained)
    best = trainer(trained, freeze=True).fit()
    changed = {name for name, tensor in copied(trained).items() if not torch.equal(tensor, before[name])}
    assert changed == {"head.weight", "head.bias"}  # not the statistics of batch norm
    untrained = trainer(probe(None), freeze=True).fit()
    assert best["val_accuracy"] > 0.9
    assert untrained["val_accuracy"] < 0.7


def test_a_resumed_probe_has_the_same_bits(encoder, tmp_path):
    whole, parts = probe(encoder), probe(encoder)
    trainer(whole, freeze=True, epochs=3).fit()

    class Stop(train.Hook):
        def after_step(self, trainer, loss):
            if trainer.updates == 8:  # in the middle of the second epoch
                trainer.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Report, "curves", lambda self, **_: None)
        patch.setattr(Report, "results", lambda self: None)
        first = trainer(parts, freeze=True, epochs=3, out=tmp_path / "run")
        first.hooks.append(Stop())
        with pytest.raises(Interrupted):
            first.fit()
        resumed = Probed()  # the checkpoint holds the fixed weights too
        trainer(resumed, freeze=True, epochs=3, out=tmp_path / "run", resume=True).fit()
    torch.testing.assert_close(copied(resumed), copied(whole), rtol=0, atol=0)


def test_a_network_without_last_layers_is_refused():
    with pytest.raises(
        ValueError, match=r"^freeze requires a network with trainable layers named head, got Sequential$"
    ):
        trainer(nn.Sequential(nn.Linear(3, 2)), freeze=True)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A network for three classes, as a checkpoint, as a folder for the hub, and in the layout of Pointcept."""
    folder = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    network = models.sonata("segmentation", classes=3, channels=0, width=0.1, variant="small")
    network.save_pretrained(folder / "hub")
    content = train.checkpoint.content_of(network, network.state_dict(), "segmentation", "abc", data.Prepare())
    train.checkpoint.save(folder / "best.pt", content)
    names = {ours: models.published._NAMES["sonata"](ours) for ours in network.state_dict()}
    state = {f"module.backbone.{names[ours]}": tensor for ours, tensor in network.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state}, folder / "published.pth")
    return network, folder


@pytest.mark.parametrize("file", ["hub", "best.pt", "published.pth", "hub/model.safetensors", ""])
def test_weights_of_any_file_arrive(saved, file):
    source, folder = saved
    network = models.sonata("segmentation", classes=5, channels=0, width=0.1, variant="small")
    head = network.head[1].weight.clone()
    unloaded = load_weights(network, folder / file)
    names = [text.split(" ")[0].rpartition("head.")[2].removeprefix("1.") for text in unloaded.mismatched]
    assert (names, unloaded.missing) == (["weight", "bias"], [])
    assert torch.equal(network.head[1].weight, head)
    for name, tensor in source.state_dict().items():
        assert torch.equal(network.state_dict()[name], tensor) or name.startswith("head.")


def test_weights_of_another_network_or_junk(saved, tmp_path):
    (tmp_path / "junk.pth").write_bytes(b"PK\x03\x04junk")
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    torch.save({"state_dict": [1, 2]}, tmp_path / "list.pth")
    torch.save({"model": print}, tmp_path / "code.pth")
    torch.save({"stem.0.weight": 3}, tmp_path / "number.pth")
    small, wide, other = (
        models.build("sonata", task="segmentation", classes=3, channels=channels, width=width, variant="small")
        for channels, width in ((0, 0.1), (0, 1.0), (6, 0.1))
    )
    cases = [
        (small, tmp_path / "junk.pth", "junk.pth: holds no weights, or is damaged$"),
        (small, tmp_path / "junk.safetensors", "junk.safetensors: holds no weights, or is damaged$"),
        (small, tmp_path / "list.pth", "list.pth: expected weights by name, found dict$"),
        (small, tmp_path / "code.pth", "code.pth: holds no weights, or is damaged: expected weights, found a call of"),
        (small, tmp_path / "number.pth", r"number.pth: weights must be those of sonata, got missing stem.0.bias, "),
        (small, tmp_path / "none.pth", "none.pth: no such file$"),
        (wide, saved[1] / "hub", r"got wrong shape stem.0.weight \(16, 3\) for \(32, 3\), .* and \d+ more$"),
        (other, saved[1] / "published.pth", r"embedding.stem.linear.weight \(16, 3\) for stem.0.weight \(16, 9\)$"),
        (models.pointnet(), saved[1] / "published.pth", "weights must be those of pointnet, got missing"),
        (Probed(), saved[1] / "best.pt", "weights must be those of Probed, got missing points.0.weight"),
    ]
    for network, path, message in cases:
        with pytest.raises(train.CheckpointError, match=message) as caught:
            load_weights(network, path)
        assert "\n" not in str(caught.value)


def test_command(tmp_path, monkeypatch, capsys):
    """Probing from the command line, also when the file of the weights is gone before the run is resumed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Report, "curves", lambda self, **_: None)
    monkeypatch.setattr(Report, "results", lambda self: None)
    np.savez("data.npz", **arrays(16, 16), val=np.arange(16) >= 10)
    source = models.ptv3("classification", classes=3, width=0.1)
    source.save_pretrained("encoder")
    command = [
        "train", "--data", "data.npz", "--model", "ptv3", "--options", "width=0.1", "voxel=0.3", "--batch-size", "5",
        "--prepare.points", "16", "--accelerator", "cpu", "--no-tensorboard", "--out", "run", "--freeze",
    ]  # fmt: skip
    assert main([*command, "--epochs", "1"]) == 2
    assert "pointgrad train: --freeze requires --weights, the trained weights that are fixed" in capsys.readouterr().err
    assert main([*command, "--epochs", "2", "--weights", "encoder"]) == 0
    assert "encoder: not loaded: wrong shape head.1.weight (3, 48) for (2, 48)" in capsys.readouterr().out
    (tmp_path / "encoder").rename(tmp_path / "elsewhere")
    assert main(["train", "--out", "run", "--resume", "--epochs", "3"]) == 0
    found = train.load("run").model.state_dict()
    assert found.keys() == source.state_dict().keys()
    for name, tensor in source.state_dict().items():
        assert torch.equal(found[name], tensor) != name.startswith("head."), name

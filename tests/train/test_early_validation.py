"""Validation after a few steps: the running statistics of batch norm describe the network."""

import copy

import pytest
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from pointgrad import data, models, train
from pointgrad.data import Compose, Crop, Prepare
from pointgrad.train import Hook, TrainConfig, Trainer

pytest.importorskip("lightning_fabric")


class Streets(torch.utils.data.Dataset):
    """Two crops of each of a few streets."""

    classes, task = data.STREET_CLASSES, "segmentation"

    def __init__(self, seeds):
        self.scans = [data.street(10_000, length=12, seed=seed) for seed in seeds]

    def __len__(self):
        return 6 * len(self.scans)

    def __getitem__(self, index):
        return self.scans[index // 6]


def loader(seeds, shuffle):
    transform = Compose(Crop(512), Prepare(512, "center"))
    return data.Loader(Streets(seeds), batch_size=4, transform=transform, shuffle=shuffle)


class Compare(Hook):
    """Evaluates after some steps: as validation does, and with statistics computed from the training data."""

    def __init__(self, steps):
        self.steps, self.found = steps, []

    def after_step(self, trainer, loss):
        if trainer.updates in self.steps:
            accuracy = [
                train.evaluate(network, trainer.val_loader, classes=6).compute()["accuracy"]
                for network in (trainer.module, exact(trainer.module, trainer.train_loader))
            ]
            self.found.append(accuracy)


@torch.no_grad()
def exact(network, batches):
    """Copy of the network whose statistics are averages over the training data, with its present weights."""
    network = copy.deepcopy(network)
    for layer in network.modules():
        if isinstance(layer, _BatchNorm):
            layer.reset_running_stats()
            layer.momentum = None
    network.train()
    for batch in batches:
        network(**batch.inputs())
    return network


def test_early_validation_is_that_of_the_network():
    """With a momentum of 0.1 from the first step, the accuracy is that of a constant class, far below the second."""
    training, validation = loader(range(3), True), loader([9], False)
    compare = Compare((8, 12, 16))
    torch.manual_seed(0)
    network = models.pointnet2("segmentation", classes=6, width=0.25, radius=5)
    Trainer(network, training, validation, TrainConfig(epochs=4, lr=0.005, accelerator="cpu"), hooks=[compare]).fit()
    assert len(compare.found) == 3
    assert all(precise > 0.5 for _, precise in compare.found[1:]), compare.found
    assert all(own > 0.75 * precise for own, precise in compare.found[1:]), compare.found


def test_validation_uses_the_same_crops_in_all_epochs():
    validation = loader([9], False)
    first, second = ([batch.points for batch in validation] for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))

"""Small training runs, for tests of run folders and of the viewer."""

import pytest
import torch

from pointgrad import data, models
from pointgrad.train import TrainConfig, Trainer
from pointgrad.train.report import Report

TASKS = ("classification", "segmentation")


def loaders(task):
    made = {split: data.Shapes(split, task, size=size, points=64) for split, size in (("train", 16), ("val", 24))}
    return [
        data.Loader(dataset, batch_size=8, transform=data.Prepare(), shuffle=split == "train")
        for split, dataset in made.items()
    ]


def trainer(task, out, hooks=(), epochs=2, **options):
    training, validation = loaders(task)
    torch.manual_seed(1)
    categories = {"categories": 12} if task == "segmentation" else {}
    network = models.build("pointnet2", task=task, classes=len(training.dataset.classes), width=0.125, **categories)
    config = TrainConfig(epochs=epochs, accelerator="cpu", tensorboard=False)
    return Trainer(network, training, validation, config, out=out, hooks=hooks, **options)


def finished_runs(path):
    """Train a small network for each task, in a folder of its name, without figures, which take longest."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("curves", "results"):
            patch.setattr(Report, name, lambda self, **_: None)
        for task in TASKS:
            trainer(task, path / task).fit()
    return path

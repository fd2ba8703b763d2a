"""Small network and data for tests of training."""

import multiprocessing

import numpy as np
import torch
from torch import nn

from pointgrad import data

# Forked from a process that has imported everything: imports take longer than the training of these tests.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.support.tiny", "lightning_fabric", "pointgrad.cli.train", "torch._dynamo"])


class Tiny(nn.Module):
    """Small PointNet: an MLP per point, a maximum per cloud for classification, and a linear layer."""

    def __init__(self, classes=2, width=8, task="classification", dropout=0.0):
        super().__init__()
        self.config = {"name": "tiny", "classes": classes, "width": width, "task": task}
        self.first = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width))
        self.last = nn.Sequential(nn.Dropout(dropout), nn.Linear(width, classes))

    def forward(self, points, features=None, *, offsets=None, category=None):
        features = self.first(points)
        if self.config["task"] == "classification":
            if offsets is None:
                features = features.amax(1)
            else:
                features = torch.stack([cloud.amax(0) for cloud in features.split(offsets.diff().tolist())])
        return self.last(features)


def arrays(clouds=24, points=16, classes=2, seed=0, task="classification"):
    """Return balls and flattened balls, which a small network can learn to distinguish."""
    rng = np.random.default_rng(seed)
    label = np.arange(clouds) % classes
    cloud = rng.normal(size=(clouds, points, 3)).astype(np.float32)
    cloud[..., 2] *= (1 / (1 + label))[:, None]
    if task == "segmentation":
        label = (cloud[..., 0] > 0).astype(np.int64)
    return {"points": cloud, "label": label, "classes": np.array([f"kind {number}" for number in range(classes)])}


def loaders(batch_size=4, *, clouds=24, task="classification", val=True, **options):
    """Return loaders for training and validation."""
    prepare = data.Prepare()
    made = {split: data.Arrays(arrays(clouds, seed=seed, task=task)) for split, seed in (("train", 0), ("val", 1))}
    training = data.Loader(made["train"], batch_size=batch_size, transform=prepare, shuffle=True, **options)
    return training, data.Loader(made["val"], batch_size=batch_size, transform=prepare, **options) if val else None

"""Optimizers, the schedule of the learning rate, and the running mean of the weights."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .config import TrainConfig
from .weights import local_tensors


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Norms and biases, which are one-dimensional, do not decay. Fused on a GPU, so that nothing waits."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError(f"model must have parameters to train, got {type(model).__name__} without any")
    groups: list[dict[str, Any]] = [
        {"params": [each for each in parameters if each.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [each for each in parameters if each.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    # Fabric does not clip gradients that a fused optimizer would unscale itself.
    fused = all(parameter.is_cuda for parameter in parameters) and not (config.precision == "fp16" and config.clip > 0)
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            groups, lr=config.lr, momentum=config.momentum, nesterov=config.momentum > 0, fused=fused
        )
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=config.lr, fused=fused)


def learning_rate(config: TrainConfig, update: int, updates_per_epoch: int) -> float:
    """The learning rate of an update, counted from 0. A function of the count, so there is nothing to save.

    >>> config = pointgrad.train.TrainConfig(epochs=10, lr=1.0, warmup_epochs=1)
    >>> [round(learning_rate(config, update, 2), 3) for update in (0, 1, 2, 11, 19)]
    [0.5, 1.0, 1.0, 0.5, 0.008]
    """
    warmup = round(min(config.warmup_epochs, config.epochs / 10) * updates_per_epoch)
    if update < warmup:
        return config.lr * (update + 1) / warmup
    if config.schedule == "cosine":
        done = (update - warmup) / max(config.epochs * updates_per_epoch - warmup, 1)
        return config.lr * (1 + math.cos(math.pi * done)) / 2
    if config.schedule == "step":
        return config.lr * config.step_factor ** (update // (config.step_epochs * updates_per_epoch))
    return config.lr


def class_weights(config: TrainConfig, dataset: Any, classes: int) -> Tensor | None:
    """(classes,) what each class counts, with mean 1 over those that occur; None: all the same. Reads all data once."""
    if config.class_weights == "none":
        return None
    counts = torch.zeros(classes)
    for index in range(len(dataset)):
        with contextlib.suppress(ValueError, OSError):  # the loader reports what cannot be read
            cloud = dataset[index]
            labels = cloud.labels if cloud.labels is not None else torch.tensor([cloud.label])
            counts += torch.bincount(labels[labels >= 0], minlength=classes)
    share = counts / counts.sum()
    weights = 1 / (share.sqrt() if config.class_weights == "sqrt" else share)
    weights[counts == 0] = 0.0
    return weights / weights[counts > 0].mean()


class EMA:
    """A running mean of all floating weights and buffers: mean += (1 - decay) * (weights - mean).

    The decay rises to its value over the first updates, min(decay, (1 + n) / (10 + n)), so that the random start is
    soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._current = [tensor for tensor in local_tensors(model) if tensor.is_floating_point()]
        self._mean = [tensor.clone() for tensor in self._current]

    @torch.no_grad()
    def update(self, updates: int) -> None:
        """updates: how many there were before."""
        decay = min(self.decay, (1 + updates) / (10 + updates))
        torch._foreach_lerp_(self._mean, self._current, 1 - decay)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the mean weights inside."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def restart(self) -> None:
        """The mean is what the weights are now."""
        torch._foreach_copy_(self._mean, self._current)

    @torch.no_grad()
    def _swap(self) -> None:
        kept = [tensor.clone() for tensor in self._current]
        torch._foreach_copy_(self._current, self._mean)
        torch._foreach_copy_(self._mean, kept)

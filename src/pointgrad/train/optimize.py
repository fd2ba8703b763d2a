"""Optimizers, learning-rate schedules, class weights, and the moving average of the weights."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .config import TrainConfig
from .weights import local_tensors


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Create the optimizer: no weight decay for norms and biases, which are one-dimensional; fused on a GPU."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError(f"model must have trainable parameters, got {type(model).__name__} without any")
    groups: list[dict[str, Any]] = [
        {"params": [each for each in parameters if each.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [each for each in parameters if each.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    # Fabric cannot clip gradients that a fused optimizer unscales itself.
    fused = all(parameter.is_cuda for parameter in parameters) and not (config.precision == "fp16" and config.clip > 0)
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            groups, lr=config.lr, momentum=config.momentum, nesterov=config.momentum > 0, fused=fused
        )
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=config.lr, fused=fused)


def learning_rate(config: TrainConfig, update: int, updates_per_epoch: int) -> float:
    """Return the learning rate of an update.

    It depends only on the number of the update, so that a checkpoint need not hold a scheduler.

    Args:
        config: Settings of the schedule.
        update: Number of the update, from 0.
        updates_per_epoch: Updates per epoch.

    Example:
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
    """Return the weight of each class, (classes,), with mean 1 over classes that occur; None if all are equal.

    Reads all data once. A data set that repeats every cloud in a row has the attribute `times`.
    """
    if config.class_weights in ("auto", "none"):
        return None
    counts = torch.zeros(classes)
    for index in range(0, len(dataset), getattr(dataset, "times", 1)):
        with contextlib.suppress(ValueError, OSError):  # the loader reports unreadable samples
            cloud = dataset[index]
            labels = cloud.labels if cloud.labels is not None else torch.tensor([cloud.label])
            counts += torch.bincount(labels[labels >= 0], minlength=classes)
    share = counts / counts.sum()
    weights = 1 / (share.sqrt() if config.class_weights == "sqrt" else share)
    weights[counts == 0] = 0.0
    return weights / weights[counts > 0].mean()


class EMA:
    """Exponential moving average of all floating-point weights and buffers: mean += (1 - decay) * (weights - mean).

    During the first updates the decay is smaller, min(decay, (1 + n) / (10 + n)), so that the random initialization
    loses its weight quickly.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._current = [tensor for tensor in local_tensors(model) if tensor.is_floating_point()]
        self._mean = [tensor.clone() for tensor in self._current]

    @torch.no_grad()
    def update(self, updates: int) -> None:
        """Include the current weights. `updates`: number of updates before this one."""
        decay = min(self.decay, (1 + updates) / (10 + updates))
        torch._foreach_lerp_(self._mean, self._current, 1 - decay)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the average weights inside the context."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def restart(self) -> None:
        """Set the average to the current weights."""
        torch._foreach_copy_(self._mean, self._current)

    @torch.no_grad()
    def _swap(self) -> None:
        kept = [tensor.clone() for tensor in self._current]
        torch._foreach_copy_(self._current, self._mean)
        torch._foreach_copy_(self._mean, kept)

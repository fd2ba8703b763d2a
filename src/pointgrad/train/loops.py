"""Training loops: one update, one epoch of training, one evaluation."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pointgrad.data import Batch
from pointgrad.data.mixing import mix
from pointgrad.functional import cross_entropy

from .metrics import Metrics, check_labels, clouds_of


class Objective(Protocol):
    """Loss function as a sum over labelled items and the divisor of that sum."""

    def total(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the sum of the losses. logits: (M, C). target: (M,), -1 where there is no label."""

    def weight(self, target: Tensor) -> Tensor:
        """Return the divisor of the sum: the number of labelled items, or the sum of their weights."""


@dataclass
class CrossEntropy:
    """Cross entropy over the labelled items.

    Attributes:
        weights: (C,) weight of each class; None for equal weights.
        smoothing: Label smoothing, in [0, 1].

    Example:
        >>> objective = CrossEntropy()
        >>> objective.total(torch.zeros(3, 2), torch.tensor([1, -1, 0])), objective.weight(torch.tensor([1, -1, 0]))
        (tensor(1.3863), tensor(2.))
    """

    weights: Tensor | None = None
    smoothing: float = 0.0

    def total(self, logits: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(
            logits, target, self._weights(target), ignore_index=-1, reduction="sum", label_smoothing=self.smoothing
        )

    def weight(self, target: Tensor) -> Tensor:
        labelled, weights = target >= 0, self._weights(target)
        if weights is None:
            return labelled.sum().float()
        return torch.where(labelled, weights[target.clamp(min=0)], 0.0).sum()

    def _weights(self, target: Tensor) -> Tensor | None:
        if self.weights is not None and self.weights.device != target.device:
            self.weights = self.weights.to(target.device)
        return self.weights


def train_epoch(
    model: nn.Module,
    loader: Iterable[Batch],
    optimizer: torch.optim.Optimizer,
    *,
    classes: int,
    objective: Objective | None = None,
    accumulate: int = 1,
    clip: float = 0.0,
) -> Metrics:
    """Train on every batch once.

    Args:
        model: Called as `model(**batch.inputs())`; the modes of its layers are restored.
        loader: Batches.
        optimizer: Optimizer of the model.
        classes: Number of classes.
        objective: Loss; by default `CrossEntropy()`.
        accumulate: Batches per update, which equals that of one batch with all of them.
        clip: Maximum norm of the gradient; 0 disables clipping.

    Returns:
        Metrics over all batches.

    Example:
        >>> batch = pointgrad.data.collate([pointgrad.data.Cloud(torch.rand(8, 3), label=0)])
        >>> class Mean(torch.nn.Linear):
        ...     def forward(self, points, features):
        ...         return super().forward(points.mean(1))
        >>> model = Mean(3, 2)
        >>> metrics = train_epoch(model, [batch] * 5, torch.optim.SGD(model.parameters(), 0.1), classes=2)
        >>> int(metrics.confusion.sum())
        5
    """
    device = device_of(model)
    metrics, objective = Metrics(classes, device=device), objective or CrossEntropy()
    with mode(model, training=True):
        for batches in chunks(loader, accumulate):
            usable = [to_device(batch, device, classes) for batch in batches if len(batch)]
            if usable:
                train_step(model, usable, optimizer, objective, metrics, clip=clip)
    return metrics


def train_step(
    model: nn.Module,
    batches: Sequence[Batch],
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    metrics: Metrics,
    *,
    fabric: Any = None,
    clip: float = 0.0,
    extra_loss: Any = None,
) -> Tensor:
    """Update the model once for several batches, as for one batch that holds them all, without waiting for the device.

    Args:
        model: Called as `model(**batch.inputs())`.
        batches: Batches on the device.
        optimizer: Optimizer of the model.
        objective: Loss.
        metrics: Receives predictions and losses.
        fabric: With several processes, the update uses the batches of all of them.
        clip: Maximum norm of the gradient; 0 disables clipping.
        extra_loss: Called after each forward pass; its result is added to the mean loss.

    Returns:
        Mean loss of the batches of this process, a scalar on the device.
    """
    optimizer.zero_grad(set_to_none=True)
    weights = torch.stack([objective.weight(_target(batch)) for batch in batches])
    total, world = weights.sum(), 1
    if fabric is not None and fabric.world_size > 1:
        # Gradients are averaged over processes: scale each process by its share of the items.
        torch.distributed.all_reduce(total)  # fabric.all_reduce would wait for the device
        world = fabric.world_size
    share = world / total.clamp(min=1e-12)
    summed = torch.zeros_like(total)
    for number, batch in enumerate(batches):
        last = number == len(batches) - 1
        synchronized = contextlib.nullcontext() if fabric is None else fabric.no_backward_sync(model, enabled=not last)
        with synchronized:
            logits = model(**batch.inputs())
            target = _target(batch)
            loss = objective.total(logits.reshape(-1, logits.shape[-1]), target)
            metrics.add(logits, target, batch)
            metrics.add_loss(loss, weights[number])
            summed += loss.detach()
            if extra_loss is not None:
                loss = loss + extra_loss() * weights[number]
            (fabric.backward if fabric is not None else torch.Tensor.backward)(loss * share)
    if clip > 0 and fabric is not None:
        fabric.clip_gradients(model, optimizer, max_norm=clip, error_if_nonfinite=False)
    elif clip > 0:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return summed / weights.sum().clamp(min=1e-12)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: Iterable[Batch],
    *,
    classes: int,
    parts: Sequence[Sequence[int]] = (),
    objective: Objective | None = None,
    fabric: Any = None,
    votes: int = 1,
    seed: int = 0,
    see: Callable[[Batch, Tensor], None] | None = None,
) -> Metrics:
    """Evaluate a model without gradients, in evaluation mode; the modes of its layers are restored.

    Args:
        model: Called as `model(**batch.inputs())`.
        loader: Batches.
        classes: Number of classes.
        parts: For part segmentation, the classes of each category, as in `Metrics`.
        objective: Loss; by default `CrossEntropy()`.
        fabric: With several processes, each evaluates its own batches, and all return the sum.
        votes: Number of predictions per cloud, whose probabilities are averaged: one of the unchanged cloud, the others
            with every axis scaled randomly by 2/3 to 3/2.
        seed: Random seed of the scales.
        see: Called with each batch, on the device, and its logits.

    Returns:
        Metrics over all data.

    Example:
        >>> batch = pointgrad.data.collate([pointgrad.data.Cloud(torch.ones(8, 3), label=2)])
        >>> class Sum(torch.nn.Module):
        ...     def forward(self, points, features):
        ...         return points.sum(1)
        >>> evaluate(Sum(), [batch], classes=3).compute()["accuracy"]
        0.0
    """
    device = device_of(model)
    metrics, objective = Metrics(classes, parts, device), objective or CrossEntropy()
    with mode(model, training=False):
        spare: Batch | None = None
        for number, batch in enumerate(loader):
            if len(batch):
                spare = batch = to_device(batch, device, classes)
            elif fabric is None or fabric.world_size == 1:
                continue
            else:
                batch = unlabelled(spare)
            logits = model(**batch.inputs())
            if votes > 1:
                logits = _voted(model, batch, logits, votes, mix(seed, number))
            target = _target(batch)
            metrics.add(logits, target, batch)
            metrics.add_loss(objective.total(logits.reshape(-1, logits.shape[-1]), target), objective.weight(target))
            if see is not None:
                see(batch, logits)
    if fabric is not None:
        gather(metrics, fabric)
    return metrics


def _voted(model: nn.Module, batch: Batch, logits: Tensor, votes: int, seed: int) -> Tensor:
    """Return the logarithm of the mean probability over all votes."""
    generator = torch.Generator().manual_seed(seed)
    mean = logits.softmax(-1)
    cloud = clouds_of(batch)
    for _ in range(votes - 1):
        scale = 1.5 ** (2 * torch.rand(len(batch), 3, generator=generator) - 1)
        scaled = replace(batch, points=batch.points * scale.to(batch.points.device)[cloud])
        mean = mean + model(**scaled.inputs()).softmax(-1)
    return (mean / votes).log()


def gather(metrics: Metrics, fabric: Any) -> None:
    """Replace the counts of every process by their sum. Collective: call on every rank."""
    if fabric.world_size > 1:
        for value in metrics.state_dict().values():
            torch.distributed.all_reduce(value)


@contextlib.contextmanager
def mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Set training or evaluation mode, and restore the mode of every layer afterwards."""
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, was in before:
            module.training = was


def chunks(loader: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """Yield lists of `size` batches; the last may be shorter."""
    batches = iter(loader)
    while chunk := list(islice(batches, size)):
        yield chunk


def to_device(batch: Batch, device: torch.device | str, classes: int) -> Batch:
    """Move a batch to the device, after checking its labels on the host, where that does not wait."""
    check_labels(_target(batch), classes)
    return batch.to(device)


def unlabelled(batch: Batch | None) -> Batch:
    """Return a batch without labels, for a process that has no batch left while others still have one."""
    if batch is None:
        raise ValueError("data must have at least one sample per process in the first batch, got fewer")
    return replace(batch, target=torch.full_like(_target(batch), -1))


def device_of(model: nn.Module) -> torch.device:
    return next((tensor.device for tensor in model.parameters()), torch.device("cpu"))


def seed_generators(device: torch.device, *numbers: int) -> None:
    """Seed torch's generators of the CPU and of one device.

    `torch.manual_seed` also seeds devices that are not in use, which is too slow for every step.
    """
    seed = mix(*numbers)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


def _target(batch: Batch) -> Tensor:
    if batch.target is None:
        raise ValueError("batch must have labels, got none: the data set contains clouds without labels")
    return batch.target

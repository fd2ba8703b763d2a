"""The loops: one update, one epoch of training, one evaluation. Everything larger is made of these."""

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
    """What is minimised: a sum over labelled items, and what that sum is divided by."""

    def total(self, logits: Tensor, target: Tensor) -> Tensor:
        """The sum of the losses. logits: (M, C). target: (M,), -1 where there is no label."""

    def weight(self, target: Tensor) -> Tensor:
        """What the sum is a sum of: the number of labelled items, or the sum of their weights."""


@dataclass
class CrossEntropy:
    """Cross entropy over the labelled items. weights: (C,), what each class counts. smoothing: in [0, 1].

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
    """Trains on every batch once, and returns the metrics over all of them.

    model: called as `model(**batch.inputs())`; left in training or evaluation mode as it was found.
    accumulate: batches per update, which then is that of one batch holding them all.
    clip: largest norm of the gradient; 0: any.

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
            there = [to_device(batch, device, classes) for batch in batches if len(batch)]
            if there:
                train_step(model, there, optimizer, objective, metrics, clip=clip)
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
    """One update by several batches, as by one that holds them all; with fabric, those of all processes. Nothing waits.

    extra_loss: called after each forward pass; what it returns is added to the mean loss.
    returns: the mean loss of this process's batches, a scalar on the device.
    """
    optimizer.zero_grad(set_to_none=True)
    weights = torch.stack([objective.weight(_target(batch)) for batch in batches])
    total, world = weights.sum(), 1
    if fabric is not None and fabric.world_size > 1:
        # Gradients are averaged over processes: so that each item counts the same, a process with fewer counts less.
        torch.distributed.all_reduce(total)  # fabric's own would wait for the device
        world = fabric.world_size
    share = world / total.clamp(min=1e-12)
    summed = torch.zeros_like(total)
    for number, batch in enumerate(batches):
        last = number == len(batches) - 1
        together = contextlib.nullcontext() if fabric is None else fabric.no_backward_sync(model, enabled=not last)
        with together:
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
    """Metrics over all data, without gradients and in evaluation mode; the model is left in the modes it was found in.

    parts: as for `Metrics`. fabric: with it, each process sees its own batches and all return the sum.
    votes: how often each cloud is seen, the first time as it is, then scaled at random along each axis by 2/3 to 3/2;
        the mean of the probabilities decides. seed: of these scales.
    see: called with each batch, on the device, and its logits.

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
    """The logarithm of the mean probability over all votes."""
    generator = torch.Generator().manual_seed(seed)
    mean = logits.softmax(-1)
    cloud = clouds_of(batch)
    for _ in range(votes - 1):
        scale = 1.5 ** (2 * torch.rand(len(batch), 3, generator=generator) - 1)
        scaled = replace(batch, points=batch.points * scale.to(batch.points.device)[cloud])
        mean = mean + model(**scaled.inputs()).softmax(-1)
    return (mean / votes).log()


def gather(metrics: Metrics, fabric: Any) -> None:
    """Adds up what all processes counted; all then hold the sum."""
    if fabric.world_size > 1:
        for value in metrics.state_dict().values():
            torch.distributed.all_reduce(value)


@contextlib.contextmanager
def mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Training or evaluation mode; afterwards every layer is in its own mode again, also after an error."""
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, was in before:
            module.training = was


def chunks(loader: Iterable[Batch], size: int) -> Iterator[list[Batch]]:
    """Lists of so many batches; the last may be shorter."""
    batches = iter(loader)
    while chunk := list(islice(batches, size)):
        yield chunk


def to_device(batch: Batch, device: torch.device | str, classes: int) -> Batch:
    """The batch where the model is. Labels are looked at before, on the host, where that costs no wait."""
    check_labels(_target(batch), classes)
    return batch.to(device)


def unlabelled(batch: Batch | None) -> Batch:
    """A batch that counts nothing, for a process that has none left while others, with which it works, have."""
    if batch is None:
        raise ValueError("data must have a sample for each process in the first batch, got fewer")
    return replace(batch, target=torch.full_like(_target(batch), -1))


def device_of(model: nn.Module) -> torch.device:
    return next((tensor.device for tensor in model.parameters()), torch.device("cpu"))


def seed_generators(device: torch.device, *numbers: int) -> None:
    """Seeds torch's generators of the CPU and of the device. `torch.manual_seed` also asks devices that are not used,
    and remembers each call for those that were never started: too slow and too much for every step."""
    seed = mix(*numbers)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


def _target(batch: Batch) -> Tensor:
    if batch.target is None:
        raise ValueError("batch must have labels, got none: the data set has clouds without them")
    return batch.target

"""Training loops: one update, one epoch of training, one evaluation."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from pointgrad.data import Batch
from pointgrad.data.mixing import mix
from pointgrad.functional import cross_entropy

from .metrics import Metrics, check_labels, clouds_of

AnyBatch = TypeVar("AnyBatch", bound="Batch | Pair")


class Objective(Protocol):
    """Loss function as a sum over labelled items and the divisor of that sum."""

    def total(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the sum of the losses. logits: (M, C). target: (M,), -1 where there is no label."""

    def weight(self, target: Tensor) -> Tensor:
        """Return the divisor of the sum: the number of labelled items, or the sum of their weights."""


@dataclass(frozen=True)
class Pair:
    """A batch (X, y) of a plain `DataLoader`: positional arguments of the model, and integer labels."""

    arguments: tuple[Tensor, ...]
    target: Tensor

    def __len__(self) -> int:
        return len(self.target)

    def to(self, device: torch.device | str) -> "Pair":
        """Move the batch to a device."""
        *arguments, target = (tensor.to(device, non_blocking=True) for tensor in (*self.arguments, self.target))
        return Pair(tuple(arguments), target)


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
    loader: Iterable[Batch | Sequence[Any]],
    optimizer: torch.optim.Optimizer,
    *,
    classes: int,
    objective: Objective | None = None,
    accumulate: int = 1,
    clip: float = 0.0,
) -> Metrics:
    """Train on every batch once.

    Args:
        model: Called as `model(**batch.inputs())`, or `model(X)`; returns logits (..., classes). The modes of its
            layers are restored.
        loader: Batches, or pairs (X, y) as of a plain `DataLoader`: `X` is a tensor, or a tuple of tensors, the
            arguments of the model; `y` are integer labels, one per row of logits, -1 where there is no label.
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
            usable = [to_device(batch, device, classes) for batch in map(_batch, batches) if len(batch)]
            if usable:
                train_step(model, usable, optimizer, objective, metrics, clip=clip)
    return metrics


def train_step(
    model: nn.Module,
    batches: Sequence[Batch | Pair],
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
            logits = _logits(model, batch, metrics.classes)
            target = _target(batch)
            loss = objective.total(logits.reshape(-1, logits.shape[-1]), target)
            metrics.add(logits, target, _cloud_batch(batch))
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
    loader: Iterable[Batch | Sequence[Any]],
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
        model: Called as `model(**batch.inputs())`, or `model(X)`, as in `train_epoch`.
        loader: Batches, or pairs (X, y), as in `train_epoch`.
        classes: Number of classes.
        parts: For part segmentation, the classes of each category, as in `Metrics`.
        objective: Loss; by default `CrossEntropy()`.
        fabric: With several processes, each evaluates its own batches, and all return the sum.
        votes: Number of predictions per cloud, whose probabilities are averaged: one of the unchanged cloud, the others
            with every axis scaled randomly by 2/3 to 3/2. Must be 1 for pairs (X, y).
        seed: Random seed of the scales.
        see: Called with each `Batch`, on the device, and its logits; not with pairs (X, y).

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
        spare: Batch | Pair | None = None
        for number, batch in enumerate(map(_batch, loader)):
            if len(batch):
                spare = batch = to_device(batch, device, classes)
            elif fabric is None or fabric.world_size == 1:
                continue
            else:
                batch = unlabelled(spare)
            logits = _logits(model, batch, classes)
            clouds, target = _cloud_batch(batch), _target(batch)
            if votes > 1:
                if clouds is None:
                    raise ValueError(f"votes must be 1 for batches (X, y), whose points are not known, got {votes}")
                logits = _voted(model, clouds, logits, votes, mix(seed, number))
            metrics.add(logits, target, clouds)
            metrics.add_loss(objective.total(logits.reshape(-1, logits.shape[-1]), target), objective.weight(target))
            if see is not None and clouds is not None:
                see(clouds, logits)
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


def chunks(loader: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield lists of `size` batches; the last may be shorter."""
    batches = iter(loader)
    while chunk := list(islice(batches, size)):
        yield chunk


def to_device(batch: AnyBatch, device: torch.device | str, classes: int) -> AnyBatch:
    """Move a batch to the device, after checking its labels on the host, where that does not wait."""
    check_labels(_target(batch), classes)
    return batch.to(device)  # type: ignore[return-value]  # the type checker takes a union for both classes


def unlabelled(batch: AnyBatch | None) -> AnyBatch:
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


def _batch(value: Any) -> Batch | Pair:
    """A batch of a loader: a `Batch`, or a pair (X, y)."""
    if isinstance(value, Batch):
        return value
    if not isinstance(value, list | tuple) or len(value) != 2:
        got = f"{len(value)} values" if isinstance(value, list | tuple) else type(value).__name__
        raise TypeError(f"loader must return batches of type pointgrad.data.Batch, or pairs (X, y), got {got}")
    x, y = value
    arguments = tuple(x) if isinstance(x, list | tuple) else (x,)
    for each in (*arguments, y):
        if not isinstance(each, Tensor):
            raise TypeError(f"X and y of a batch must be tensors, got {type(each).__name__}")
    if y.is_floating_point() or y.is_complex():
        raise TypeError(f"labels y must be integers, got {y.dtype}")
    if not y.dim() or not arguments or not arguments[0].dim() or len(arguments[0]) != len(y):
        shapes = ", ".join(str(tuple(each.shape)) for each in arguments)
        raise ValueError(
            f"X and y must have the same first dimension, got shapes {shapes or '()'} and {tuple(y.shape)}"
        )
    return Pair(arguments, y.reshape(-1).long())


def _cloud_batch(batch: Batch | Pair) -> Batch | None:
    return batch if isinstance(batch, Batch) else None


def _logits(model: nn.Module, batch: Batch | Pair, classes: int) -> Tensor:
    logits = model(*batch.arguments) if isinstance(batch, Pair) else model(**batch.inputs())
    if logits.shape[-1] != classes:
        raise ValueError(f"the model must return logits (..., {classes}), got {tuple(logits.shape)}")
    return logits


def _target(batch: Batch | Pair) -> Tensor:
    if batch.target is None:
        raise ValueError("batch must have labels, got none: the data set contains clouds without labels")
    return batch.target

"""Classification of whole clouds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pointgrad.data import Cloud, DropInvalid, collate
from pointgrad.predict.labels import MAX_POINTS, VOTES, check_task
from pointgrad.predict.voting import device_of, evaluating
from pointgrad.train import Trained


class Classes(NamedTuple):
    """Predicted classes of B clouds.

    Attributes:
        labels: Class of each cloud (B,), int64.
        probabilities: Mean probability of each class over all votes (B, classes), float32.
    """

    labels: Tensor
    probabilities: Tensor


def classify(trained: Trained, clouds: Sequence[Cloud], *, votes: int = VOTES, max_points: int = MAX_POINTS) -> Classes:
    """Predict the class of each cloud with a network trained for classification.

    Points with non-finite coordinates are removed first.

    Args:
        trained: The network.
        clouds: B clouds.
        votes: Number of predictions for each cloud, with different points, if the network was trained on clouds sampled
            to a fixed number of points. Their probabilities are averaged.
        max_points: Number of points in one call of the network, unless a single cloud has more.

    Returns:
        Classes (B,) and probabilities (B, classes).

    Raises:
        ValueError: If the network has a different task, features are missing, or a cloud has no finite point.

    Example:
        >>> from types import SimpleNamespace
        >>> from pointgrad.data import Prepare
        >>> class Flat(torch.nn.Module):
        ...     def forward(self, points, features=None, **where):
        ...         height = points[..., 2].abs().amax(1)
        ...         return torch.stack([-height, height - 0.1], dim=-1)
        >>> trained = SimpleNamespace(model=Flat(), task="classification", classes=("flat", "not"), prepare=Prepare())
        >>> flat = Cloud(torch.tensor([[0., 0., 0.], [1., 0., 0.]]))
        >>> classify(trained, [flat, Cloud(torch.eye(3)[:2].flip(1))]).labels
        tensor([0, 1])
    """
    check_task(trained, "classification")
    device = device_of(trained.model)
    samples = votes if trained.prepare.points else 1
    finite = [replace(DropInvalid()(cloud, torch.Generator()), category=None) for cloud in clouds]
    wanted = [(number, vote) for number in range(len(finite)) for vote in range(samples)]
    logits: list[Tensor] = []
    batch: list[Cloud] = []
    for number, vote in wanted:
        prepared = trained.prepare(finite[number], torch.Generator().manual_seed(vote))
        if batch and sum(map(len, batch)) + len(prepared) > max_points:
            logits.append(_forward(trained, batch, device))
            batch = []
        batch.append(prepared)
    if batch:
        logits.append(_forward(trained, batch, device))
    size = len(trained.classes)
    probabilities = torch.cat([torch.zeros(0, size), *logits]).view(len(clouds), samples, size).mean(1)
    return Classes(probabilities.argmax(1), probabilities)


def _forward(trained: Trained, clouds: Sequence[Cloud], device: torch.device) -> Tensor:
    """Compute class probabilities (B, classes), on the CPU."""
    batch = collate(clouds, trained.prepare.features).to(device)
    with evaluating(trained.model):
        return trained.model(**batch.inputs()).float().softmax(1).cpu()

"""Figures over all data: accuracy, mean class accuracy, mean intersection over union, loss."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pointgrad.data import Batch
from pointgrad.ops.scatter import histogram


class Metrics:
    """Sums over batches, kept where the batches are; nothing is read from a GPU before `compute`.

    classes: how many. parts: for part segmentation, the classes that belong to each category: a prediction is then the
    best class of its cloud's own category, and the mean IoU of clouds is kept as the ShapeNetPart benchmark reports it.

    >>> metrics = Metrics(2)
    >>> metrics.add(torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 1.0]]), torch.tensor([0, 1, 1]))
    >>> metrics.confusion
    tensor([[1, 0],
            [1, 1]])
    >>> round(metrics.compute()["accuracy"], 3)
    0.667
    """

    def __init__(self, classes: int, parts: Sequence[Sequence[int]] = (), device: torch.device | str = "cpu") -> None:
        self.classes, self.parts = classes, parts
        self.confusion = torch.zeros(classes, classes, dtype=torch.int64, device=device)  # row: true, column: predicted
        self._loss = torch.zeros(2, dtype=torch.float64, device=device)  # sum, and the weight it is of
        self._wrong = torch.zeros((), dtype=torch.int64, device=device)  # labels out of range
        self._parts = torch.zeros(len(parts), classes, dtype=torch.bool, device=device)
        for category, own in enumerate(parts):
            self._parts[category, list(own)] = True
        self._iou = torch.zeros(2, len(parts), dtype=torch.float64, device=device)  # sum, and number of clouds

    def add(self, logits: Tensor, target: Tensor, batch: Batch | None = None) -> None:
        """Counts predictions. logits: (..., classes). target: as many classes, -1 where there is none.

        batch: needed for part segmentation only, to know which points are one cloud, and its category.
        """
        logits, target = logits.detach().reshape(-1, self.classes), target.reshape(-1).long()
        if target.shape[0] != logits.shape[0]:
            raise ValueError(f"target must have {logits.shape[0]} labels like the logits, got {target.shape[0]}")
        check_labels(target, self.classes)
        counted = (target >= 0) & (target < self.classes)
        if target.device.type != "cpu":  # looked at later, when the device is waited for anyway
            self._wrong += ((target != -1) & ~counted).sum()
        predicted = self.predict(logits, batch)
        if batch is not None and len(self._parts):
            self._add_clouds(predicted, target, counted, batch)
        cells = torch.where(counted, target * self.classes + predicted, -1)
        self.confusion += histogram(cells, self.classes**2).view_as(self.confusion)

    def predict(self, logits: Tensor, batch: Batch | None = None) -> Tensor:
        """(M,) the best class of each row; for part segmentation, of those that its cloud's category has."""
        return self.scores(logits, batch).argmax(1)

    def scores(self, logits: Tensor, batch: Batch | None = None) -> Tensor:
        """(M, classes) the logits; for part segmentation, -infinity where a class is not of its cloud's category."""
        logits = logits.reshape(-1, self.classes)
        if len(self._parts):
            if batch is None or batch.category is None:
                raise ValueError("batch must have the category of each cloud for part segmentation, got none")
            logits = logits.masked_fill(~self._parts[batch.category][clouds_of(batch)], -torch.inf)
        return logits

    def add_loss(self, total: Tensor, weight: Tensor) -> None:
        """Adds a sum of losses, and the sum of the weights it is of."""
        self._loss += torch.stack([total.detach().double(), weight.double()])

    def _add_clouds(self, predicted: Tensor, target: Tensor, counted: Tensor, batch: Batch) -> None:
        assert batch.category is not None
        allowed = self._parts[batch.category]  # (B, classes)
        cloud = clouds_of(batch)

        def per_cloud(classes: Tensor, kept: Tensor) -> Tensor:
            cells = torch.where(kept, cloud * self.classes + classes, -1)
            return histogram(cells, len(batch) * self.classes).view(len(batch), self.classes).double()

        both = per_cloud(target, counted & (predicted == target))
        either = per_cloud(target, counted) + per_cloud(predicted, counted) - both
        iou = torch.where(either > 0, both / either.clamp(min=1), 1.0)  # a part that is nowhere, and not predicted
        mean = (iou * allowed).sum(1) / allowed.sum(1)
        has_labels = per_cloud(target, counted).sum(1) > 0
        mean = torch.where(has_labels, mean, 0.0)
        self._iou[0].index_add_(0, batch.category, mean)
        self._iou[1].index_add_(0, batch.category, has_labels.double())

    def compute(self) -> dict[str, float]:
        """The figures by name, in [0, 1]; what nothing is known about is NaN. Waits for the device.

        accuracy: the share of labelled items that are right. class_accuracy: the mean over classes that occur of the
        share that is right. miou: the mean over classes that occur or are predicted of intersection over union.
        loss: the weighted mean, if losses were added. instance_miou, category_miou (part segmentation): the mean over
        clouds of the mean over the parts of their category; and the mean over categories of that.
        """
        wrong = int(self._wrong)
        if wrong:
            raise ValueError(
                f"labels must be from 0 to {self.classes - 1} for {self.classes} classes, or -1, got {wrong} others"
            )
        table = self.confusion.double().cpu()
        right, true, predicted = table.diag(), table.sum(1), table.sum(0)
        union = true + predicted - right
        figures = {
            "accuracy": (right.sum() / table.sum()).item(),
            "class_accuracy": (right / true)[true > 0].mean().item(),
            "miou": (right / union)[union > 0].mean().item(),
        }
        total, weight = self._loss.tolist()
        if weight > 0:
            figures["loss"] = total / weight
        if self._iou.shape[1]:
            iou, count = self._iou.cpu()
            figures["instance_miou"] = (iou.sum() / count.sum()).item()
            figures["category_miou"] = (iou / count)[count > 0].mean().item()
        return figures

    def per_class(self) -> list[dict[str, float]]:
        """For each class: count of its items, accuracy (NaN if there are none), iou (NaN if also never predicted)."""
        table = self.confusion.double().cpu()
        right, true, predicted = table.diag(), table.sum(1), table.sum(0)
        rows = torch.stack([true, right / true, right / (true + predicted - right)], 1).tolist()
        return [{"count": int(count), "accuracy": accuracy, "iou": iou} for count, accuracy, iou in rows]

    def mean_loss(self) -> Tensor:
        """The weighted mean of the losses so far, a scalar on the device."""
        return self._loss[0] / self._loss[1]

    def state_dict(self) -> dict[str, Tensor]:
        """Everything counted so far."""
        return {"confusion": self.confusion, "loss": self._loss, "wrong": self._wrong, "iou": self._iou}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Counts on from a `state_dict`."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])


def clouds_of(batch: Batch) -> Tensor:
    """(N,): the cloud of each point, counted in the batch."""
    return torch.repeat_interleave(batch.offsets.diff(), output_size=len(batch.points))


def check_labels(target: Tensor, classes: int) -> None:
    """Refuses labels out of range. On the CPU only: a GPU would have to be waited for."""
    if target.device.type == "cpu" and target.numel():
        low, high = (int(value) for value in target.aminmax())
        if low < -1 or high >= classes:
            wrong = high if high >= classes else low
            raise ValueError(
                f"labels must be from 0 to {classes - 1} for {classes} classes, or -1 for none, got {wrong}"
            )

"""Metrics over all data: accuracy, mean class accuracy, mean intersection over union, loss."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pointgrad.data import Batch
from pointgrad.ops.scatter import histogram


class Metrics:
    """Counts over batches, kept on their device; nothing is read from a GPU before `compute`.

    Args:
        classes: Number of classes.
        parts: For part segmentation, the classes of each category. A prediction is then the best class of the cloud's
            own category, and the mean IoU of clouds is computed as in the ShapeNetPart benchmark.
        device: Where the counts are kept.

    Attributes:
        confusion: (classes, classes) counts; rows are true classes, columns predicted ones.

    Example:
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
        self.confusion = torch.zeros(classes, classes, dtype=torch.int64, device=device)
        self._loss = torch.zeros(2, dtype=torch.float64, device=device)  # sum of losses, sum of weights
        self._wrong = torch.zeros((), dtype=torch.int64, device=device)  # number of labels out of range
        self._parts = torch.zeros(len(parts), classes, dtype=torch.bool, device=device)
        for category, own in enumerate(parts):
            self._parts[category, list(own)] = True
        self._iou = torch.zeros(2, len(parts), dtype=torch.float64, device=device)  # sum of IoUs, number of clouds

    def add(self, logits: Tensor, target: Tensor, batch: Batch | None = None) -> None:
        """Count predictions.

        Args:
            logits: (..., classes).
            target: True classes, one per row of logits; -1 where there is no label.
            batch: Clouds and categories of the rows; only needed for part segmentation.

        Raises:
            ValueError: Labels out of range, or a number of labels that does not match. On a GPU, labels out of range
                are reported by `compute`.
        """
        logits, target = logits.detach().reshape(-1, self.classes), target.reshape(-1).long()
        if target.shape[0] != logits.shape[0]:
            raise ValueError(f"target must have {logits.shape[0]} labels like the logits, got {target.shape[0]}")
        check_labels(target, self.classes)
        counted = (target >= 0) & (target < self.classes)
        if target.device.type != "cpu":  # checked in compute, which waits for the device anyway
            self._wrong += ((target != -1) & ~counted).sum()
        predicted = self.predict(logits, batch)
        if batch is not None and len(self._parts):
            self._add_clouds(predicted, target, counted, batch)
        cells = torch.where(counted, target * self.classes + predicted, -1)
        self.confusion += histogram(cells, self.classes**2).view_as(self.confusion)

    def predict(self, logits: Tensor, batch: Batch | None = None) -> Tensor:
        """Return the best class of each row, (M,); for part segmentation, among the classes of the cloud's category."""
        return self.scores(logits, batch).argmax(1)

    def scores(self, logits: Tensor, batch: Batch | None = None) -> Tensor:
        """Return the logits, (M, classes); for part segmentation, -inf for classes of other categories."""
        logits = logits.reshape(-1, self.classes)
        if len(self._parts):
            if batch is None or batch.category is None:
                raise ValueError("batch must have the category of each cloud for part segmentation, got none")
            logits = logits.masked_fill(~self._parts[batch.category][clouds_of(batch)], -torch.inf)
        return logits

    def add_loss(self, total: Tensor, weight: Tensor) -> None:
        """Add a sum of weighted losses and the sum of the weights."""
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
        iou = torch.where(
            either > 0, both / either.clamp(min=1), 1.0
        )  # 1 for a part that neither occurs nor is predicted
        mean = (iou * allowed).sum(1) / allowed.sum(1)
        has_labels = per_cloud(target, counted).sum(1) > 0
        mean = torch.where(has_labels, mean, 0.0)
        self._iou[0].index_add_(0, batch.category, mean)
        self._iou[1].index_add_(0, batch.category, has_labels.double())

    def compute(self) -> dict[str, float]:
        """Compute the metrics. Waits for the device.

        Returns:
            Values in [0, 1], NaN without data: `accuracy`, the fraction of correct labels; `class_accuracy`, its mean
            over classes that occur; `miou`, the mean IoU over classes that occur or are predicted; `loss`, the weighted
            mean, if losses were added. For part segmentation also `instance_miou`, the mean over clouds of the mean
            IoU over the parts of their category, and `category_miou`, the mean over categories of that.

        Raises:
            ValueError: Labels were out of range.
        """
        wrong = int(self._wrong)
        if wrong:
            raise ValueError(
                f"labels must be from 0 to {self.classes - 1} for {self.classes} classes, or -1, "
                f"got {wrong} labels out of range"
            )
        table = self.confusion.double().cpu()
        right, true, predicted = table.diag(), table.sum(1), table.sum(0)
        union = true + predicted - right
        values = {
            "accuracy": (right.sum() / table.sum()).item(),
            "class_accuracy": (right / true)[true > 0].mean().item(),
            "miou": (right / union)[union > 0].mean().item(),
        }
        total, weight = self._loss.tolist()
        if weight > 0:
            values["loss"] = total / weight
        if self._iou.shape[1]:
            iou, count = self._iou.cpu()
            values["instance_miou"] = (iou.sum() / count.sum()).item()
            values["category_miou"] = (iou / count)[count > 0].mean().item()
        return values

    def per_class(self) -> list[dict[str, float]]:
        """Return count, accuracy and IoU of each class; NaN where they are undefined."""
        table = self.confusion.double().cpu()
        right, true, predicted = table.diag(), table.sum(1), table.sum(0)
        rows = torch.stack([true, right / true, right / (true + predicted - right)], 1).tolist()
        return [{"count": int(count), "accuracy": accuracy, "iou": iou} for count, accuracy, iou in rows]

    def mean_loss(self) -> Tensor:
        """Return the weighted mean of the losses, a scalar on the device."""
        return self._loss[0] / self._loss[1]

    def state_dict(self) -> dict[str, Tensor]:
        """Return all counts."""
        return {"confusion": self.confusion, "loss": self._loss, "wrong": self._wrong, "iou": self._iou}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace all counts."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])


def clouds_of(batch: Batch) -> Tensor:
    """Return the index in the batch of each point's cloud, (N,)."""
    return torch.repeat_interleave(batch.offsets.diff(), output_size=len(batch.points))


def check_labels(target: Tensor, classes: int) -> None:
    """Raise ValueError for labels out of range, on the CPU only: a GPU would have to be waited for."""
    if target.device.type == "cpu" and target.numel():
        low, high = (int(value) for value in target.aminmax())
        if low < -1 or high >= classes:
            wrong = high if high >= classes else low
            raise ValueError(
                f"labels must be from 0 to {classes - 1} for {classes} classes, or -1 for no label, got {wrong}"
            )


def parts_of(dataset: Any) -> tuple[tuple[int, ...], ...]:
    """Return the classes of each category for part segmentation, else an empty tuple."""
    return tuple(tuple(own) for own in getattr(dataset, "parts", ()))


def monitored_metric(name: str, task: str, has_parts: bool, has_validation: bool) -> str:
    """Return the column of the history that selects the best epoch."""
    if name == "auto":
        name = "accuracy" if task == "classification" else "instance_miou" if has_parts else "miou"
    if name == "instance_miou" and not has_parts:
        raise ValueError("monitor must not be instance_miou for data without categories")
    return f"{'val' if has_validation else 'train'}_{name}"

"""Description of a training run before it starts: data, features, network, and time of an epoch."""

import copy
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pointgrad.data import Cloud
from pointgrad.data.scaling import columns, with_computed
from pointgrad.errors import one_line
from pointgrad.train import CrossEntropy
from pointgrad.train.display import span
from pointgrad.train.loops import mode
from pointgrad.train.metrics import parts_of

from .evaluate_scans import labels_points
from .learning import SURVEYED, spacing, spread, typical, workers

if TYPE_CHECKING:
    from .train import Train

READ = 128  # clouds of each split that are counted
FORWARD = 1 / 3  # time of a validation step, in training steps


class Inventory:
    """Counts of a split.

    Args:
        dataset: The split.
        features: Names of features whose range is found.

    Attributes:
        total: Number of clouds.
        read: Number of clouds that were counted: at most 128, evenly distributed.
        points: Number of points in them.
        classes: Number of points, or clouds, of each class (classes,).
        unlabelled: Number of points, or clouds, without a class.
        ranges: Lowest and highest finite value of each feature that has any.
        widths: Number of columns of each feature.
        spacings: Distance between neighboring points of the first clouds.
        unreadable: Reasons why clouds could not be read.
    """

    def __init__(self, dataset: Any, features: Sequence[str]) -> None:
        self.total, self.read, self.points, self.unlabelled = len(dataset), 0, 0, 0
        self.classes = torch.zeros(len(dataset.classes), dtype=torch.long)
        self.ranges: dict[str, tuple[float, float]] = {}
        self.widths: dict[str, int] = {}
        self.spacings: list[float] = []
        self.unreadable: list[str] = []
        for index in spread(self.total, READ):
            try:
                self._add(dataset[index], features)
            except (ValueError, OSError) as error:  # noqa: PERF203 (reading takes far longer)
                self.unreadable.append(one_line(error))

    def _add(self, cloud: Cloud, features: Sequence[str]) -> None:
        labels = torch.tensor([-1 if cloud.label is None else cloud.label]) if cloud.labels is None else cloud.labels
        known = labels[labels >= 0]
        self.read, self.points = self.read + 1, self.points + len(cloud)
        self.classes += torch.bincount(known, minlength=len(self.classes))
        self.unlabelled += len(labels) - len(known)
        if self.read <= SURVEYED:
            self.spacings.append(spacing(cloud.points))
        cloud = with_computed(cloud, features)
        for name in features:
            if name in cloud.features:
                self._widen(name, columns(cloud, name))

    def _widen(self, name: str, values: Tensor) -> None:
        self.widths[name] = values.shape[1]
        values = values[values.isfinite()]
        if len(values):
            low, high = self.ranges.get(name, (float("inf"), -float("inf")))
            self.ranges[name] = min(low, float(values.min())), max(high, float(values.max()))

    def describe(self, dataset: Any) -> str:
        """Describe the number of clouds and points."""
        clouds = f"{self.total:,} {'cloud' if self.total == 1 else 'clouds'}"
        if getattr(dataset, "by_area", False):
            clouds = "blocks of one file"
        if self.read == self.total:
            return f"{clouds}, {self.points:,} points"
        if not self.read:
            return f"{clouds}, none of which could be read"
        counted = "could be read" if self.read + len(self.unreadable) == self.total else "were counted"
        return f"{clouds}; {self.points:,} points in the {self.read:,} that {counted}"


def describe(flags: "Train", training: Any, validation: Any, model: nn.Module, labels: str) -> list[str]:
    """Describe what a run is trained on, one line per fact; warnings start with "warning: ".

    Args:
        flags: The flags with all defaults filled in.
        training: Training data.
        validation: Validation data; may be empty.
        model: The network.
        labels: Labels of the files, if they are mapped to classes.

    Raises:
        ValueError: The training data have no labels.
    """
    names = flags.prepare.features
    found = {"train": Inventory(training, names), "val": Inventory(validation, names)}
    if 0 < found["train"].read == found["train"].total and not bool(found["train"].classes.any()):
        raise ValueError(f"{flags.data}: expected labels of {', '.join(training.classes)} in train, found none")
    sets = {"train": training, "val": validation}
    lines = [*labels.splitlines(), *(f"{split}: {each.describe(sets[split])}" for split, each in found.items())]
    lines += _table(training.classes, found)
    lines += missing_classes(training.classes, found)
    lines += unreadable(found, flags.skip_bad)
    lines += _preparation(flags, found["train"])
    lines += describe_features(flags, found["train"])
    count = sum(parameter.numel() for parameter in model.parameters())
    lines.append(f"network: {' '.join([flags.model, *flags.options])}, {count:,} parameters")
    return [*lines, *_validation(flags, validation), *_time(flags, training, validation, model)]


def _table(classes: Sequence[str], found: dict[str, Inventory]) -> list[str]:
    rows = {name: [int(each.classes[number]) for each in found.values()] for number, name in enumerate(classes)}
    unlabelled = [each.unlabelled for each in found.values()]
    if any(unlabelled):
        rows["no class"] = unlabelled
    width = max(map(len, rows))
    head = f"  {'class':{width}}" + "".join(f"{split:>14}" for split in found)
    return [head, *(f"  {name:{width}}" + "".join(f"{count:14,}" for count in row) for name, row in rows.items())]


def missing_classes(classes: Sequence[str], found: dict[str, Inventory]) -> list[str]:
    """Return warnings about classes that are missing in a split."""
    lines = []
    for split, each in found.items():
        missing = [name for name, count in zip(classes, each.classes.tolist(), strict=True) if not count]
        if missing and each.read:
            few = len(missing) == 1
            effect = f"the network cannot learn {'it' if few else 'them'}"
            if split == "val":
                effect = f"validation does not measure {'it' if few else 'them'}"
                if len(missing) == len(classes):
                    effect = "there is nothing to validate, and the last epoch counts as the best"
            if each.read < each.total:
                effect = "the clouds that were not counted may have some"
            lines.append(f"warning: {split} has nothing of {', '.join(missing)}: {effect}")
    if not found["val"].total:
        lines.append("warning: there are no validation data: the training metrics select the best epoch")
    return lines


def unreadable(found: dict[str, Inventory], skipped: bool) -> list[str]:
    """Return warnings about clouds that cannot be read."""
    stages = {"train": "training", "val": "validation"}
    return [
        f"warning: unreadable clouds in {split}: {len(each.unreadable)}, "
        + ("skipped" if skipped else f"an error in {stages[split]}, unless --skip-bad skips them")
        + f"; the first: {each.unreadable[0]}"
        for split, each in found.items()
        if each.unreadable
    ]


def _preparation(flags: "Train", found: Inventory) -> list[str]:
    own = flags.prepare
    steps = [f"points {typical(found.spacings):.3g} apart"]
    if own.voxel:
        steps.append(f"one per voxel of {own.voxel:g}")
    if flags.crop_points:
        steps.append(f"crops of {flags.crop_points:,} points, {flags.samples_per_cloud} of each cloud per epoch")
    elif own.points:
        steps.append(f"{own.points:,} points of each cloud")
    return [f"input: {', '.join(steps)}"]


def describe_features(flags: "Train", found: Inventory) -> list[str]:
    """Describe the range of each feature and how it is scaled; warn about features without values."""
    own = flags.prepare
    if not own.features:
        return ["features: none besides the coordinates"]
    pairs = iter(zip(own.feature_center, own.feature_scale, strict=True))
    texts, lines = [], []
    for name in own.features:
        text = name
        if name in found.ranges:
            low, high = found.ranges[name]
            text += f" {low:.4g} to {high:.4g}"
        elif found.read:
            lines.append(f"warning: {name} has no finite values in train: the network cannot learn from it")
        used = islice(pairs, found.widths.get(name, 0))
        scales = ", ".join(f"{center:.4g} ± {scale:.4g}" for center, scale in used)
        texts.append(f"{text} ({scales})" if scales else text)
    scaled = "scaled by the center ± spread in parentheses" if own.feature_center else "not scaled"
    return [f"features: {', '.join(texts)}; {scaled}", *lines]


def _validation(flags: "Train", validation: Any) -> list[str]:
    if not len(validation) or not labels_points(str(flags.task), parts_of(validation)):
        return []
    seen = f"{flags.samples_per_cloud} random crops of each cloud, the same in all epochs"
    if not flags.crop_points:
        seen = "each cloud, prepared as in training"
    last = "; the last validation of the run is on whole scans" if flags.final_evaluation else ""
    return [f"validation: {seen}{last}"]


def _time(flags: "Train", training: Any, validation: Any, model: nn.Module) -> list[str]:
    """Estimate the seconds of an epoch from the second of two steps of a copy of the network."""
    cuda = flags.accelerator != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    alone = SimpleNamespace(device=device, global_rank=0, world_size=1)
    loader = replace(flags, workers=0).loader(training, alone, training=True)
    state = torch.get_rng_state()
    try:
        network = copy.deepcopy(model).to(device)
        with mode(network, training=True):
            reading, step = _times(network, loader, device)
    except (ValueError, OSError, RuntimeError):  # the same error ends the training, with its own message
        return []
    finally:
        torch.set_rng_state(state)
    processes = workers(flags.workers, device)
    each = max(step, reading / processes) if processes else step + reading
    steps = -(-len(loader) // max(flags.devices * flags.nodes, 1))
    size = flags.batch_size * max(flags.devices * flags.nodes, 1)
    checks = -(-len(validation) * (flags.samples_per_cloud or 1) // size)
    seconds = steps * each + checks * (each - step + step * FORWARD)
    text = span(seconds) if seconds >= 10 else f"{seconds:.2g} s"
    count = f"{steps:,} {'step' if steps == 1 else 'steps'}"
    return [f"time: about {text} per epoch, for {count} of {each:.2g} s and validation"]


def _times(network: nn.Module, loader: Any, device: torch.device) -> tuple[float, float]:
    """Return the seconds of reading a batch, and of a step."""
    objective, reading, step = CrossEntropy(), 0.0, 0.0
    began = time.monotonic()
    for batch in islice(loader, 2):
        reading, began = time.monotonic() - began, time.monotonic()
        if batch.target is None or not len(batch):
            continue
        batch = batch.to(device)
        logits = network(**batch.inputs())
        objective.total(logits.reshape(-1, logits.shape[-1]), batch.target).backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        step, began = time.monotonic() - began, time.monotonic()
    return reading, step

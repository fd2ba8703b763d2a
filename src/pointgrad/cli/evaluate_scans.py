"""Evaluation of a network on whole scans, as by `pointgrad predict --evaluate`."""

from collections.abc import Sequence
from typing import Any

from torch import Generator

from pointgrad.data import ClassMap, FileError, Transform
from pointgrad.errors import one_line
from pointgrad.predict.labels import label
from pointgrad.predict.report import Comparison
from pointgrad.train import Metrics, Trained


def sees_scenes(trained: Trained) -> bool:
    """Whether the network was trained on crops of scenes, not on objects or their parts."""
    return trained.task == "segmentation" and trained.prepare.normalize != "sphere" and trained.prepare.points > 0


def labels_points(task: str, parts: Sequence[Any]) -> bool:
    """Whether all points are labelled for the metrics: except for part segmentation, whose metrics are those of clouds.

    Args:
        task: Task of the network.
        parts: Classes of each category, for part segmentation.
    """
    return task == "segmentation" and not parts


def evaluate_scans(
    trained: Trained, dataset: Any, *, votes: int, relabel: Transform | None = None, skip_bad: bool = False
) -> tuple[Metrics, dict[int, str]]:
    """Label every point of every scan, and compare with the labels of the scans.

    Args:
        trained: The network.
        dataset: Scans with a label for each point.
        votes: Predictions per point.
        relabel: Replaces labels of the data by those of the network.
        skip_bad: Skip unreadable scans instead of raising.

    Returns:
        Metrics over all points, and the reasons for skipped scans by index.
    """
    numbers = tuple((number,) for number in range(len(trained.classes)))
    compared = Comparison(ClassMap(trained.classes, numbers))
    skipped: dict[int, str] = {}
    for index in range(len(dataset)):
        try:
            cloud = dataset[index]
            if relabel is not None:
                cloud = relabel(cloud, Generator())
            if cloud.labels is not None:
                compared.add(cloud.labels, label(trained, cloud, votes=votes).labels)
        except (ValueError, OSError) as error:  # noqa: PERF203 (one scan takes far longer)
            if not skip_bad:
                raise
            reason = one_line(error)
            skipped[index] = reason if isinstance(error, FileError) else f"sample {index}: {reason}"
    return compared.metrics, skipped

"""Labels and confidence values stored in files next to a point cloud."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from pointgrad.data.cloud import Cloud
from pointgrad.data.datasets.folder import LABEL_SUFFIXES, point_labels
from pointgrad.data.files.errors import FileError, naming
from pointgrad.data.files.npy import load_array

CONFIDENCE = ".confidence.npy"


def with_labels(cloud: Cloud, path: str | Path) -> Cloud:
    """Add the labels stored next to a point cloud file.

    Reads `a.labels.npy`, or `a.label` (the SemanticKITTI format, which `pointgrad predict` also writes), and the
    confidence in `a.confidence.npy`.

    Args:
        cloud: The N points read from `path`.
        path: The point cloud file.

    Returns:
        The cloud with `labels` (N,) and, if available, the feature `confidence` (N,). The cloud itself if there is no
        label file.

    Raises:
        FileError: If the number of labels is not N.
    """
    labels, confidence = read_sidecar(Path(path), len(cloud))
    return cloud if labels is None else attach(cloud, labels, confidence)


def attach(cloud: Cloud, labels: Tensor, confidence: Tensor | None) -> Cloud:
    """Replace the labels (N,) of a cloud, and set its feature `confidence` (N,) if given."""
    features = cloud.features if confidence is None else {**cloud.features, "confidence": confidence}
    return replace(cloud, labels=labels, features=features)


def read_sidecar(path: Path, count: int) -> tuple[Tensor | None, Tensor | None]:
    """Read labels (N,) and confidence (N,) stored next to a file of `count` points; None for each that is missing."""
    stem = path.name.partition(".")[0]
    found = next((end for end in reversed(LABEL_SUFFIXES) if path.with_name(stem + end).is_file()), None)
    if found is None:
        return None, None
    labels = point_labels(path, None)
    if len(labels) != count:
        raise FileError(f"{path}: expected {count} labels in {stem}{found}, one for each point, got {len(labels)}")
    return labels, _confidence(path.with_name(stem + CONFIDENCE), count)


def _confidence(path: Path, count: int) -> Tensor | None:
    if not path.is_file():
        return None
    with naming(path, "a confidence for each point"):
        values = load_array(path)
        if values.shape != (count,) or values.dtype.kind != "f":
            raise FileError(f"expected {count} numbers, one for each point, got {values.dtype} {values.shape}")
        return torch.from_numpy(values)

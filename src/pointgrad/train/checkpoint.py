"""Checkpoints: one file each, readable with `torch.load(weights_only=True)`.

A checkpoint is a dictionary: "format" (1), "model" (configuration of the network), "state" (its weights, or their
moving average if one is kept), "task", "classes", "prepare", "class_map" (codes of the classes in files, if they
differ from their numbers), and, to resume from, "training" (a `RunState`). The best
weights are also written as safetensors, for other tools.
"""

import hashlib
import io
import json
import math
import os
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from pointgrad import models
from pointgrad.data import ClassMap, FileError, Prepare
from pointgrad.data.files.memory import check_regular
from pointgrad.errors import PrintableError, one_line

from . import archive
from .files import write_atomically

FORMAT = 1
TYPES = {"model": dict, "state": dict, "task": str, "classes": list, "prepare": dict}
SEAL, DIGEST = b"pointgrad sha256 ", 64  # prefix of the checksum at the end of a checkpoint, and its number of digits
BEST, LAST, PREVIOUS = "best.pt", "last.pt", "previous.pt"
SAFETENSORS = "best.safetensors"


class CheckpointError(PrintableError, ValueError):
    """A file is not a checkpoint, or belongs to a different network. The message starts with its path."""


@dataclass
class Trained:
    """A trained network with what is needed to use it.

    Attributes:
        model: The network, in evaluation mode.
        task: "classification" or "segmentation".
        classes: Names of the classes, in the order of the logits.
        prepare: Preparation of the clouds that the network expects.
        class_map: Codes of the classes in files. None: labels are class numbers.
    """

    model: nn.Module
    task: str
    classes: tuple[str, ...]
    prepare: Prepare
    class_map: ClassMap | None = None


@dataclass
class RunState:
    """Everything needed to resume a run, besides the network: the "training" entry of a checkpoint.

    Attributes:
        epoch: Number of finished epochs.
        step: Number of finished steps of the current epoch.
        history: One row of metrics per finished epoch.
        best: Best value of the monitored metric; NaN before the first epoch.
        since_best: Number of epochs since the best one.
        batches: Batches per epoch and per step of the process that saved the checkpoint.
        metrics: Counts of the current epoch over all processes (`Metrics.state_dict`), in the middle of an epoch.
        weights: Current weights, if the "state" of the checkpoint is their moving average.
        optimizer: State of the optimizer.
        scaler: State of the gradient scaler.
    """

    epoch: int = 0
    step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    best: float = math.nan
    since_best: int = 0
    batches: list[int] = field(default_factory=list)
    metrics: dict[str, Tensor] | None = None
    weights: dict[str, Tensor] | None = None
    optimizer: dict[str, Any] = field(default_factory=dict)
    scaler: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def from_content(content: dict[str, Any], path: Path) -> "RunState":
        """Read the state from the content of the checkpoint at `path`. Raises `CheckpointError`."""
        training = content.get("training")
        if not isinstance(training, dict):
            raise CheckpointError(f"{path}: holds only a network, there is nothing to resume from")
        names = [each.name for each in fields(RunState)]
        missing = sorted(set(names) - set(training))
        if missing:
            raise CheckpointError(f"{path}: a checkpoint to resume from must have {', '.join(missing)}")
        return RunState(**{name: training[name] for name in names})


def load(path: str | Path, device: torch.device | str = "cpu", *, model: nn.Module | None = None) -> Trained:
    """Load a trained network in evaluation mode.

    Args:
        path: A checkpoint, or a run folder, whose best checkpoint is loaded.
        device: Where to put the network.
        model: A network of your own, which receives the weights. None: the network of `pointgrad.models` that the
            checkpoint describes.

    Returns:
        The network with its task, classes and preparation.

    Raises:
        CheckpointError: The file does not exist, is not a checkpoint, or is damaged.

    Example:
        >>> load("nowhere.pt")
        Traceback (most recent call last):
        pointgrad.train.checkpoint.CheckpointError: nowhere.pt: no such file
    """
    path = find(Path(path))
    content = read(path)
    try:
        prepare = Prepare(**content["prepare"])
        classes = tuple(map(str, content["classes"]))
        mapped = content.get("class_map")
        class_map = None if mapped is None else ClassMap(classes, mapped["codes"], mapped["other"])
        if model is None and not content["model"]:
            raise CheckpointError(
                f"{path}: holds a network of your own, which only Python can load: train.load(path, model=network)"
            )
        if model is None:
            with torch.device("meta"):  # without memory, until the shapes are known to be those of the file
                expected = models.build(**content["model"])
            check_weights(expected, content["state"], path)
            model = models.build(**content["model"])
        else:
            check_weights(model, content["state"], path)
    except CheckpointError:
        raise
    except Exception as error:  # the file may hold any value
        raise CheckpointError(f"{path}: cannot build the network: {one_line(error, limit=300)}") from error
    model.load_state_dict(content["state"])
    return Trained(model.to(device).eval(), content["task"], classes, prepare, class_map)


def find(path: Path) -> Path:
    """Return the checkpoint of a run folder, or `path` itself if it is not a folder."""
    if not path.is_dir():
        return path
    for name in (BEST, LAST, PREVIOUS):
        if (path / name).exists():
            return path / name
    raise CheckpointError(f"{path}: has neither {BEST} nor {LAST}")


def config_of(model: nn.Module) -> dict[str, Any]:
    """The configuration of a network: its attribute `config` if that holds plain values by name, else nothing."""
    config = getattr(model, "config", None)
    if not isinstance(config, dict):
        return {}
    return dict(config) if all(isinstance(name, str) and _is_plain(config[name]) for name in config) else {}


def content_of(
    model: nn.Module,
    state: dict[str, Tensor],
    task: str,
    classes: Sequence[str],
    prepare: Prepare,
    training: RunState | None = None,
    class_map: ClassMap | None = None,
) -> dict[str, Any]:
    """Return the content of a checkpoint; with `training`, of one to resume from."""
    content = {
        "format": FORMAT,
        "model": config_of(model),
        "state": state,
        "task": task,
        "classes": list(classes),
        "prepare": asdict(prepare),
    }
    if class_map is not None:
        content["class_map"] = {"codes": [list(codes) for codes in class_map.codes], "other": class_map.other}
    return content if training is None else {**content, "training": dict(vars(training))}


def save(path: Path, content: dict[str, Any], previous: Path | None = None) -> None:
    """Write a checkpoint atomically.

    Args:
        path: File to write.
        content: Result of `content_of`.
        previous: Where to keep the old checkpoint.
    """
    memory = io.BytesIO()  # serialized before the disk is touched, so that every failure to write is an OSError
    torch.save(content, memory)
    _seal(memory)
    write_atomically(path, memory.getvalue(), previous)


def save_safetensors(path: Path, content: dict[str, Any]) -> None:
    """Write the weights of a checkpoint as safetensors; the other entries become JSON metadata.

    Raises:
        ImportError: safetensors is not installed.
    """
    from safetensors.torch import save

    entries = {name: content[name] for name in ("format", *TYPES, "class_map") if name != "state" and name in content}
    tensors = {name: tensor.contiguous() for name, tensor in content["state"].items()}
    write_atomically(path, save(tensors, {"pointgrad": json.dumps(entries, default=str)}))


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint to the CPU, and check its entries. Raises `CheckpointError`."""
    try:
        check_regular(path)
        with open(path, "rb") as file:
            _check_seal(file)
            content = archive.load(file)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except FileError as error:
        raise CheckpointError(f"{path}: is not a checkpoint, or is damaged: {error}") from None
    except Exception as error:  # zipfile, pickle and torch raise errors of their own
        raise CheckpointError(f"{path}: is not a checkpoint, or is damaged") from error
    found = content.get("format", "none") if isinstance(content, dict) else type(content).__name__
    if type(found) is not int or found != FORMAT:
        found = str(found)[:60] if type(found) in (int, str) else type(found).__name__
        raise CheckpointError(f"{path}: expected a pointgrad checkpoint of format {FORMAT}, got {found}")
    missing = TYPES.keys() - set(content)
    if missing:
        raise CheckpointError(f"{path}: a checkpoint must have {', '.join(sorted(missing))}")
    for name, kind in TYPES.items():
        if not isinstance(content[name], kind):
            got = type(content[name]).__name__
            raise CheckpointError(f"{path}: {name} in a checkpoint must be a {kind.__name__}, got {got}")
    for name in ("model", "prepare"):
        if not all(isinstance(key, str) and _is_plain(value) for key, value in content[name].items()):
            raise CheckpointError(f"{path}: {name} in a checkpoint must have plain values by name, got others")
    for name in ("classes", "state"):
        if not all(isinstance(each, str) for each in content[name]):
            raise CheckpointError(f"{path}: {name} in a checkpoint must have names, got others")
    return content


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def read_weights(path: Path, model: nn.Module) -> dict[str, Tensor]:
    """Read the weights of a checkpoint. Raises `CheckpointError` if they do not fit the model."""
    state: dict[str, Tensor] = read(path)["state"]
    check_weights(model, state, path)
    return state


def _seal(memory: io.BytesIO) -> None:
    """Append a checksum of the whole archive as its comment: its table of contents has none."""
    memory.seek(-2, os.SEEK_END)  # length of the comment, zero so far
    memory.write((len(SEAL) + DIGEST).to_bytes(2, "little"))
    digest = hashlib.sha256(memory.getbuffer()).hexdigest()
    memory.write(SEAL + digest.encode())


def _check_seal(file: BinaryIO) -> None:
    """Raise ValueError unless the checksum matches."""
    length = max(file.seek(0, os.SEEK_END) - len(SEAL) - DIGEST, 0)
    file.seek(length)
    seal = file.read()
    file.seek(0)
    if seal.startswith(SEAL):
        digest = hashlib.sha256()
        for start in range(0, length, 2**20):
            digest.update(file.read(min(2**20, length - start)))
        if seal != SEAL + digest.hexdigest().encode():
            raise ValueError("checksum mismatch")
    else:  # written by an older version, and only protected by the checksums of the records
        with zipfile.ZipFile(file) as found:
            if found.comment:
                raise ValueError("a truncated checksum")


def check_weights(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Raise a `CheckpointError` that names the first weight that does not fit the model."""
    own = model.state_dict()
    for name in [*own, *state]:
        if name not in state:
            raise CheckpointError(f"{path}: belongs to a different network: {name} is missing")
        if name not in own:
            raise CheckpointError(f"{path}: belongs to a different network: the model has no {name[:100]}")
        if not isinstance(state[name], Tensor):
            raise CheckpointError(f"{path}: {name} must be a tensor, got {type(state[name]).__name__}")
        if own[name].shape != state[name].shape:
            expected, received = tuple(own[name].shape), tuple(state[name].shape)
            raise CheckpointError(
                f"{path}: belongs to a different network: {name} must have shape {expected}, got {received}"
            )

"""Checkpoints: one file, readable with `torch.load(weights_only=True)`.

{"format": 1, "model": config of the network, "state": its weights (the running mean, if there is one), "task",
"classes", "prepare", and in those to resume from "training"}.
"""

import hashlib
import io
import os
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from pointgrad import models
from pointgrad.data import FileError, Prepare
from pointgrad.data.files.memory import check_regular

from .files import write_atomically
from .untrusted import check_archive, no_more_weights

FORMAT = 1
KINDS = {"model": dict, "state": dict, "task": str, "classes": list, "prepare": dict}
SEAL, DIGEST = b"pointgrad sha256 ", 64  # how the last bytes of a checkpoint begin, and the digits that follow
BEST, LAST, PREVIOUS = "best.pt", "last.pt", "previous.pt"


class CheckpointError(ValueError):
    """A file that is no checkpoint, or not one of this network. The message starts with its path."""


@dataclass
class Trained:
    """A network with what is needed to use it: the names of its classes, and how clouds are prepared for it."""

    model: nn.Module
    task: str
    classes: tuple[str, ...]
    prepare: Prepare


def load(path: str | Path, device: torch.device | str = "cpu") -> Trained:
    """A trained network, in evaluation mode. path: a checkpoint, or a run folder, of which the best one is taken.

    >>> load("nowhere.pt")
    Traceback (most recent call last):
    pointgrad.train.checkpoint.CheckpointError: nowhere.pt: there is no such file
    """
    path = find(Path(path))
    content = read(path)
    try:
        prepare = Prepare(**content["prepare"])
        with no_more_weights(content["state"]):
            model = models.build(**content["model"])
    except Exception as error:  # any value can stand in it
        raise CheckpointError(f"{path}: cannot build its network: {' '.join(str(error).split())[:300]}") from error
    check_weights(model, content["state"], path)
    model.load_state_dict(content["state"])
    return Trained(model.to(device).eval(), content["task"], tuple(map(str, content["classes"])), prepare)


def find(path: Path) -> Path:
    """The checkpoint that a path means."""
    if not path.is_dir():
        return path
    for name in (BEST, LAST, PREVIOUS):
        if (path / name).exists():
            return path / name
    raise CheckpointError(f"{path}: has neither {BEST} nor {LAST}")


def content_of(
    model: nn.Module, state: dict[str, Tensor], task: str, classes: Sequence[str], prepare: Prepare
) -> dict[str, Any]:
    """What every checkpoint holds."""
    return {
        "format": FORMAT,
        "model": dict(getattr(model, "config", {})),
        "state": state,
        "task": task,
        "classes": list(classes),
        "prepare": asdict(prepare),
    }


def save(path: Path, content: dict[str, Any], previous: Path | None = None) -> None:
    """Writes a checkpoint; whatever happens, the file holds the old content or the new. previous: where to keep the
    old one."""
    memory = io.BytesIO()  # serialised before the disk is touched: then every failure to write is an OSError
    torch.save(content, memory)
    _seal(memory)
    write_atomically(path, memory.getvalue(), previous)


def read(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU."""
    try:
        check_regular(path)
        with open(path, "rb") as file:
            check_archive(file)
            _check_seal(file)
            content = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except FileError as error:
        raise CheckpointError(f"{path}: is not a checkpoint, or is damaged: {error}") from None
    except Exception as error:  # zipfile, pickle and torch each have their own
        raise CheckpointError(f"{path}: is not a checkpoint, or is damaged") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format", "none") if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(f"{path}: expected a pointgrad checkpoint of format {FORMAT}, got {found}")
    missing = KINDS.keys() - set(content)
    if missing:
        raise CheckpointError(f"{path}: a checkpoint must have {', '.join(sorted(missing))}")
    for name, kind in KINDS.items():
        if not isinstance(content[name], kind):
            got = type(content[name]).__name__
            raise CheckpointError(f"{path}: {name} in a checkpoint must be a {kind.__name__}, got {got}")
    return content


def _seal(archive: io.BytesIO) -> None:
    """Adds a checksum of all of it as the archive's comment. torch.load does not look at those of its parts, nor are
    there any for its table of contents."""
    archive.seek(-2, os.SEEK_END)  # the length of the comment, zero so far
    archive.write((len(SEAL) + DIGEST).to_bytes(2, "little"))
    digest = hashlib.sha256(archive.getbuffer()).hexdigest()
    archive.write(SEAL + digest.encode())


def _check_seal(file: BinaryIO) -> None:
    """Raises for a file that is not as it was written. Leaves the file at its beginning."""
    length = max(file.seek(0, os.SEEK_END) - len(SEAL) - DIGEST, 0)
    file.seek(length)
    seal = file.read()
    file.seek(0)
    if seal.startswith(SEAL):
        digest = hashlib.sha256()
        for start in range(0, length, 2**20):
            digest.update(file.read(min(2**20, length - start)))
        if seal != SEAL + digest.hexdigest().encode():
            raise ValueError("the checksum is another")
    else:  # an older one
        with zipfile.ZipFile(file) as archive:
            if archive.comment or archive.testzip() is not None:
                raise ValueError("a checksum is another, or half of it is there")
    file.seek(0)


def check_weights(model: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Refuses weights of another network in one sentence, which names the first that does not fit."""
    own = model.state_dict()
    for name in [*own, *state]:
        if name not in state:
            raise CheckpointError(f"{path}: is of another network: it lacks {name}")
        if name not in own:
            raise CheckpointError(f"{path}: is of another network: the model here has no {name}")
        if not isinstance(state[name], Tensor):
            raise CheckpointError(f"{path}: {name} must be a tensor, got {type(state[name]).__name__}")
        if own[name].shape != state[name].shape:
            expected, received = tuple(own[name].shape), tuple(state[name].shape)
            raise CheckpointError(f"{path}: is of another network: {name} must be {expected}, got {received}")

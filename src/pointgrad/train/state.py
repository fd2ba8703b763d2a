"""What a run is at one moment: to a checkpoint, and back, bit by bit."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import checkpoint
from .distributed import from_first
from .loops import gather
from .metrics import Metrics
from .weights import get_optimizer, get_weights, set_optimizer, set_weights

if TYPE_CHECKING:
    from .trainer import Trainer

TRAINING = {
    "epoch", "step", "weights", "optimizer", "scaler", "metrics", "history", "best", "since_best", "batches",
}  # fmt: skip


def pack(trainer: "Trainer", *, training: bool) -> dict[str, Any]:
    """The content of a checkpoint; with `training`, all that resuming needs. All processes must ask."""
    raw = get_weights(trainer.module)
    state, ema = raw, trainer.ema
    if ema is not None:
        with ema.applied():
            state = get_weights(trainer.module)
    content = checkpoint.content_of(trainer.module, state, trainer.task, trainer.classes, trainer.prepare)
    if training:
        content["training"] = {
            "epoch": trainer.epoch,
            "step": trainer.step,
            "weights": None if ema is None else raw,
            "optimizer": get_optimizer(trainer.module, trainer.optimizer),
            "scaler": dict(trainer.fabric.strategy.precision.state_dict()),
            "metrics": _summed(trainer),
            "history": trainer.history,
            "best": trainer.best,
            "since_best": trainer.since_best,
            "batches": _batches(trainer),
        }
    return content


def resume_run(trainer: "Trainer") -> list[str]:
    """Puts a trainer where its run was, if there is one: at its last checkpoint, or the one before if that cannot be
    used. Returns what is to be said about it. Refuses what cannot be continued, before anything is written."""
    # Only the first process reads: others may be on machines that have no such file.
    content, notes = from_first(trainer.fabric, lambda: _newest(trainer))
    if content is not None:
        _unpack(trainer, content)
    return notes


def _newest(trainer: "Trainer") -> tuple[dict[str, Any] | None, list[str]]:
    """The newest checkpoint that can be used, and what is wrong with others."""
    folder = trainer.folder
    assert folder is not None
    wrong: list[checkpoint.CheckpointError] = []
    for path in (folder.last, folder.previous):
        if not path.exists():
            continue
        try:
            content = checkpoint.read(path)
            _check(trainer, content, path)
        except checkpoint.CheckpointError as error:
            wrong.append(error)
            continue
        training = content["training"]
        if training["step"] and training["batches"] != _batches(trainer):
            raise checkpoint.CheckpointError(
                f"{path}: was saved in the middle of an epoch of {training['batches'][0]} batches, "
                f"{training['batches'][1]} per step; now there are {_batches(trainer)[0]}, "
                f"{_batches(trainer)[1]} per step"
            )
        notes = [f"{error}; continuing from {path.name}" for error in wrong]
        if training["history"] and training["epoch"] < trainer.config.epochs:
            try:
                best = folder.path / checkpoint.BEST
                checkpoint.check_weights(trainer.module, checkpoint.read(best)["state"], best)
            except checkpoint.CheckpointError as error:
                training["best"], training["since_best"] = math.nan, 0
                notes.append(f"{error}; the best epoch is that of those to come")
        if wrong:
            folder.put_aside()
        return content, notes
    if wrong:
        raise checkpoint.CheckpointError("; ".join(map(str, wrong)))
    return None, []


def _check(trainer: "Trainer", content: dict[str, Any], path: Path) -> None:
    """Refuses what is not a checkpoint of this run."""
    if not isinstance(content.get("training"), dict):
        raise checkpoint.CheckpointError(f"{path}: holds a network only, nothing to resume from")
    missing = sorted(TRAINING - set(content["training"]))
    if missing:
        raise checkpoint.CheckpointError(f"{path}: a checkpoint to resume from must have {', '.join(missing)}")
    if tuple(content["classes"]) != trainer.classes:
        raise checkpoint.CheckpointError(
            f"{path}: its classes must be those of the data, {_few(trainer.classes)}, got {_few(content['classes'])}"
        )
    own = dict(getattr(trainer.module, "config", {}))
    for name in own:
        received = content["model"].get(name, own[name])  # an older one may not know an option
        if received != own[name]:
            raise checkpoint.CheckpointError(
                f"{path}: is of another network: {name} must be {own[name]}, got {received}"
            )
    checkpoint.check_weights(trainer.module, content["state"], path)


def _unpack(trainer: "Trainer", content: dict[str, Any]) -> None:
    training = content["training"]
    set_weights(trainer.module, content["state"])
    if trainer.ema is not None:
        trainer.ema.restart()
    if training["weights"] is not None:
        set_weights(trainer.module, training["weights"])
    set_optimizer(trainer.module, trainer.optimizer, training["optimizer"])
    trainer.fabric.strategy.precision.load_state_dict(training["scaler"])
    trainer.epoch, trainer.step = training["epoch"], training["step"]
    trainer.history, trainer.best, trainer.since_best = training["history"], training["best"], training["since_best"]
    if training["metrics"] is not None:
        trainer.partial = Metrics(len(trainer.classes), trainer.parts, trainer.fabric.device)
        if trainer.main:  # it holds the sum of all processes
            trainer.partial.load_state_dict(training["metrics"])


def _summed(trainer: "Trainer") -> dict[str, Any] | None:
    """What all processes counted in the epoch under way."""
    if trainer.partial is None:
        return None
    total = Metrics(len(trainer.classes), trainer.parts, trainer.fabric.device)
    total.load_state_dict(trainer.partial.state_dict())
    gather(total, trainer.fabric)
    return {name: value.cpu() for name, value in total.state_dict().items()}


def _batches(trainer: "Trainer") -> list[int]:
    return [len(trainer.train_loader), trainer.config.accumulate]


def _few(names: Any) -> str:
    names = list(names)
    return ", ".join(names[:5]) + (f" ... ({len(names)})" if len(names) > 5 else "")

"""What a run is at one moment: to a checkpoint, and back, bit by bit."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import checkpoint
from .loops import gather
from .metrics import Metrics
from .weights import get_optimizer, get_weights, set_optimizer, set_weights

if TYPE_CHECKING:
    from .trainer import Trainer


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


def unpack(trainer: "Trainer", path: Path) -> None:
    """Puts a trainer where the checkpoint was made. Refuses what cannot be continued."""
    # Only the first process reads: others may be on machines that have no such file.
    content = trainer.fabric.broadcast(checkpoint.read(path) if trainer.main else None)
    if "training" not in content:
        raise checkpoint.CheckpointError(f"{path}: holds a network only, nothing to resume from")
    if tuple(content["classes"]) != trainer.classes:
        raise checkpoint.CheckpointError(
            f"{path}: its classes must be those of the data, {_few(trainer.classes)}, got {_few(content['classes'])}"
        )
    training = content["training"]
    if training["step"] and training["batches"] != _batches(trainer):
        raise checkpoint.CheckpointError(
            f"{path}: was saved in the middle of an epoch of {training['batches'][0]} batches, "
            f"{training['batches'][1]} per step; now there are {_batches(trainer)[0]}, {_batches(trainer)[1]} per step"
        )
    own = dict(getattr(trainer.module, "config", {}))
    for name in own:
        received = content["model"].get(name, own[name])  # an older one may not know an option
        if received != own[name]:
            raise checkpoint.CheckpointError(
                f"{path}: is of another network: {name} must be {own[name]}, got {received}"
            )
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

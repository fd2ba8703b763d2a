"""Saving a trainer to a checkpoint and restoring it exactly."""

import math
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import checkpoint
from .checkpoint import CheckpointError, RunState
from .distributed import all_max, broadcast_result
from .errors import NonFiniteLoss
from .loops import gather
from .metrics import Metrics
from .state_check import check_run, settings
from .weights import all_finite, get_optimizer, get_weights, set_optimizer, set_weights

if TYPE_CHECKING:
    from .trainer import Trainer


def save_best(trainer: "Trainer") -> None:
    """Write the best weights to the run folder, if there is one. Collective: call on every rank."""
    if trainer.folder is None:
        return
    content, folder = _capture(trainer, training=False), trainer.folder.path

    def write() -> None:
        checkpoint.save(folder / checkpoint.BEST, content)
        if find_spec("safetensors") is not None:
            checkpoint.save_safetensors(folder / checkpoint.SAFETENSORS, content)

    broadcast_result(trainer.fabric, write)  # other ranks wait: one that ended now would end the run


def save_last(trainer: "Trainer", metrics: Metrics | None = None) -> None:
    """Write the checkpoint to resume from, if there is a run folder. Collective: call on every rank.

    Args:
        trainer: The trainer to save.
        metrics: Counts of this process in the current epoch, in the middle of one.
    """
    if trainer.folder is None:
        return
    content, folder = _capture(trainer, training=True, metrics=metrics), trainer.folder
    broadcast_result(trainer.fabric, lambda: checkpoint.save(folder.last, content, folder.previous))


def _capture(trainer: "Trainer", *, training: bool, metrics: Metrics | None = None) -> dict[str, Any]:
    """Return the content of a checkpoint; with `training`, of one to resume from."""
    weights = get_weights(trainer.module)
    state, ema = weights, trainer.ema
    if ema is not None:
        with ema.applied():
            state = get_weights(trainer.module)
    run = None
    if training:
        run = replace(
            trainer.state,
            batches=_batches(trainer),
            metrics=None if metrics is None else _gathered(trainer, metrics),
            weights=None if ema is None else weights,
            optimizer=get_optimizer(trainer.module, trainer.optimizer),
            scaler=dict(trainer.fabric.strategy.precision.state_dict()),
        )
    if all_max(trainer.fabric, int(not all_finite(state)))[0]:
        raise NonFiniteLoss(f"the weights are not finite {trainer.position()}{trainer.nonfinite_hint()}")
    return checkpoint.content_of(
        trainer.module, state, trainer.task, trainer.classes, trainer.prepare, run, trainer.class_map
    )


def resume(trainer: "Trainer") -> list[str]:
    """Restore a trainer from the last checkpoint of its run folder, or from the one before if the last is unusable.

    Collective: call on every rank. Without a checkpoint the trainer is unchanged.

    Returns:
        Messages about unusable checkpoints.

    Raises:
        CheckpointError: The run cannot be continued. Nothing has been written.
    """
    # Only rank 0 reads: other machines may not have the file.
    found, notes = broadcast_result(trainer.fabric, lambda: _newest(trainer))
    if found is not None:
        content, run = found
        set_weights(trainer.module, content["state"])
        if trainer.ema is not None:
            trainer.ema.restart()
        if run.weights is not None:
            set_weights(trainer.module, run.weights)
        set_optimizer(trainer.module, trainer.optimizer, _with_own_settings(trainer, run.optimizer))
        if run.scaler and trainer.fabric.strategy.precision.state_dict():
            trainer.fabric.strategy.precision.load_state_dict(run.scaler)
        trainer.state = replace(run, weights=None, optimizer={}, scaler={})
    return notes


def _with_own_settings(trainer: "Trainer", saved: dict[str, Any]) -> dict[str, Any]:
    """Return the state of an optimizer with those settings of the trainer's own that are not numbers."""
    groups = [
        {**mine, **{name: group[name] for name in settings(mine).keys() & group.keys()}, "params": group["params"]}
        for group, mine in zip(saved["param_groups"], trainer.optimizer.optimizer.param_groups, strict=True)
    ]
    return {**saved, "param_groups": groups}


def _newest(trainer: "Trainer") -> tuple[tuple[dict[str, Any], RunState] | None, list[str]]:
    """Read the newest usable checkpoint; also return messages about unusable ones."""
    folder = trainer.folder
    assert folder is not None
    errors: list[CheckpointError] = []
    for path in (folder.last, folder.previous):
        if not path.exists():
            continue
        try:
            content = checkpoint.read(path)
            run = RunState.from_content(content, path)
            _check(trainer, content, path)
            check_run(trainer, run, path)
        except CheckpointError as error:
            errors.append(error)
            continue
        if run.step and run.batches != (batches := _batches(trainer)):
            raise CheckpointError(
                f"{path}: was saved in the middle of an epoch with {run.batches[0]} batches, {run.batches[1]} per "
                f"step; now there are {batches[0]}, {batches[1]} per step"
            )
        if run.step > trainer.steps:
            raise CheckpointError(f"{path}: step must be at most {trainer.steps}, got {run.step}")
        notes = [f"{error}; continuing from {path.name}" for error in errors]
        if run.history and run.epoch < trainer.config.epochs:
            try:
                checkpoint.read_weights(folder.path / checkpoint.BEST, trainer.module)
            except CheckpointError as error:
                run.best, run.since_best = math.nan, 0
                notes.append(f"{error}; the best epoch is chosen among the remaining ones")
        if errors:
            folder.put_aside()
        return (content, run), notes
    if errors:
        raise CheckpointError("; ".join(map(str, errors)))
    return None, []


def _check(trainer: "Trainer", content: dict[str, Any], path: Path) -> None:
    """Raise a `CheckpointError` if the checkpoint does not fit the data or the network."""
    if tuple(content["classes"]) != trainer.classes:
        raise CheckpointError(
            f"{path}: its classes must be those of the data, {_first(trainer.classes)}, "
            f"got {_first(content['classes'])}"
        )
    saved, own_map = content.get("class_map"), trainer.class_map
    if isinstance(saved, dict) and own_map is not None:
        codes = saved.get("codes")
        if codes != [list(each) for each in own_map.codes]:
            raise CheckpointError(
                f"{path}: its classes must have the codes of the data, {_first(own_map.texts())}, "
                f"got {str(codes)[:200]}"
            )
    own = checkpoint.config_of(trainer.module)
    for name in own:
        received = content["model"].get(name, own[name])  # older checkpoints may lack an option
        if received != own[name]:
            raise CheckpointError(
                f"{path}: belongs to a different network: {name} must be {own[name]}, got {str(received)[:60]}"
            )
    checkpoint.check_weights(trainer.module, content["state"], path)


def _gathered(trainer: "Trainer", metrics: Metrics) -> dict[str, Any]:
    """Return the sum of the counts of all processes."""
    total = trainer.new_metrics()
    total.load_state_dict(metrics.state_dict())
    gather(total, trainer.fabric)
    return {name: value.cpu() for name, value in total.state_dict().items()}


def _batches(trainer: "Trainer") -> list[int]:
    return [len(trainer.train_loader), trainer.config.accumulate]


def _first(names: Any) -> str:
    names = list(names)
    return ", ".join(name[:60] for name in names[:5]) + (f" ... ({len(names)})" if len(names) > 5 else "")

"""Checks of the state of a run from a checkpoint, which may hold values of any type."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .checkpoint import CheckpointError, RunState, check_weights

if TYPE_CHECKING:
    from .trainer import Trainer

ROW = ("epoch", "seconds")  # metrics of an epoch that every history has
SLOTS = {"sgd": {"momentum_buffer"}}  # tensors that an optimizer keeps for each parameter
ADAM = {"step", "exp_avg", "exp_avg_sq"}


def check_run(trainer: "Trainer", run: RunState, path: Path) -> None:
    """Raise a `CheckpointError` that names the first entry of the wrong type, or that does not fit the trainer."""
    check = _Check(path)
    for name in ("epoch", "step", "since_best"):
        value = getattr(run, name)
        check(type(value) is int and value >= 0, name, "a number of at least 0", value)
    check(_is_number(run.best), "best", "a number", run.best)
    batches = run.batches
    right = isinstance(batches, list) and all(type(each) is int and each > 0 for each in batches)
    check(right and len(batches) in ((2,) if run.step else (0, 2)), "batches", "two positive numbers", batches)
    _check_history(trainer, run, check)
    if run.metrics is not None:
        expected = trainer.new_metrics().state_dict()
        check(isinstance(run.metrics, dict) and run.metrics.keys() == expected.keys(), "metrics", _listed(expected),
              run.metrics)  # fmt: skip
        for name, value in expected.items():
            found = run.metrics[name]
            same = isinstance(found, Tensor) and (found.shape, found.dtype) == (value.shape, value.dtype)
            check(same, f"metrics {name}", f"a tensor {tuple(value.shape)} of {value.dtype}", found)
    if run.weights is not None:
        check(isinstance(run.weights, dict), "weights", "tensors by name", run.weights)
        check_weights(trainer.module, run.weights, path)
    _check_optimizer(trainer, run.optimizer, check)
    check(isinstance(run.scaler, dict), "scaler", "numbers by name", run.scaler)
    own = trainer.fabric.strategy.precision.state_dict()
    if run.scaler and own:
        check(run.scaler.keys() >= own.keys(), "scaler", _listed(own), run.scaler)
        for name in own:
            value = run.scaler[name]
            check(_is_number(value) and value >= 0, f"scaler {name}", "a number of at least 0", value)


class _Check:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, right: bool, name: str, contract: str, value: Any) -> None:
        if not right:
            raise CheckpointError(f"{self.path}: {name} must be {contract}, got {_described(value)}")


def _check_history(trainer: "Trainer", run: RunState, check: _Check) -> None:
    rows = run.history
    right = isinstance(rows, list) and len(rows) == run.epoch
    check(right, "history", f"a list of {run.epoch} rows, one for each epoch", rows)
    for number, row in enumerate(rows):
        right = isinstance(row, dict) and all(isinstance(name, str) and _is_number(row[name]) for name in row)
        check(right, f"history[{number}]", "numbers by name", row)
        missing = [name for name in (*ROW, trainer.monitor) if name not in row]
        check(not missing, f"history[{number}]", f"a row with {', '.join(missing)}", row)
        for name in ROW:
            check(0 <= row[name] < math.inf, f"history[{number}] {name}", "a number of at least 0", row[name])


def _check_optimizer(trainer: "Trainer", saved: Any, check: _Check) -> None:
    own = trainer.optimizer.optimizer.param_groups
    right = isinstance(saved, dict) and isinstance(saved.get("state"), dict)
    right = right and isinstance(saved.get("param_groups"), list) and len(saved["param_groups"]) == len(own)
    check(right, "optimizer", f"a state and {len(own)} groups of parameters", saved)
    parameters: dict[Any, Any] = {}
    for number, (group, mine) in enumerate(zip(saved["param_groups"], own, strict=True)):
        name = f"optimizer group {number}"
        right = isinstance(group, dict) and isinstance(group.get("params"), list)
        right = right and len(group["params"]) == len(mine["params"])
        right = right and all(type(key) in (int, str) for key in group["params"])
        check(right, name, f"settings of {len(mine['params'])} parameters", group)
        parameters |= zip(group["params"], mine["params"], strict=True)
        for setting in settings(mine).keys() & group.keys():
            pair = isinstance(mine[setting], tuple)
            contract = f"{len(mine[setting])} numbers in [0, 1)" if pair else "a number of at least 0"
            check(_fits(group[setting], mine[setting]), f"{name} {setting}", contract, group[setting])
    slots = SLOTS.get(trainer.config.optimizer, ADAM)
    for key, values in saved["state"].items():
        name = f"optimizer state {_described(key)}"
        check(key in parameters, name, "that of a parameter", values)
        right = isinstance(values, dict) and (not values or values.keys() == slots)
        check(right, name, f"{_listed(slots)} of {trainer.config.optimizer}", values)
        for slot, value in values.items():
            if slot == "step":
                right = isinstance(value, Tensor) and value.shape == () and value.is_floating_point()
                right = (right or _is_number(value)) and 0 <= float(value) < math.inf
                check(right, f"{name} step", "a number of at least 0", value)
            elif value is not None or slot not in SLOTS["sgd"]:
                shape = tuple(parameters[key].shape)
                right = isinstance(value, Tensor) and value.shape == shape and value.is_floating_point()
                check(right, f"{name} {slot}", f"a tensor {shape} of floating point", value)


def settings(group: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers among the settings of a group of parameters. The others depend on the device."""
    return {name: value for name, value in group.items() if _is_number(value) or isinstance(value, tuple)}


def _fits(value: Any, own: Any) -> bool:
    if isinstance(own, tuple):
        right = isinstance(value, tuple) and len(value) == len(own)
        return right and all(_is_number(each) and 0 <= each < 1 for each in value)
    return _is_number(value) and 0 <= value < math.inf


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _listed(names: Any) -> str:
    return ", ".join(sorted(map(str, names)))


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {value.dtype}"
    if isinstance(value, (dict, list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value)[:60]

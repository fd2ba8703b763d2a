"""Child process of `pointgrad check`: loads the target, finds inputs, and reports one row after another."""

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pointgrad.inspect.audit import rows
from pointgrad.inspect.audit.subject import InputsError, Subject, describe_error, input_names

from .status import ExitStatus
from .target import TargetError, load, parse_shape

GUESSES = [(5, 7), (5, 5), (2, 5, 7), (7,), (2, 3, 8, 8)]  # shapes to try for all arguments


def main(pipe: int, spec: dict[str, Any]) -> None:
    """Audit the target of `spec`, and write messages as lines of JSON to a pipe."""
    with os.fdopen(pipe, "w", encoding="utf-8") as report:

        def send(kind: str, value: Any) -> None:
            report.write(json.dumps([kind, value]) + "\n")
            report.flush()

        try:
            send("versions", {"python": sys.version.split()[0], "torch": torch.__version__})
            send("stage", f"importing {spec['target']}")
            fn = _callable(spec["target"])
            reference = _callable(spec["reference"]) if spec["reference"] else None
            send("stage", f"making inputs for {spec['target']}")
            make_inputs = _find_inputs(fn, spec)
            subject = Subject(fn, make_inputs, reference, spec["device"], spec["seeded"], isolated=True)
            subject.progress = functools.partial(send, "progress")
            for name in spec["checks"]:
                send("running", name)
                for row in rows(subject, [name]):
                    send("row", asdict(row))
            send("done", None)
        except TargetError as error:
            send("error", [error.status, str(error)])
        except InputsError as error:
            send("error", [ExitStatus.BAD_TARGET, f"{spec['target']}: {error}"])
    sys.stdout.flush()
    os._exit(0)  # without exit handlers of the user's code


def _callable(target: str) -> Callable[..., Any]:
    found = load(target)
    if isinstance(found, type) and issubclass(found, torch.autograd.Function):
        return found.apply
    if isinstance(found, type) and issubclass(found, nn.Module):
        try:
            return found()
        except Exception as error:
            raise TargetError(f"{target} cannot be constructed without arguments: {describe_error(error)}") from error
    if not callable(found):
        raise TargetError(f"{target} must be a function, got {type(found).__name__}")
    return found


def _find_inputs(fn: Callable[..., Any], spec: dict[str, Any]) -> Callable[..., Any]:
    if spec["inputs"]:
        return _callable(spec["inputs"])
    if spec["shapes"]:
        return _random([parse_shape(shape) for shape in spec["shapes"]])
    module, _, name = spec["target"].partition(":")
    found = filter(None, map(_or_none, (f"{module}:{name}_inputs", f"{module}:make_inputs")))
    return next(found, None) or _guess(fn)


def _or_none(target: str) -> Callable[..., Any] | None:
    try:
        return _callable(target)
    except TargetError:
        return None


def _guess(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Find a shape of random tensors for the required arguments with which a call returns tensors."""
    names = _required(fn)
    hint = "give --shapes, or --inputs module:make_inputs, where make_inputs(dtype, device) returns a tuple of inputs"
    if not names:
        raise InputsError(f"it takes no tensors: it has no required arguments; {hint}")
    reason = ""
    for shape in GUESSES:
        make = _random([shape] * len(names))
        try:
            result = fn(*make(torch.float32, "cpu"))
        except Exception as error:
            reason = reason or f"with random {shape} tensors it raises {describe_error(error)}"
            continue
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            return make
        reason = f"with random {shape} tensors it returns {type(result).__name__}"
    raise InputsError(f"no inputs could be guessed for ({', '.join(names)}): {reason}; {hint}")


def _required(fn: Callable[..., Any]) -> list[str]:
    """Return the names of the required arguments."""
    target: Any = fn.forward if isinstance(fn, nn.Module) else fn
    owner = getattr(fn, "__self__", None)
    names = input_names(fn)
    if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        target = owner.forward
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):
        raise InputsError("its signature is not available: give --shapes, or --inputs module:make_inputs") from None
    required = [name for name in names if parameters[name].default is inspect.Parameter.empty]
    plain = [
        name
        for name in required
        if parameters[name].annotation in (int, float, bool, str, "int", "float", "bool", "str")
    ]
    if plain and len(plain) == len(required):
        raise InputsError(f"it takes no tensors: its arguments are {', '.join(map(str, parameters.values()))}")
    return required


def _random(shapes: list[tuple[int, ...]]) -> Callable[..., Any]:
    return lambda dtype, device: tuple(torch.randn(shape, dtype=dtype, device=device) for shape in shapes)


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))

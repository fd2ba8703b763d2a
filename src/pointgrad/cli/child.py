"""What runs in the child process of `pointgrad check`: it loads the target, finds inputs, and reports row after row."""

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

from .target import TargetError, load, sizes

NO_INPUTS = 4
GUESSES = [(5, 7), (5, 5), (2, 5, 7), (7,), (2, 3, 8, 8)]  # shapes that all arguments get, until a call works


def main(pipe: int, spec: dict[str, Any]) -> None:
    with os.fdopen(pipe, "w", encoding="utf-8") as report:

        def say(kind: str, value: Any) -> None:
            report.write(json.dumps([kind, value]) + "\n")
            report.flush()

        try:
            say("versions", {"python": sys.version.split()[0], "torch": torch.__version__})
            say("stage", f"importing {spec['target']}")
            fn = _callable(spec["target"])
            reference = _callable(spec["reference"]) if spec["reference"] else None
            say("stage", f"making inputs for {spec['target']}")
            make_inputs = _find_inputs(fn, spec)
            subject = Subject(fn, make_inputs, reference, spec["device"], spec["seeded"], isolated=True)
            subject.progress = functools.partial(say, "progress")
            for name in spec["checks"]:
                say("doing", name)
                for row in rows(subject, [name]):
                    say("row", asdict(row))
            say("done", None)
        except TargetError as error:
            say("error", [error.status, str(error)])
        except InputsError as error:
            say("error", [NO_INPUTS, f"{spec['target']}: {error}"])
    sys.stdout.flush()
    os._exit(0)  # no exit handler of the user's code changes the result


def _callable(target: str) -> Callable[..., Any]:
    found = load(target)
    if isinstance(found, type) and issubclass(found, torch.autograd.Function):
        return found.apply
    if isinstance(found, type) and issubclass(found, nn.Module):
        try:
            return found()
        except Exception as error:
            raise TargetError(f"{target} cannot be made without arguments: {describe_error(error)}") from error
    if not callable(found):
        raise TargetError(f"{target} must be a function, got {type(found).__name__}")
    return found


def _find_inputs(fn: Callable[..., Any], spec: dict[str, Any]) -> Callable[..., Any]:
    if spec["inputs"]:
        return _callable(spec["inputs"])
    if spec["shapes"]:
        return _random([sizes(shape) for shape in spec["shapes"]])
    module, _, name = spec["target"].partition(":")
    beside = [found for found in map(_or_none, (f"{module}:{name}_inputs", f"{module}:make_inputs")) if found]
    return beside[0] if beside else _guess(fn)


def _or_none(target: str) -> Callable[..., Any] | None:
    try:
        return _callable(target)
    except TargetError:
        return None


def _guess(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Random tensors for the required arguments, if a call with them gives tensors."""
    names = _required(fn)
    how = "give --shapes, or --inputs module:make_inputs, where make_inputs(dtype, device) returns the tuple of inputs"
    if not names:
        raise InputsError(f"it takes no tensors: it has no arguments that must be given; {how}")
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
    raise InputsError(f"no inputs could be guessed for ({', '.join(names)}): {reason}; {how}")


def _required(fn: Callable[..., Any]) -> list[str]:
    """Names of the arguments that must be given."""
    target: Any = fn.forward if isinstance(fn, nn.Module) else fn
    owner = getattr(fn, "__self__", None)
    names = input_names(fn)
    if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        target = owner.forward
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):
        raise InputsError("it does not tell its arguments: give --shapes, or --inputs module:make_inputs") from None
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

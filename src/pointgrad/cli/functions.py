"""Functions named on the command line, and their inputs."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pointgrad.inspect.audit.subject import InputsError, describe_error, input_names

from .target import TargetError, load, parse_shape

GUESSES = [(5, 7), (5, 5), (2, 5, 7), (7,), (2, 3, 8, 8)]  # shapes to try for all arguments
HINT = "give --shapes, or --inputs module:make_inputs, where make_inputs(dtype, device) returns a tuple of inputs"


def load_function(target: str) -> Callable[..., Any]:
    """Import a function, the `apply` of an `autograd.Function`, or a module; a Module class is constructed.

    Raises:
        TargetError: The target cannot be imported, found or constructed, or is not a function.
    """
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


def find_inputs(target: str, inputs: str | None, shapes: Sequence[str]) -> Callable[..., Any] | None:
    """The function that makes the inputs of a target.

    Args:
        target: The target.
        inputs: Target of the function, as given by --inputs.
        shapes: Shapes of random inputs, as given by --shapes.

    Returns:
        A function of dtype and device. Without `inputs` and `shapes`, `<function>_inputs` or `make_inputs` in the
        module of the target, or None if it has neither.

    Raises:
        TargetError: A target or shape is not valid.
    """
    if inputs:
        return load_function(inputs)
    if shapes:
        return _random([parse_shape(shape) for shape in shapes])
    module, _, name = target.partition(":")
    return next(filter(None, map(_or_none, (f"{module}:{name}_inputs", f"{module}:make_inputs"))), None)


def _or_none(target: str) -> Callable[..., Any] | None:
    try:
        return load_function(target)
    except TargetError:
        return None


def guess_inputs(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Find a shape of random tensors for the required arguments with which a call returns tensors."""
    names = _required(fn)
    if not names:
        raise InputsError(f"it takes no tensors: it has no required arguments; {HINT}")
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
    raise InputsError(f"no inputs could be guessed for ({', '.join(names)}): {reason}; {HINT}")


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

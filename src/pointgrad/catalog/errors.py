"""Calls that an operator refuses."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .magnitudes import Arguments


@dataclass(frozen=True)
class BadCall:
    """A call that the operator refuses, with the error's type and whole message.

    Attributes:
        reads_values: Found by reading a tensor's values, which happens on CPU tensors only.
    """

    error: type[Exception]
    message: str
    args: tuple[Any, ...]
    kwargs: Arguments
    reads_values: bool = False


def type_error(message: str, *args: Any, **kwargs: Any) -> BadCall:
    return BadCall(TypeError, message, args, kwargs)


def value_error(message: str, *args: Any, **kwargs: Any) -> BadCall:
    return BadCall(ValueError, message, args, kwargs)


def bad_values(message: str, *args: Any, **kwargs: Any) -> BadCall:
    return BadCall(ValueError, message, args, kwargs, reads_values=True)


def got(received: Any, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...], Arguments]:
    """The end of an error message and the call that raises it."""
    return received, args, kwargs


def each(
    make: Callable[..., BadCall], contract: str, *calls: tuple[Any, tuple[Any, ...], Arguments]
) -> Iterator[BadCall]:
    """Bad calls that break the same contract: their messages differ in what the call `got`."""
    return (make(f"{contract}, got {received}", *args, **kwargs) for received, args, kwargs in calls)


def tensor_errors(valid: Arguments, **wrong: Sequence[Any]) -> Iterator[BadCall]:
    """Calls in which one tensor has the wrong type, layout, device or dtype.

    Args:
        valid: Arguments of a valid call. The first tensor determines the dtype and device of the others.
        wrong: Wrong values by argument, each for one call. The message follows from what is wrong with it.
    """
    first = next(name for name, value in valid.items() if isinstance(value, Tensor))
    for name, values in wrong.items():
        for value in values:
            arguments = {**valid, name: value}
            if not isinstance(value, Tensor):
                kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
                shown = f" {value}" if value is None or isinstance(value, float) else ""
                yield type_error(f"{name} must be a torch.Tensor, got {kind}{shown}", **arguments)
            elif value.layout != torch.strided:
                yield type_error(f"{name} must be a dense tensor, got {value.layout}", **arguments)
            elif value.device.type == "meta":
                yield value_error(f"{name} must be on the device of {first}, cpu, got meta", **arguments)
            else:
                contract = "be float32, float64, float16 or bfloat16"
                if name.endswith(("index", "offsets", "lengths", "num_samples", "start")):
                    contract = "be int64 or int32"
                elif name != first:
                    contract = f"have the dtype of {first}, float32"
                received = str(value.dtype).removeprefix("torch.")
                yield type_error(f"{name} must {contract}, got {received}", **arguments)

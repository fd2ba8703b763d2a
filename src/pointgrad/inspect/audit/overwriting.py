"""In-place operations that overwrite a value which is read again later, as by a skip connection."""

import dis
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from .subject import LIBRARY_PATHS, Subject, Warned, compare


def overwritten_values(subject: Subject) -> None:
    """In-place operations do not change the result: with a new tensor for each, it is the same."""
    leaves = subject.inputs(subject.dtype)
    everything = _OutOfPlace()
    with everything:
        found = compare(subject.run(leaves), subject.base, subject.tolerance, subject)
    if not found:
        return
    for number, what in enumerate(everything.operations):
        with _OutOfPlace(number):
            found = compare(subject.run(leaves), subject.base, subject.tolerance, subject)
        if found:
            raise Warned(f"{what} overwrites a tensor that is read again later: out of place, {found}")


class _OutOfPlace(TorchFunctionMode):
    """Run in-place operations on copies: augmented assignments, and calls with `inplace=True` whose result is used.

    Both name the result that the program continues with, so a copy changes nothing unless the old value is also read.
    Methods such as `x.relu_()` are written in order to change `x`, and so are augmented assignments to a view.

    Args:
        only: The number of the only operation that runs on a copy; all by default.
    """

    def __init__(self, only: int | None = None) -> None:
        super().__init__()
        self.only = only
        self.operations: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if kwargs.get("inplace") is True or name.endswith("_"):
            frame = _calling_frame()
            what = "" if frame is None else _rebinding(frame, args[0], "" if name.endswith("_") else name)
            if what:
                self.operations.append(what)
                if self.only in (None, len(self.operations) - 1):
                    args = (args[0].clone(), *args[1:])
        return func(*args, **kwargs)


def _calling_frame() -> FrameType | None:
    """The innermost frame of the program under audit, if the call comes from there."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(LIBRARY_PATHS):
        frame = frame.f_back
    return frame


def _rebinding(frame: FrameType, target: Tensor, function: str) -> str:
    """A description of the in-place operation that a frame runs; empty if it is written in order to change `target`.

    Args:
        frame: The frame of the program.
        target: The tensor that the operation overwrites.
        function: The name of the function, or empty for an operator or a method such as `add_`.
    """
    where = f"({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
    # In a call, f_lasti may lie within the instruction.
    instructions = list(dis.get_instructions(frame.f_code))
    number = sum(each.offset <= frame.f_lasti for each in instructions) - 1
    current, following = instructions[number], instructions[number + 1]  # a return follows the last operation
    if function:
        is_statement = following.opname == "POP_TOP"  # the result is discarded
        return "" if is_statement else f"{function} with inplace=True {where}"
    # Python 3.10 has INPLACE_ADD and so on, later versions BINARY_OP with += and so on.
    augmented = current.opname.startswith("INPLACE_") or (
        current.opname == "BINARY_OP" and current.argrepr.endswith("=")
    )
    return f"the augmented assignment {where}" if augmented and not target._is_view() else ""

"""What `package.module:function` on the command line names."""

import importlib
import os
import sys
from typing import Any


class TargetError(Exception):
    """Why a target cannot be loaded, in one line, and the exit status: 2 for a wrong command line, 3 for not found."""

    def __init__(self, reason: str, status: int = 3) -> None:
        super().__init__(reason)
        self.status = status


def load(target: str) -> Any:
    """The object that `target` names: `package.module:function`, `module:Class.method`, or `path/file.py:function`.

    It is imported with the current directory on the path, as `python -m` does.

    >>> load("math:sqrt")(9.0)
    3.0
    """
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise TargetError(f"target must be package.module:function, got {target!r}", status=2)
    if module.endswith(".py"):  # what a shell completes
        folder, file = os.path.split(module)
        _look_first_in(os.path.abspath(folder))
        module = file.removesuffix(".py")
    _look_first_in(os.getcwd())
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # importing runs the user's code
        raise TargetError(f"cannot import {module}: {describe(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise TargetError(f"{target}: {getattr(found, '__name__', type(found).__name__)} has no {part!r}")
        found = getattr(found, part)
    return found


def sizes(shape: str) -> tuple[int, ...]:
    """The sizes in one of `--shapes`; nothing is the shape of a number.

    >>> sizes("2,1024,3")
    (2, 1024, 3)
    """
    try:
        found = tuple(int(size) for size in shape.split(",") if size)
    except ValueError:
        found = (-1,)
    if min(found, default=0) < 0:
        raise TargetError(f"--shapes must be sizes separated by commas, such as 2,1024,3, got {shape!r}", status=2)
    return found


def describe(error: BaseException) -> str:
    """The type and the message of an error, in one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _look_first_in(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)

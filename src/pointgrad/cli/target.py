"""Targets on the command line: `package.module:function`."""

import importlib
import os
import sys
from typing import Any

from pointgrad.errors import one_line

from .status import ExitStatus


class TargetError(Exception):
    """A target cannot be loaded. The message is one line.

    Attributes:
        status: Exit status of the command.
    """

    def __init__(self, reason: str, status: ExitStatus = ExitStatus.NOT_FOUND) -> None:
        super().__init__(reason)
        self.status = status


def load(target: str) -> Any:
    """Import the object that a target names, with the current directory on the path, as `python -m` does.

    Args:
        target: `package.module:function`, `module:Class.method`, or `path/file.py:function`.

    Raises:
        TargetError: The target is malformed, or cannot be imported or found.

    Example:
        >>> load("math:sqrt")(9.0)
        3.0
    """
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise TargetError(f"target must be package.module:function, got {target!r}", ExitStatus.USAGE)
    if module.endswith(".py"):  # the form that shells complete
        folder, file = os.path.split(module)
        _search_first(os.path.abspath(folder))
        module = file.removesuffix(".py")
    _search_first(os.getcwd())
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # importing runs the user's code
        raise TargetError(f"cannot import {module}: {one_line(error, with_type=True)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise TargetError(f"{target}: {getattr(found, '__name__', type(found).__name__)} has no {part!r}")
        found = getattr(found, part)
    return found


def parse_shape(shape: str) -> tuple[int, ...]:
    """Parse one of `--shapes`; the empty text is the shape of a scalar.

    Example:
        >>> parse_shape("2,1024,3")
        (2, 1024, 3)
    """
    try:
        found = tuple(int(size) for size in shape.split(",") if size)
    except ValueError:
        found = (-1,)
    if min(found, default=0) < 0:
        raise TargetError(
            f"--shapes must be sizes separated by commas, such as 2,1024,3, got {shape!r}", ExitStatus.USAGE
        )
    return found


def _search_first(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)

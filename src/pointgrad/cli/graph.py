"""`pointgrad graph module:function`: figure of the autograd graph, and the memory that backward holds."""

import inspect
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tyro.conf import Positional

from pointgrad.errors import one_line, printable
from pointgrad.inspect import graph

from .status import ExitStatus, fail
from .target import TargetError, load, parse_shape

SUFFIXES = (".html", ".svg", ".json")


@dataclass
class Graph:
    """Draw the autograd graph of the result of a function, and print the memory that its backward pass holds.

    Exit status: 0; 2 for an invalid command line; 3 if the target cannot be imported or found; 4 if it raises, or if
    its result has no graph.
    """

    target: Positional[str]
    """package.module:function, or path/file.py:function.
    The function is called without arguments, or with random inputs of --shapes that require grad.
    It returns tensors, optionally in a pair with a module or a dictionary that names them.
    Also a torch.nn.Module, or a Module class whose constructor needs no arguments."""

    shapes: list[str] = field(default_factory=list)
    """Shapes of random float32 inputs, one per argument: --shapes 2,1024,3 2,1024,64"""

    out: Path | None = None
    """File to write: .html, .svg or .json. By default an .html file with the name of the function."""

    def run(self) -> int:
        out = self.out or Path(self.target.rpartition(":")[2].rpartition(".")[2] + ".html")
        if out.suffix not in SUFFIXES:
            return fail("graph", ExitStatus.USAGE, f"--out must end in {', '.join(SUFFIXES)}, got {str(out)!r}")
        try:
            shapes = [parse_shape(shape) for shape in self.shapes]
            function = load(self.target)
        except TargetError as error:
            return fail("graph", error.status, str(error))
        if not callable(function):
            got = type(function).__qualname__
            return fail("graph", ExitStatus.NOT_FOUND, f"{self.target} must be a function or a module, got {got}")
        try:
            found = graph(*_call(function, shapes))
        except Exception as error:  # the user's code
            hint = "; --shapes gives it inputs" if not shapes and isinstance(error, TypeError) else ""
            reason = f"{self.target}{_location(error)}: {one_line(error, with_type=True)}{hint}"
            return fail("graph", ExitStatus.BAD_TARGET, reason)
        try:
            found.write(out)
        except OSError as error:
            return fail("graph", ExitStatus.USAGE, f"cannot write {out}: {error.strerror}")
        print(found)
        print(f"\nwritten to {printable(out)}")
        return ExitStatus.OK


def _call(function: Any, shapes: list[tuple[int, ...]]) -> tuple[Any, Any]:
    """Return the output, and the objects that name its tensors."""
    torch.manual_seed(0)  # the same figure every time
    if isinstance(function, type) and issubclass(function, torch.nn.Module):
        function = function()
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    output = function(*inputs)
    if isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], (torch.nn.Module, dict)):
        output, names = output
        return output, names
    forward = function.forward if isinstance(function, torch.nn.Module) else function
    given = dict(zip(_argument_names(forward, len(inputs)), inputs, strict=True))
    return output, [function, given] if isinstance(function, torch.nn.Module) else given


def _argument_names(function: Any, count: int) -> list[str]:
    try:
        names = list(inspect.signature(function).parameters)[:count]
    except ValueError:  # a builtin without a signature
        names = []
    return [*names, *(f"input{number}" for number in range(len(names), count))]


def _location(error: BaseException) -> str:
    """Return the last line of the user's own code in the traceback."""
    own = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""

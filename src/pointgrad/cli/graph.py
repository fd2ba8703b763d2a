"""`pointgrad graph module:function`: a picture of the autograd graph, and how much memory backward holds."""

import inspect
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tyro.conf import Positional

from pointgrad.inspect import graph

from .fail import fail
from .target import TargetError, describe, load, sizes

WRONG, NOT_FOUND, FAILED = 2, 3, 4  # exit statuses, as the help of the command says
SUFFIXES = (".html", ".svg", ".json")


@dataclass
class Graph:
    """Draws the autograd graph behind what a function returns, and prints what its backward holds.

    Exit status: 0; 2 for a wrong command line; 3 if the target cannot be imported or found; 4 if it raises, or if
    what it returns has no graph.
    """

    target: Positional[str]
    """package.module:function, or path/file.py:function. The function is called without arguments, or with random
    inputs of --shapes, which require grad. It returns a tensor or a nest of tensors, or a pair of that and a module or
    a dictionary that gives names. It may also be a torch.nn.Module, or a class of them that needs no arguments."""

    shapes: list[str] = field(default_factory=list)
    """Of random float32 inputs, one per argument: --shapes 2,1024,3 2,1024,64"""

    out: Path | None = None
    """Where to write; .html, .svg or .json. The default is the name of the function, .html."""

    def run(self) -> int:
        out = self.out or Path(self.target.rpartition(":")[2].rpartition(".")[2] + ".html")
        if out.suffix not in SUFFIXES:
            return fail("graph", WRONG, f"--out must end in {', '.join(SUFFIXES)}, got {str(out)!r}")
        try:
            shapes = [sizes(shape) for shape in self.shapes]
            function = load(self.target)
        except TargetError as error:
            return fail("graph", error.status, str(error))
        if not callable(function):
            return fail(
                "graph", NOT_FOUND, f"{self.target} must be a function or a module, got {type(function).__qualname__}"
            )
        try:
            found = graph(*_call(function, shapes))
        except Exception as error:  # the user's code
            hint = "; --shapes gives it inputs" if not shapes and isinstance(error, TypeError) else ""
            return fail("graph", FAILED, f"{self.target}{_where(error)}: {describe(error)}{hint}")
        try:
            found.write(out)
        except OSError as error:
            return fail("graph", WRONG, f"cannot write {out}: {error.strerror}")
        print(found)
        print(f"\nwritten to {out}")
        return 0


def _call(function: Any, shapes: list[tuple[int, ...]]) -> tuple[Any, Any]:
    """The output, and what gives names."""
    torch.manual_seed(0)  # the same picture every time
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


def _where(error: BaseException) -> str:
    """The last place in the user's own code."""
    own = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""

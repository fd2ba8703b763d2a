"""`pointgrad bench`: check and time the operators, or a function of the user's, on this machine."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from pointgrad.inspect.audit import InputsError

from .status import ExitStatus, fail
from .target import TargetError


@dataclass
class Bench:
    """Check and then time the operators against plain PyTorch, compiled PyTorch and every installed peer library; or a
    function of yours against its plain form.

    Exit status: 0 on success; 1 if a result is wrong, in which case that row is not timed; 2 for an invalid command
    line; for a function of yours also 3 if it cannot be imported or found; 4 if no inputs can be made for it, or its
    reference raises an error.
    """

    families: Annotated[Positional[tuple[str, ...]], arg(metavar="FAMILY")] = ()
    """Families of operators to measure; see --list. By default all but the slow ones.
    Or one function: package.module:function, or path/file.py:function, with --reference."""

    reference: str | None = None
    """module:function that computes the same result as your function, in plain PyTorch."""

    inputs: str | None = None
    """module:make_inputs for your function, where make_inputs(dtype, device) returns a tuple of inputs.
    By default <function>_inputs or make_inputs in its module."""

    shapes: list[str] = field(default_factory=list)
    """Shapes of random inputs, one per argument, instead of --inputs: --shapes 100000,64 64,64"""

    dtype: Literal["float64", "float32", "float16", "bfloat16"] = "float32"
    """Dtype of the inputs of your function."""

    device: Literal["cpu", "cuda"] = "cpu"
    """Device to measure on."""

    only: str = ""
    """Measure only rows whose name contains all of these words, for example --only "nearest 4096"."""

    out: Path | None = None
    """JSON file for the results. Missing folders are created."""

    quick: bool = False
    """Use tiny inputs and few rounds, and do not compile: a test of the benchmark, whose times mean nothing. The inputs
    of your function stay as they are."""

    list: bool = False
    """List the families and exit."""

    def run(self) -> int:
        from pointgrad import bench

        if self.list:
            for name in bench.NAMES:
                print(f"{name:12} {bench.describe(name)}")
            return ExitStatus.OK
        own = [name for name in self.families if ":" in name]
        try:
            if own:
                record = self._run_function(own[0])
            else:
                self._refuse(
                    {"--reference": self.reference, "--inputs": self.inputs, "--shapes": self.shapes}, "without"
                )
                record = bench.run(self.families, self.device, self.only, self.out, self.quick)
        except bench.RequestError as error:
            return fail("bench", ExitStatus.USAGE, error, self)
        except TargetError as error:
            return fail("bench", error.status, error)
        except (bench.FunctionError, InputsError) as error:
            return fail("bench", ExitStatus.BAD_TARGET, f"{own[0]}: {error}")
        except KeyboardInterrupt:
            return fail("bench", ExitStatus.INTERRUPTED, "interrupted; no results were written")
        wrong = any(row["state"] in ("wrong", "failed") for row in record["rows"])
        return ExitStatus.FAILED if wrong else ExitStatus.OK

    def _run_function(self, target: str) -> dict[str, Any]:
        import torch

        from pointgrad import bench

        from .functions import HINT, find_inputs, load_function

        if len(self.families) > 1:
            raise bench.RequestError(f"give one function, or families, got {' '.join(self.families)}")
        self._refuse({"--only": self.only}, "with")
        if not self.reference:
            raise bench.RequestError(f"--reference must name the plain form of {target}, as module:function, got none")
        if self.inputs and self.shapes:
            raise bench.RequestError("give --inputs or --shapes, not both")
        fn, reference = load_function(target), load_function(self.reference)
        for name, each in ((target, fn), (self.reference, reference)):
            if isinstance(each, torch.nn.Module):
                raise TargetError(f"{name} must be a function, got a module: wrap it in a function")
        make_inputs = find_inputs(target, self.inputs, self.shapes)
        if make_inputs is None:
            raise InputsError(f"has no inputs: {HINT}")
        dtype = getattr(torch, self.dtype)
        return bench.run_function(fn, reference, make_inputs, self.device, dtype, self.out, self.quick)

    def _refuse(self, flags: dict[str, Any], word: str) -> None:
        from pointgrad import bench

        for flag, value in flags.items():
            if value:
                raise bench.RequestError(f"{flag} cannot be used {word} a function, module:function")

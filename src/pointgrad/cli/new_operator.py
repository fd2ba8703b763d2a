"""`pointgrad new-operator NAME`: a new package for a differentiable operator, with kernels and tests."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from pointgrad import scaffold
from pointgrad.errors import one_line, printable

from .status import ExitStatus, fail


@dataclass
class NewOperator:
    """Write a small package with a differentiable operator: trilinear interpolation, to be replaced by your own.

    It has a reference in plain PyTorch, an autograd.Function, the registration with torch, kernels, tests, a benchmark
    and a workflow for CI. Its README explains each file. It builds, and its tests pass, right away.
    Exit status: 0; 2 if the folder cannot be written, or for an invalid command line.
    """

    name: Annotated[Positional[str], arg(metavar="NAME")]
    """Name of the package and of its operator."""

    kernels: str = "python,cpp,cuda,triton"
    """Kernels to include, separated by commas. python, the plain PyTorch form, is always included."""

    out: Path | None = None
    """New or empty folder for the package. By default NAME, in the current folder."""

    def run(self) -> int:
        folder = Path(self.name) if self.out is None else self.out
        try:
            scaffold.check_name(self.name)
            kernels = [kernel.strip() for kernel in self.kernels.split(",")]
            scaffold.check_kernels(kernels)
            content = scaffold.files(self.name, kernels)
            scaffold.write(folder, content)
        except ValueError as error:
            return fail("new-operator", ExitStatus.USAGE, error, self)
        except OSError as error:
            reason = error.strerror or one_line(error)
            return fail("new-operator", ExitStatus.USAGE, f"cannot write {printable(folder)}: {reason}")
        print(f"{printable(folder)}: {len(content)} files. Next:")
        print(f"  cd {printable(folder)}")
        print('  pip install -e ".[test]" --no-build-isolation')
        print("  pytest")
        return ExitStatus.OK

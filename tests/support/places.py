"""The devices and backends that tests run on, and the folder of real scans."""

import importlib.util
import os
from pathlib import Path
from typing import NamedTuple

import torch

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("POINTGRAD_TEST_DATA", ROOT.parent / "shared" / "data"))


class Place(NamedTuple):
    device: str
    backend: str

    @property
    def interpreted(self) -> bool:
        return self == ("cpu", "triton")

    @property
    def default_backend(self) -> str:
        return "cpu" if self.device == "cpu" else "triton"

    @property
    def is_default(self) -> bool:
        return self.backend == self.default_backend

    @property
    def nondet_tol(self) -> float:
        """For gradcheck: on a GPU atomic sums have no fixed order, so two backward passes may round differently."""
        return 0.0 if self.device == "cpu" else 1e-12


def _can_interpret() -> bool:
    """Whether Triton's interpreter can run the kernels.

    Version 3.2 lacks features that the kernels use, versions up to 3.6 fail with NumPy 2.4, and there is no Triton for
    macOS.
    """
    if importlib.util.find_spec("triton") is None:
        return False
    import triton

    return tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 7)


PLACES = [Place("cpu", "cpu"), Place("cpu", "reference")]
if torch.cuda.is_available():
    PLACES += [Place("cuda", "triton"), Place("cuda", "reference")]
elif _can_interpret():
    PLACES += [Place("cpu", "triton")]

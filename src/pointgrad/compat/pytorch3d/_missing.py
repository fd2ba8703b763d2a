"""What is said about the rest of PyTorch3D."""

from collections.abc import Callable
from typing import NoReturn


def missing(module: str) -> Callable[[str], NoReturn]:
    """A module's `__getattr__`."""
    original = module.removeprefix("pointgrad.compat.")

    def __getattr__(name: str) -> NoReturn:
        raise AttributeError(
            f"pointgrad.compat provides the point operators of pytorch3d only, and no {original}.{name}"
        )

    return __getattr__

"""Error message for parts of PyTorch3D that are not provided."""

from collections.abc import Callable
from typing import NoReturn


def missing(module: str) -> Callable[[str], NoReturn]:
    """Create the `__getattr__` of a module."""
    original = module.removeprefix("pointgrad.compat.")

    def __getattr__(name: str) -> NoReturn:
        raise AttributeError(f"pointgrad.compat provides only the point operators of pytorch3d, not {original}.{name}")

    return __getattr__

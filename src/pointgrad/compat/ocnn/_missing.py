"""Classes that are not provided."""

from typing import Any


class Missing:
    """Can be imported, and raises an error when it is created."""

    def __init__(self, *_: Any, **__: Any) -> None:
        name = type(self).__name__
        raise NotImplementedError(f"pointgrad.compat provides only the keys of ocnn, not {name}; install ocnn")

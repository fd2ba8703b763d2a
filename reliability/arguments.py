"""Argument types for argparse that several programs use."""

import argparse
from collections.abc import Callable
from pathlib import Path


def out_file(text: str) -> Path:
    """A file to write. Its folder is created immediately, so that a bad path fails before hours of work."""
    path = Path(text)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def at_least(least: int) -> Callable[[str], int]:
    """An integer with a lower bound, so that a run cannot pass by testing nothing."""

    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
        return int(text)

    return number

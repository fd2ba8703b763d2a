"""What arguments of several programs must be: types for argparse."""

import argparse
from collections.abc import Callable
from pathlib import Path


def out_file(text: str) -> Path:
    """Its folder is made at once: after hours of work would be too late to fail."""
    path = Path(text)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def at_least(least: int) -> Callable[[str], int]:
    """A number below which nothing would be tried, and nothing would fail."""

    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
        return int(text)

    return number

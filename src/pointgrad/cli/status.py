"""Exit statuses of all commands, and their error messages."""

import dataclasses
import re
import sys
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from pointgrad.errors import one_line, printable

OF_DATA = ("points", "labels", "classes")  # messages about the content of files name them too


class ExitStatus(IntEnum):
    """Exit status of a command."""

    OK = 0
    FAILED = 1  # the work failed, as a whole or in part
    USAGE = 2  # invalid command line, or unusable input
    NOT_FOUND = 3  # the target cannot be imported or found
    BAD_TARGET = 4  # the target raises, or no inputs fit it
    CRASHED = 5  # the target crashed its process, or hung
    INTERRUPTED = 130  # Ctrl-C, as shells report it


def fail(command: str, status: ExitStatus, reason: BaseException | str, flags: Any = None) -> ExitStatus:
    """Print the reason on one line of standard error, and return the status.

    Args:
        command: Name of the command.
        status: Exit status.
        reason: An error, or its message.
        flags: The command, a dataclass. Its fields are written as flags where the reason states what they must be:
            "--batch-size must be at least 1" instead of "batch_size must be at least 1"; and where it advises to set
            them.
    """
    text = one_line(reason) if isinstance(reason, BaseException) else printable(reason)
    print(f"pointgrad {command}: {text if flags is None else with_flags(text, flags)}", file=sys.stderr)
    return status


def with_flags(text: str, flags: Any) -> str:
    """Replace names of fields by flags; see `fail`.

    Example:
        >>> @dataclasses.dataclass
        ... class Command:
        ...     batch_size: int = 1
        >>> with_flags("a.yaml: batch_size must be at least 1, got 0", Command())
        'a.yaml: --batch-size must be at least 1, got 0'
    """
    known = dict(_flags(flags))

    def flag(found: re.Match[str]) -> str:
        return known.get(found[0], found[0])

    return re.sub(r"(?:(?<=^)|(?<=: ))[a-z][a-z_.]*(?= must )|(?<= set )overwrite\b", flag, text)


def _flags(flags: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names of fields with their flags; the fields of inner dataclasses with and without their prefix."""
    for each in dataclasses.fields(flags):
        name, value = f"{prefix}{each.name}", getattr(flags, each.name)
        flag = f"--{name.replace('_', '-')}"
        if prefix:
            yield name, flag
        if each.name not in OF_DATA:
            yield each.name, flag
        if dataclasses.is_dataclass(value):
            yield from _flags(value, f"{name}.")

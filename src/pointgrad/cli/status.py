"""Exit statuses of all commands, and their error messages."""

import sys
from enum import IntEnum

from pointgrad.errors import one_line, printable


class ExitStatus(IntEnum):
    """Exit status of a command."""

    OK = 0
    FAILED = 1  # the work failed, as a whole or in part
    USAGE = 2  # invalid command line, or unusable input
    NOT_FOUND = 3  # the target cannot be imported or found
    BAD_TARGET = 4  # the target raises, or no inputs fit it
    CRASHED = 5  # the target crashed its process, or hung
    INTERRUPTED = 130  # Ctrl-C, as shells report it


def fail(command: str, status: ExitStatus, reason: BaseException | str) -> ExitStatus:
    """Print the reason on one line of standard error, and return the status."""
    text = one_line(reason) if isinstance(reason, BaseException) else printable(reason)
    print(f"pointgrad {command}: {text}", file=sys.stderr)
    return status

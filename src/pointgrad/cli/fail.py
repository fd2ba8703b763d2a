"""How every command says that it cannot."""

import sys


def fail(command: str, status: int, reason: str) -> int:
    """One line to the standard error; returns the exit status."""
    print(f"pointgrad {command}: {reason}", file=sys.stderr)
    return status


def line(error: BaseException) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__

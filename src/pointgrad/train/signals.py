"""Ctrl-C and SIGTERM as a wish to stop."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def signals(stop: Any) -> Iterator[None]:
    """SIGINT and SIGTERM ask to stop after the step; the second SIGINT stops at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    owner = os.getpid()

    def handle(number: int, _: Any) -> None:
        if os.getpid() != owner:  # a worker of the loader. Ctrl-C reaches it too, but it has to serve until the end
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        stop()
        signal.signal(number, before[number])

    before = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

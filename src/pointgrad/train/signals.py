"""Ctrl-C and SIGTERM as a request to stop."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGINT and SIGTERM; a second signal of the same kind has its usual effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    owner = os.getpid()

    def handle(number: int, _: Any) -> None:
        if os.getpid() != owner:  # a worker of the loader: Ctrl-C reaches it too, but it must run until the end
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

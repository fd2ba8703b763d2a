"""A worker thread for slow tasks, so that browser events are handled at once and tasks never overlap."""

import threading
import time
from collections.abc import Callable

Task = Callable[[], None]


class Worker:
    """Runs tasks one after another. Submitting a name again before its task has started replaces the task.

    Args:
        on_error: Called with any exception that a task raises. The thread continues.
    """

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self._tasks: dict[str, tuple[float, Task]] = {}  # earliest start, task
        self._changed = threading.Condition()
        self._busy = self._stopping = False
        self._thread = threading.Thread(target=self._run, name="pointgrad view", daemon=True)
        self._thread.start()

    def submit(self, name: str, task: Task, delay: float = 0.0) -> None:
        """Queue a task that starts after `delay` seconds, counted from the last submission of this name."""
        with self._changed:
            self._tasks[name] = (time.monotonic() + delay if delay else 0.0, task)
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until all tasks are done."""
        with self._changed:
            self._changed.wait_for(lambda: not self._tasks and not self._busy)

    def stop(self) -> None:
        """End the thread after the current task; queued tasks are dropped."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _next(self) -> str | None:
        """Name of the first task that may start now."""
        now = time.monotonic()
        return next((name for name, (start, _) in self._tasks.items() if start <= now), None)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while (name := self._next()) is None and not self._stopping:
                    starts = [start for start, _ in self._tasks.values()]
                    self._changed.wait(max(0.0, min(starts) - time.monotonic()) if starts else None)
                if name is None or self._stopping:
                    return
                _, task = self._tasks.pop(name)
                self._busy = True
            try:
                task()
            except Exception as error:  # the viewer stays open whatever a task raises
                self._on_error(error)

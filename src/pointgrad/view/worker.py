"""One thread for everything that takes time, so that the browser's events never wait and nothing runs twice at once."""

import threading
from collections.abc import Callable

Task = Callable[[], None]


class Worker:
    """Runs tasks one after another. A task that is asked for again before it has begun runs once, the later one.

    failed: called with what a task raises; the thread goes on.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._tasks: dict[str, Task] = {}
        self._changed = threading.Condition()
        self._busy = self._ended = False
        self._thread = threading.Thread(target=self._run, name="pointgrad view", daemon=True)
        self._thread.start()

    def ask(self, name: str, task: Task) -> None:
        with self._changed:
            self._tasks[name] = task
            self._changed.notify_all()

    def wait(self) -> None:
        """Until there is nothing to do."""
        with self._changed:
            self._changed.wait_for(lambda: not self._tasks and not self._busy)

    def stop(self) -> None:
        """After the task that is running."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._tasks) or self._ended)
                if self._ended:
                    return
                name = next(iter(self._tasks))
                task = self._tasks.pop(name)
                self._busy = True
            try:
                task()
            except Exception as error:  # whatever it is, the viewer stays open
                self._failed(error)

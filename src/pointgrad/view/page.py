"""What the pages of clouds and of trainings share: a server, a thread, and the browsers that look."""

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from pointgrad.view.overlay import Overlay
from pointgrad.view.stage import Stage
from pointgrad.view.words import one_line
from pointgrad.view.worker import Task, Worker

if TYPE_CHECKING:
    import viser


class Page:
    """Fills the page of a server. All browsers share one set of controls; `worker` does everything that takes time."""

    def __init__(self, server: "viser.ViserServer") -> None:
        self.server = server
        self.overlay = Overlay(server.scene)
        self.stage: Stage | None = None
        self.worker = Worker(self.tell)

    def tell(self, error: Exception | str) -> None:
        """Says one line, in the browsers and on the terminal."""
        text = one_line(str(error)) or type(error).__name__
        print(f"pointgrad view: {text}", file=sys.stderr, flush=True)
        for client in self.server.get_clients().values():
            client.add_notification("pointgrad", text, auto_close_seconds=10, color="red", with_close_button=True)

    def _on(self, control: Any, name: str, task: Task) -> None:
        """Has a task done when a person, not we, changes a control."""
        control.on_update(lambda event: self.worker.ask(name, task) if event.client is not None else None)

    def _clear(self) -> None:
        """Shows nothing any more."""
        self.overlay.clear()
        if self.stage is not None:
            self.stage.clear()
            self.stage.levels.close()
            self.stage = None

    def _has_copy(self) -> bool:
        """Whether the cloud is shown twice, side by side."""
        raise NotImplementedError

    def _view(self) -> tuple[np.ndarray, np.ndarray]:
        """Where a camera is, and what it looks at, to see all that is shown."""
        assert self.stage is not None
        return self.stage.view(self._has_copy())

    def _home(self, client: Any) -> None:
        if client is not None and self.stage is not None:
            with client.atomic():
                client.camera.position, client.camera.look_at = self._view()

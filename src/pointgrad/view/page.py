"""Base class of the viewer's pages: server, worker thread, cameras and error messages."""

import sys
from typing import TYPE_CHECKING, Any

from pointgrad.errors import one_line
from pointgrad.render.camera import View
from pointgrad.view.display import Display
from pointgrad.view.framing import Framing
from pointgrad.view.overlay import Overlay
from pointgrad.view.stage import Stage
from pointgrad.view.worker import Task, Worker

if TYPE_CHECKING:
    import viser

# On phones, viser shows the controls in a sheet of fixed width at the bottom, which a tap on its title folds. It has
# no class names, so its inline styles identify it. The rules make it as wide as the window, keep the title in view
# while the controls are scrolled, and add an arrow to it.
SHEET = '[style*="position: fixed"][style*="max-height: 60%"]'
TITLE = f'{SHEET} [style*="cursor: pointer"][style*="height: 3.5em"]'
# Names of files may be long words: they wrap wherever they are shown.
STYLE = f"""<style>
.mantine-Text-root, .mantine-Select-option, .mantine-Tooltip-tooltip {{ overflow-wrap: anywhere; white-space: normal; }}
@media (max-width: 36em) {{
  {SHEET} {{ width: 100% !important; max-height: 45% !important; }}
  {SHEET} [style*="width: 20em"] {{ width: 100% !important; }}
  {TITLE} {{ position: sticky !important; top: 0; z-index: 20; background: var(--mantine-color-body); }}
  {TITLE}::after {{ content: "▾"; font-size: 1.5em; padding-left: 0.5em; }}
  {TITLE}:has(+ [style*="display: none"])::after {{ content: "▴"; }}
}}
</style>"""


class Page:
    """The page of a server. All browsers share one set of controls; slow tasks run on `worker`."""

    def __init__(self, server: "viser.ViserServer") -> None:
        self.server = server
        self.display = Display(server)
        self.overlay = Overlay(server.scene)
        self.stage: Stage | None = None
        self.worker = Worker(self.report_error)
        self.framing = Framing(server, self.worker, lambda: self.stage, self._has_copy)
        server.gui.add_html(STYLE)

    def report_error(self, error: Exception | str) -> None:
        """Show an error as one line, in the browsers and on the terminal."""
        text = one_line(error)
        print(f"pointgrad view: {text}", file=sys.stderr, flush=True)
        for client in self.server.get_clients().values():
            client.add_notification("pointgrad", text, auto_close_seconds=10, color="red", with_close_button=True)

    def _on_change(self, control: Any, name: str, task: Task) -> None:
        """Submit a task whenever a user, not the program, changes a control."""

        async def changed(event: Any) -> None:  # a coroutine runs at once, without a thread
            if event.client is not None:
                self.worker.submit(name, task)

        control.on_update(changed)

    def _on_click(self, button: Any, name: str, task: Task) -> None:
        """Submit a task whenever a user clicks a button."""

        async def clicked(event: Any) -> None:
            self.worker.submit(name, task)

        button.on_click(clicked)

    def _clear(self) -> None:
        """Remove everything from the scene and close the cloud."""
        self.overlay.clear()
        if self.stage is not None:
            self.stage.clear()
            self.stage.levels.close()
            self.stage = None

    def _has_copy(self) -> bool:
        """Whether the cloud is shown twice, in linked views."""
        raise NotImplementedError

    def _look(self, client: Any, view: View) -> None:
        """Show the whole cloud in one browser, from a direction."""
        if client is not None:
            self.worker.submit(f"frame {client.client_id}", lambda: self.framing.show(client, view))

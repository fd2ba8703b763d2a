"""The operators of the cloud page: the choice of a panel, its controls, and the note that names it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pointgrad.errors import one_line
from pointgrad.view import text
from pointgrad.view.panels import PANELS, Panel
from pointgrad.view.worker import Task

if TYPE_CHECKING:
    from pointgrad.view.viewer import Viewer

NONE = "none"
Listen = Callable[[Any, str, Task], None]


class Operators:
    """Shows at most one operator over the open cloud.

    Args:
        viewer: The page.
        gui: viser's GUI API; the note is added here, above the tabs.
        on_change, on_click: Called as `on_change(control, name, task)`; submit the task when a user uses the control.
        draw: Task that redraws the cloud.

    Attributes:
        panels: Panels by title.
    """

    def __init__(self, viewer: "Viewer", gui: Any, on_change: Listen, on_click: Listen, draw: Task) -> None:
        self._viewer, self._on_change, self._draw = viewer, on_change, draw
        trained = viewer.trained is not None
        self.panels: dict[str, Panel] = {
            panel.title: panel(viewer) for panel in PANELS if trained or not panel.needs_network
        }
        self._note = gui.add_markdown("", visible=False)
        self._remove_button = gui.add_button("Remove operator", visible=False)
        on_click(self._remove_button, "choose panel", self._remove)

    def build(self, gui: Any) -> None:
        """Add the controls of the tab."""
        self.choice = gui.add_dropdown("Operator", (NONE, *self.panels), initial_value=NONE)
        self.basis = gui.add_markdown("", visible=False)
        self._folders = {}
        for title, panel in self.panels.items():
            self._folders[title] = gui.add_folder(title, visible=False)
            with self._folders[title]:
                panel.build(gui)
        self._on_change(self.choice, "choose panel", self.update)

    @property
    def active(self) -> Panel | None:
        """The panel that is shown."""
        return self.panels.get(self.choice.value)

    def update(self) -> None:
        """Remove all drawings, and draw the chosen panel for the open cloud."""
        self._viewer.overlay.clear()
        for title, folder in self._folders.items():
            folder.visible = title == self.choice.value
        for control in (self.basis, self._note, self._remove_button):
            control.visible = self.active is not None
        if self.active is not None:
            self._note.content = f"The operator **{self.active.title}** is drawn over the dimmed cloud."
        self._draw()
        self.show()

    def show(self) -> None:
        """Draw the active panel. If it cannot be shown, remove its drawing and show the reason in its place."""
        viewer, active = self._viewer, self.active
        if active is None or viewer.levels is None:
            return
        count, total = len(viewer.sample.cloud), len(viewer.levels)
        try:
            active.show()
            self.basis.content = f"computed on {count:,} points" + f", an even sample of {total:,}" * (count < total)
        except Exception as error:
            viewer.overlay.clear()
            active.text.content = ""
            self.basis.content = f"not shown: {text.escape_markdown(one_line(error))}"
            raise
        finally:
            viewer.server.flush()

    def _remove(self) -> None:
        self.choice.value = NONE
        self.update()

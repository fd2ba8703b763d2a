"""Check boxes that show and hide classes."""

import itertools
from typing import Any

from pointgrad.render import Scale
from pointgrad.view.worker import Task

MAX_BOXES = 256  # browsers are slow with thousands of check boxes


class Classes:
    """A folder with one check box per class.

    Args:
        gui: viser's GUI API.
        on_change: Called as `on_change(control, name, task)`; submits the task when a user changes the control.
        draw: Task that redraws the cloud.

    Attributes:
        hidden: Classes whose box is not ticked.
    """

    def __init__(self, gui: Any, on_change: Any, draw: Task) -> None:
        self.hidden: set[int] = set()
        self._gui, self._on_change, self._draw = gui, on_change, draw
        self._folder = gui.add_folder("Visible classes", expand_by_default=False, visible=False)
        self._boxes: list[Any] = []
        self._content: tuple[object, str, dict[int, str]] = None, "", {}  # file, column, class names

    def fill(self, file: object, scale: Scale) -> None:
        """Create the boxes for a column of a file. Hidden classes of the same column stay hidden."""
        named = {number: scale.name(number) for number in itertools.islice(scale.counts, MAX_BOXES)}
        self._folder.visible = scale.kind == "class"
        if self._content == (file, scale.by, named):
            return
        self.hidden &= set(named) if self._content[:2] == (file, scale.by) else set()
        self._content = file, scale.by, named
        for box in self._boxes:
            box.remove()
        with self._folder:
            self._boxes = [self._box(number, name) for number, name in named.items()]

    def _box(self, number: int, name: str) -> Any:
        box = self._gui.add_checkbox(name, number not in self.hidden)

        def changed() -> None:
            (self.hidden.discard if box.value else self.hidden.add)(number)
            self._draw()

        self._on_change(box, f"class {number}", changed)
        return box

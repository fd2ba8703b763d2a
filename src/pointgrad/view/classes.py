"""Which classes are shown: a box for each."""

import itertools
from typing import Any

from pointgrad.render import Scale
from pointgrad.view.worker import Task

MOST = 256  # boxes; a browser is slow with thousands


class Classes:
    """A folder of boxes. hidden: the classes whose box is not ticked.

    on: has a task done when a person changes a control; draw: the task.
    """

    def __init__(self, gui: Any, on: Any, draw: Task) -> None:
        self.hidden: set[int] = set()
        self._gui, self._on, self._draw = gui, on, draw
        self._folder = gui.add_folder("Classes shown", expand_by_default=False, visible=False)
        self._boxes: list[Any] = []
        self._of: tuple[object, str, dict[int, str]] = None, "", {}

    def fill(self, file: object, scale: Scale) -> None:
        """Boxes for the classes of a file's column. What is hidden of it stays so when its classes become others."""
        named = {number: scale.name(number) for number in itertools.islice(scale.counts, MOST)}
        self._folder.visible = scale.kind == "class"
        if self._of == (file, scale.by, named):
            return
        self.hidden &= set(named) if self._of[:2] == (file, scale.by) else set()
        self._of = file, scale.by, named
        for box in self._boxes:
            box.remove()
        with self._folder:
            self._boxes = [self._box(number, name) for number, name in named.items()]

    def _box(self, number: int, name: str) -> Any:
        box = self._gui.add_checkbox(name, number not in self.hidden)

        def changed() -> None:
            (self.hidden.discard if box.value else self.hidden.add)(number)
            self._draw()

        self._on(box, f"class {number}", changed)
        return box

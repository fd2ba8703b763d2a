"""`pointgrad.view(points)`: show tensors, arrays and clouds from Python."""

import atexit
import html
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pointgrad.data import Cloud
from pointgrad.data.as_clouds import as_clouds, class_map, preferred_column, stored_names
from pointgrad.view import server
from pointgrad.view.inputs import Clouds, check_columns
from pointgrad.view.viewer import Viewer

HEIGHT = 600  # height of the frame in a notebook, in pixels


def show(
    points: Any,
    colors: Any = None,
    labels: Any = None,
    *,
    classes: Sequence[str] | Mapping[int, str] | None = None,
    by: str | None = None,
    name: str | None = None,
    side_by_side: bool | None = None,
    port: int | None = None,
) -> "Window":
    """Show clouds in the browser, or in a notebook. `pointgrad.view(...)` is this function.

    The first call starts a viewer, which ends with the program, and prints its address. Later calls show other points
    in it, in all open browsers. A call copies the points; they are drawn in the background, and if calls are frequent,
    only the last points are drawn.

    Args:
        points: (N, 3) tensor, array or `Cloud`, on any device. Several clouds: a dict of them by name, a list of them,
            or a batch (B, N, 3). They are drawn in one scene.
        colors: (N, 3) uint8 or from 0 to 1, or one value per point (N,). For several clouds, structured as `points`.
        labels: Class of each point (N,), -1 for no label. For several clouds, structured as `points`.
        classes: Class names, in order or by number. Default: those of the file that a `Cloud` was read from, else those
            of the last call.
        by: Column that colors the points at first, such as "height" or a feature of a `Cloud`. Default: the colors,
            else the labels, else the names of several clouds, else the height.
        name: Name of a single cloud. It replaces the cloud of this name, or is added; other clouds stay. Without a
            name, the points replace all clouds.
        side_by_side: Whether to move several clouds apart, into a grid; by default only for a batch (B, N, 3), and
            with a name as before.
        port: Port of the viewer. By default that of the first viewer, or the first free one from 8080. A port without
            a viewer starts another one.

    Returns:
        The viewer. As the last value of a cell in a notebook, it is displayed as a frame.

    Raises:
        TypeError: If an argument has a wrong type or dtype.
        ValueError: If a shape or value is invalid, the port is not free, or viser is not installed.
    """
    found = as_clouds(points, colors, labels, name=name)
    named = class_map(classes) or (stored_names(found) if labels is None else {})
    if side_by_side is None and name is None:
        side_by_side = not isinstance(points, (Cloud, Mapping, list, tuple)) and len(found) > 1
    by = preferred_column(colors, found) if by is None else by
    with _lock:
        window = _window(port)
        window._show(found, named, by, side_by_side, keep=name is not None)
    return window


class Window:
    """A viewer that was started by `pointgrad.view`.

    Attributes:
        viewer: The viewer.
        address: Address to open in a browser.
    """

    def __init__(self, viewer: Viewer, web: Any) -> None:
        self.viewer, self._web = viewer, web
        self.address: str = server.address(web)
        self.port: int = web.get_port()
        self._shown = Clouds({})

    def wait(self) -> None:
        """Keep the viewer open until Ctrl-C: a program ends after its last line, and its viewer with it."""
        with suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)
        self.close()

    def close(self) -> None:
        """Stop the viewer."""
        with _lock:
            if self in _windows:
                _windows.remove(self)
                atexit.unregister(self.close)
                self.viewer.close()
                self._web.stop()

    def __repr__(self) -> str:
        return f"<pointgrad viewer at {self.address}>"

    def _repr_html_(self) -> str:
        """Frame that a notebook displays."""
        return (
            f'<iframe src="{html.escape(self.address)}" title="pointgrad" allow="fullscreen" '
            f'style="width:100%;height:{HEIGHT}px;border:1px solid #ccc"></iframe>'
        )

    def _show(
        self, found: dict[str, Cloud], classes: dict[int, str], by: str | None, side_by_side: bool | None, keep: bool
    ) -> None:
        before = self._shown
        clouds = {**before.clouds, **found} if keep else found
        check_columns(clouds, by)
        apart = before.side_by_side if side_by_side is None else side_by_side
        self._shown = Clouds(clouds, classes or before.classes, by, apart)
        self.viewer.show(self._shown)


_lock = threading.RLock()
_windows: list[Window] = []  # open ones, in the order of their start


def _window(port: int | None) -> Window:
    """The open window on a port, or a new one."""
    if not isinstance(port, int | None) or isinstance(port, bool):
        raise TypeError(f"port must be an integer, got {type(port).__name__}")
    for window in _windows:
        if port in (None, window.port):
            return window
    web = server.start("127.0.0.1", port, "pointgrad", verbose=False)
    window = Window(Viewer(web), web)
    _windows.append(window)
    # Runs before viser's own exit function, and before the interpreter ends: it would abort if a thread were still in
    # compiled code.
    atexit.register(window.close)
    print(f"{window.address}  (until this program ends)", flush=True)
    return window

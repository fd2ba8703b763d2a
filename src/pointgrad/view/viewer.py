"""The viewer: one open cloud, its controls, and what happens in the browser."""

import io
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pointgrad.data import Cloud
from pointgrad.data.stream import Source
from pointgrad.render import Scale, first_choice
from pointgrad.render.colors import ERROR, LABEL, RIGHT_OR_WRONG
from pointgrad.render.names import class_names
from pointgrad.train import Trained
from pointgrad.view import network, words
from pointgrad.view.classes import Classes
from pointgrad.view.detail import Camera
from pointgrad.view.levels import Levels, Part, build
from pointgrad.view.page import Page
from pointgrad.view.panels import PANELS, Panel
from pointgrad.view.stage import Look, Picked, Stage

if TYPE_CHECKING:
    import viser

BUDGET = 1_000_000
WORKED_ON = 100_000  # points that operators are shown on
NOTHING = "nothing"
BACKGROUNDS = {"white": (255, 255, 255), "grey": (120, 124, 130), "black": (14, 16, 20)}
STILL = 0.15  # seconds that a camera must rest before details follow it
MARKED = (255, 0, 160)


class Viewer(Page):
    """Shows files in all browsers that are connected to a server; they share one set of controls.

    server: whose page is filled. paths: files to choose from, at least one; the first is opened, in a thread.
    trained: a network, as `pointgrad.train.load` gives it, that labels what is opened. budget: points drawn at once.
    columns: as for `pointgrad.data.read`. category: of what is in the files, for a network that labels parts.
    """

    def __init__(
        self,
        server: "viser.ViserServer",
        paths: Sequence[Path],
        *,
        trained: Trained | None = None,
        budget: int = BUDGET,
        columns: str | None = None,
        category: int | None = None,
    ) -> None:
        super().__init__(server)
        self.paths, self.trained = list(paths), trained
        self._budget, self._columns, self._category = budget, columns, category
        self.levels: Levels | None = None
        self.picked: Picked | None = None
        self._clouds: Callable[[], Iterable[Cloud]] = tuple
        self._names: dict[str, dict[int, str]] = {}
        self._work: Part | None = None
        self._camera: Camera | None = None
        self._moved = 0.0
        self._expected = 0  # points of the file that is being opened
        self._path = self.paths[0]  # that is open
        self._build()
        server.on_client_connect(self._connected)
        server.scene.on_click()(self._clicked)
        self.open(self._path)

    # -- for panels -----------------------------------------------------------------------------------------------

    @property
    def work(self) -> Part:
        """The points that operators are shown on: all, or an even sample of about 100,000 of a larger cloud."""
        if self._work is None:
            assert self.levels is not None
            self._work = self.levels.sample(WORKED_ON)
        return self._work

    def names(self, by: str) -> dict[int, str]:
        """The names of the classes in a column, by number."""
        known = self._names.get(by, {})
        if by == ERROR:
            return {**RIGHT_OR_WRONG, -1: "unknown"}
        if self.trained is not None and (by == network.PREDICTION or (by == LABEL and not known)):
            return dict(enumerate(self.trained.classes))
        return known

    def shows(self, control: Any) -> None:
        """Shows the active panel again when a person changes a control."""
        self._on(control, "panel", self._show_panel)

    # -- files ----------------------------------------------------------------------------------------------------

    def open(self, path: Path) -> None:
        """Shows another file, soon. If it cannot be read, what is shown stays."""
        self.worker.ask("open", lambda: self._open(path))

    def wait(self) -> bool:
        """Returns when everything that was asked for is done: whether a file is open."""
        self.worker.wait()
        return self.levels is not None

    def close(self) -> None:
        """Ends what is being done. The server is not touched."""
        self.worker.stop()
        self.levels = None
        self._clear()

    def _open(self, path: Path) -> None:
        began = time.monotonic()
        self._progress.visible = True
        try:
            clouds = self._stream(path)
            levels = build(clouds, self._report)
            names = {by: class_names(path, by) for by in levels.choices()}
        except (ValueError, OSError, MemoryError, ImportError) as error:
            self._file.value = _listed(self._path)
            self.tell(words.about(path, error))
            return
        finally:
            self._progress.visible = False
        self._path, self.levels, self.picked, self._work, self._clouds = path, levels, None, None, clouds
        self._clear()  # of what was open, now that nobody asks a network about it any more
        self.stage = Stage(self.server.scene, levels, self._budget)
        self._names = names
        self._values.content = "Click a point."
        self._file.value = _listed(path)
        self._fill_choices(first_choice(self.work.cloud), NOTHING)
        self._home_all()
        self._draw()
        self._panel_changed()
        if self.trained is not None:
            self._ask_network(self.trained, levels)
        lost = levels.total - len(levels)
        print(
            f"{_listed(path)}: {levels.total:,} points in {time.monotonic() - began:.1f} s"
            + (f", {lost:,} of them without finite coordinates and not shown" if lost else ""),
            flush=True,
        )

    # -- the network ----------------------------------------------------------------------------------------------

    def _ask_network(self, trained: Trained, levels: Levels) -> None:
        def say(text: str) -> None:
            self._said.content = text

        def got(columns: network.Columns) -> None:
            self.worker.ask("prediction", lambda: self._predicted(levels, columns))

        network.Asking(trained, self._clouds, levels, lambda: self.levels is levels, say, got, self.tell).start()

    def _predicted(self, levels: Levels, columns: network.Columns) -> None:
        if self.levels is not levels or self.stage is None:
            return
        first = network.PREDICTION not in levels.added  # the file may have one of its own
        for name, values in columns.named().items():
            levels.add(name, values)
        self.stage.refill()
        self._work = None
        self._fill_choices(
            network.PREDICTION if first else self._by.value,
            LABEL if first and levels.labelled else self._beside.value,
        )
        if first and levels.labelled:
            self._home_all()
        self._draw()
        self._said.content = columns.in_words()

    def _stream(self, path: Path) -> Callable[[], Iterable[Cloud]]:
        """The clouds of a file, each time from the beginning."""
        file = Source(path, self._columns)
        if self._category is None:
            return file.parts
        return lambda: (replace(part, category=self._category) for part in file.parts())

    def _report(self, what: str, done: int) -> None:
        share = done / max(1, self._expected) if what != "reading" else 0.0
        if what == "reading":
            self._expected = done
        self._status.content = f"{what} {done:,} points"
        self._progress.value = 100 * min(1.0, share)

    # -- the panel ------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        gui = self.server.gui
        gui.configure_theme(show_logo=False, show_share_button=False)
        gui.main_panel.dock_right()
        self._status = gui.add_markdown("")
        self._progress: Any = gui.add_progress_bar(0.0, visible=False)
        tabs = gui.add_tab_group()
        with tabs.add_tab("View"):
            self._build_view(gui)
        with tabs.add_tab("Operators"):
            self._build_operators(gui)

    def _build_view(self, gui: Any) -> None:
        files = {_listed(path): path for path in self.paths}
        self._file = gui.add_dropdown("File", tuple(files), initial_value=next(iter(files)), visible=len(files) > 1)
        self._by = gui.add_dropdown("Colour by", ("height",))
        self._beside = gui.add_dropdown("Beside it", (NOTHING,), hint="The same cloud once more, in other colours")
        self._size = gui.add_slider("Point size", 0.2, 5.0, 0.1, 1.0)
        self._background = gui.add_dropdown("Background", tuple(BACKGROUNDS), initial_value="white")
        self._said = gui.add_markdown("", visible=self.trained is not None)
        home = gui.add_button("Reset camera")
        shot = gui.add_button("Screenshot")
        self._legend = gui.add_html("")
        self._classes = Classes(gui, self._on, self._draw)
        with gui.add_folder("Values"):
            self._values = gui.add_markdown("Click a point.")
        self._on(self._file, "open", lambda: self._open(files[self._file.value]))
        self._on(self._by, "colors", self._recolored)
        self._on(self._beside, "colors", self._placed)
        self._on(self._size, "draw", self._draw)
        self._on(self._background, "background", self._paint_background)
        home.on_click(lambda event: self._home(event.client))
        shot.on_click(lambda event: self._screenshot(event.client))
        self._paint_background()

    def _build_operators(self, gui: Any) -> None:
        panels: list[Panel] = [panel(self) for panel in PANELS if self.trained is not None or not panel.needs_network]
        self._panels = {panel.title: panel for panel in panels}
        self._panel = gui.add_dropdown("Show", (NOTHING, *self._panels), initial_value=NOTHING)
        self._basis = gui.add_markdown("", visible=False)
        self._folders = {}
        for title, panel in self._panels.items():
            self._folders[title] = gui.add_folder(title, visible=False)
            with self._folders[title]:
                panel.build(gui)
        self._on(self._panel, "another panel", self._panel_changed)

    def _fill_choices(self, by: str, beside: str) -> None:
        assert self.levels is not None
        choices = tuple(self.levels.choices())
        self._by.options, self._beside.options = choices, (NOTHING, *choices)
        self._by.value = by if by in choices else choices[0]
        self._beside.value = beside if beside in choices else NOTHING
        self._fill_legend()

    def _scale(self, by: str) -> Scale:
        assert self.levels is not None
        return self.levels.scale(by, self.names(by))

    def _fill_legend(self) -> None:
        scale = self._scale(self._by.value)
        beside = None if self._beside.value in (NOTHING, self._by.value) else self._scale(self._beside.value)
        self._legend.content = words.legend(scale) + ("" if beside is None else words.legend(beside, "beside it"))
        self._classes.fill(self.levels, scale)

    def _recolored(self) -> None:
        if self.levels is not None:
            self._fill_legend()
            self._draw()

    def _placed(self) -> None:
        """A copy has come or gone: all of it is in the picture again."""
        self._recolored()
        self._home_all()

    def _draw(self) -> None:
        if self.stage is None or self.levels is None:
            return
        beside = None if self._beside.value == NOTHING else self._scale(self._beside.value)
        look = Look(
            self._scale(self._by.value),
            beside,
            frozenset(self._classes.hidden),
            self._size.value,
            self._active() is not None,
        )
        self.stage.draw(look, self._camera)
        drawn, total = self.stage.drawn, len(self.levels)
        self._status.content = f"**{words.plain(self._path.name)}** {total:,} points" + (
            f", {drawn:,} drawn" * (drawn < total)
        )
        self.server.flush()

    def _paint_background(self) -> None:
        color = BACKGROUNDS[self._background.value]
        self.server.scene.set_background_image(np.full((1, 1, 3), color, np.uint8))

    # -- operators ------------------------------------------------------------------------------------------------

    def _active(self) -> Panel | None:
        return self._panels.get(self._panel.value)

    def _panel_changed(self) -> None:
        self.overlay.clear()
        self._mark()
        active = self._active()
        for title, folder in self._folders.items():
            folder.visible = title == self._panel.value
        self._basis.visible = active is not None
        if self.levels is not None and active is not None:
            count = len(self.work.cloud)
            part = "" if count == len(self.levels) else f", an even sample of {len(self.levels):,}"
            self._basis.content = f"computed on {count:,} points{part}"
        self._draw()
        self._show_panel()

    def _show_panel(self) -> None:
        active = self._active()
        if active is not None and self.levels is not None:
            active.show()
            self.server.flush()

    # -- browsers -------------------------------------------------------------------------------------------------

    def _connected(self, client: "viser.ClientHandle") -> None:
        client.camera.on_update(self._camera_moved)

    def _camera_moved(self, camera: Any) -> None:
        self._moved = moved = time.monotonic()
        look = np.asarray(camera.look_at) - np.asarray(camera.position)
        half = np.arctan(np.tan(camera.fov / 2) * np.hypot(1.0, camera.aspect))
        self._camera = Camera(np.asarray(camera.position), look / max(np.linalg.norm(look), 1e-12), float(half))

        def rested() -> None:
            if self._moved == moved:
                self.worker.ask("draw", self._draw)

        timer = threading.Timer(STILL, rested)
        timer.daemon = True
        timer.start()

    def _has_copy(self) -> bool:
        return bool(self._beside.value != NOTHING)

    def _home_all(self) -> None:
        camera = self.server.initial_camera
        camera.position, camera.look_at = self._view()
        for client in self.server.get_clients().values():
            self._home(client)

    def _screenshot(self, client: Any) -> None:
        from PIL import Image

        if client is None:
            return
        image = client.get_render(client.camera.image_height, client.camera.image_width, transport_format="png")
        memory = io.BytesIO()
        Image.fromarray(image).save(memory, "png")
        client.send_file_download(f"{words.one_line(self._path.stem)}.png", memory.getvalue(), save_immediately=True)

    def _clicked(self, event: Any) -> None:
        ray = np.array(event.ray_origin), np.array(event.ray_direction)
        self.worker.ask("click", lambda: self._choose(*ray))

    def _choose(self, origin: np.ndarray, direction: np.ndarray) -> None:
        picked = None if self.stage is None else self.stage.pick(origin, direction)
        if picked is None:
            return
        self.picked = picked
        self._values.content = words.values(picked, self.names)
        self._mark()
        self._show_panel()

    def _mark(self) -> None:
        self.overlay.remove("picked")
        if self.picked is not None and self.stage is not None:
            place = self.picked.position[None].astype(np.float32)  # seen through, since others are near
            self.overlay.balls("picked", place, 2 * self.stage.point_size, MARKED, 0.5)


def _listed(path: Path) -> str:
    return words.one_line(str(path))

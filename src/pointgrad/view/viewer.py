"""The page that shows a point cloud."""

import io
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pointgrad.data import ClassMap, Cloud
from pointgrad.data.stream import Source
from pointgrad.errors import one_line, printable
from pointgrad.render import Palette, Scale, first_choice
from pointgrad.render.colors import ERROR, LABEL, RIGHT_OR_WRONG
from pointgrad.train import Trained
from pointgrad.view import network, text
from pointgrad.view.classes import Classes
from pointgrad.view.detail import Camera
from pointgrad.view.levels import Levels, Part, build
from pointgrad.view.page import Page
from pointgrad.view.panels import PANELS, Panel
from pointgrad.view.stage import Picked, Stage, Style

if TYPE_CHECKING:
    import viser

BUDGET = 1_000_000  # points drawn at once
SAMPLE_POINTS = 100_000  # points that the panels compute on
NONE = "none"
BACKGROUNDS = {"white": (255, 255, 255), "grey": (120, 124, 130), "black": (14, 16, 20)}
REST_SECONDS = 0.15  # time that a camera must rest before the level of detail is updated
RENDER_SECONDS = 60.0  # time in which a browser must answer a request for a screenshot
MARKER_COLOR = (255, 0, 160)


class Viewer(Page):
    """Shows point cloud files in all browsers connected to a server. The browsers share one set of controls.

    Args:
        server: viser server whose page is filled.
        paths: Files to choose from, at least one. The first is opened in a background thread.
        trained: Network that labels the open file, as returned by `pointgrad.train.load`.
        budget: Maximum number of points drawn at once.
        columns: Column names, as for `pointgrad.data.read`.
        category: Object category of the files, for part segmentation networks.
        palette: Rule for the colors of classes.
        classes: Classes that replace the codes of the labels. By default those of the network.

    Attributes:
        levels: The open cloud, None before a file is open.
        picked: The clicked point, None if no point was clicked.
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
        palette: Palette | None = None,
        classes: ClassMap | None = None,
    ) -> None:
        super().__init__(server)
        self._palette = palette or Palette()
        self.paths, self.trained = list(paths), trained
        self._class_map = classes or (None if trained is None else trained.class_map)
        self._budget, self._columns, self._category = budget, columns, category
        self.levels: Levels | None = None
        self.picked: Picked | None = None
        self._clouds: Callable[[], Iterable[Cloud]] = tuple
        self._names: dict[str, dict[int, str]] = {}
        self._sample: Part | None = None
        self._camera: Camera | None = None
        self._rendering: set[int] = set()  # browsers that are rendering a screenshot
        self._expected = 0  # points of the file that is being opened
        self._path = self.paths[0]  # the open file
        self._build()
        server.on_client_connect(self._connected)
        server.scene.on_click()(self._clicked)
        self.open(self._path)

    # -- for panels -----------------------------------------------------------------------------------------------

    @property
    def sample(self) -> Part:
        """Points that the panels compute on: all, or an even sample of about 100,000 of a larger cloud."""
        if self._sample is None:
            assert self.levels is not None
            self._sample = self.levels.sample(SAMPLE_POINTS)
        return self._sample

    def names(self, by: str) -> dict[int, str]:
        """Class names of a column, by class number."""
        known = self._names.get(by, {})
        if by == ERROR:
            return {**RIGHT_OR_WRONG, -1: "unknown"}
        if self.trained is not None and (by == network.PREDICTION or (by == LABEL and not known)):
            return dict(enumerate(self.trained.classes))
        return known

    def redraw_on(self, control: Any) -> None:
        """Update the active panel whenever a user changes a control."""
        self._on_change(control, "panel", self._show_panel)

    # -- files ----------------------------------------------------------------------------------------------------

    def open(self, path: Path) -> None:
        """Open a file in the background. If it cannot be read, the current file stays open."""
        self.worker.submit("open", lambda: self._open(path))

    def wait(self) -> bool:
        """Wait for all submitted tasks.

        Returns:
            Whether a file is open.
        """
        self.worker.wait()
        return self.levels is not None

    def close(self) -> None:
        """Stop the worker and close the file. The server keeps running."""
        self.worker.stop()
        self.levels = None
        self._clear()

    def _open(self, path: Path) -> None:
        started = time.monotonic()
        self._progress.visible = True
        try:
            source = Source(path, self._columns, self._class_map)
            clouds = self._stream(source)
            levels = build(clouds, self._show_progress)
            names = {by: source.names(by) for by in levels.choices()}
        except (ValueError, OSError, MemoryError, ImportError) as error:
            self._file.value = _display_name(self._path)
            self.report_error(text.describe_error(path, error))
            return
        finally:
            self._progress.visible = False
        self._path, self.levels, self.picked, self._sample, self._clouds = path, levels, None, None, clouds
        self._clear()  # only now: a prediction stops once `levels` has changed
        self.stage = Stage(self.server.scene, levels, self._budget)
        self._names = names
        self._values.content = "Click a point."
        self._file.value = _display_name(path)
        self._fill_choices(first_choice(self.sample.cloud), NONE)
        self._reset_cameras()
        self._draw()
        self._panel_changed()
        if self.trained is not None:
            self._start_prediction(self.trained, levels)
        dropped = levels.total - len(levels)
        print(
            f"{_display_name(path)}: {levels.total:,} points in {time.monotonic() - started:.1f} s"
            + (f", {dropped:,} not shown (non-finite coordinates)" if dropped else ""),
            flush=True,
        )

    # -- the network ----------------------------------------------------------------------------------------------

    def _start_prediction(self, trained: Trained, levels: Levels) -> None:
        def set_status(status: str) -> None:
            self._prediction_status.content = status

        def add_columns(columns: network.Columns) -> None:
            self.worker.submit("prediction", lambda: self._add_prediction(levels, columns))

        network.BackgroundPrediction(
            trained,
            self._clouds,
            levels,
            is_current=lambda: self.levels is levels,
            set_status=set_status,
            on_columns=add_columns,
            on_error=self.report_error,
        ).start()

    def _add_prediction(self, levels: Levels, columns: network.Columns) -> None:
        if self.levels is not levels or self.stage is None:
            return
        first = network.PREDICTION not in levels.added  # the file may have a column of this name
        for name, values in columns.named().items():
            levels.add(name, values)
        self.stage.invalidate()
        self._sample = None
        self._fill_choices(
            network.PREDICTION if first else self._by.value,
            LABEL if first and levels.has_labels else self._compare.value,
        )
        if first and levels.has_labels:
            self._reset_cameras()
        self._draw()
        self._prediction_status.content = columns.summary()

    def _stream(self, file: Source) -> Callable[[], Iterable[Cloud]]:
        """Function that streams the chunks of a file from the beginning."""
        if self._category is None:
            return file.parts
        return lambda: (replace(part, category=self._category) for part in file.parts())

    def _show_progress(self, step: str, done: int) -> None:
        fraction = done / max(1, self._expected) if step != "reading" else 0.0
        if step == "reading":
            self._expected = done
        self._status.content = f"{step} {done:,} points"
        self._progress.value = 100 * min(1.0, fraction)

    # -- controls -------------------------------------------------------------------------------------------------

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
        files = {_display_name(path): path for path in self.paths}
        self._file = gui.add_dropdown("File", tuple(files), initial_value=next(iter(files)), visible=len(files) > 1)
        self._by = gui.add_dropdown("Colour by", ("height",))
        self._compare = gui.add_dropdown("Compare with", (NONE,), hint="Show a second copy, coloured by this column")
        self._size = gui.add_slider("Point size", 0.2, 5.0, 0.1, 1.0)
        self._background = gui.add_dropdown("Background", tuple(BACKGROUNDS), initial_value="white")
        self._prediction_status = gui.add_markdown("", visible=self.trained is not None)
        home = gui.add_button("Reset camera")
        shot = gui.add_button("Screenshot")
        self._legend = gui.add_html("")
        self._classes = Classes(gui, self._on_change, self._draw)
        with gui.add_folder("Values"):
            self._values = gui.add_markdown("Click a point.")
        self._on_change(self._file, "open", lambda: self._open(files[self._file.value]))
        self._on_change(self._by, "colors", self._recolored)
        self._on_change(self._compare, "colors", self._copy_changed)
        self._on_change(self._size, "draw", self._draw)
        self._on_change(self._background, "background", self._paint_background)
        home.on_click(lambda event: self._reset_camera(event.client))
        shot.on_click(lambda event: self._screenshot(event.client))
        self._paint_background()

    def _build_operators(self, gui: Any) -> None:
        panels: list[Panel] = [panel(self) for panel in PANELS if self.trained is not None or not panel.needs_network]
        self._panels = {panel.title: panel for panel in panels}
        self._panel = gui.add_dropdown("Operator", (NONE, *self._panels), initial_value=NONE)
        self._basis = gui.add_markdown("", visible=False)
        self._folders = {}
        for title, panel in self._panels.items():
            self._folders[title] = gui.add_folder(title, visible=False)
            with self._folders[title]:
                panel.build(gui)
        self._on_change(self._panel, "choose panel", self._panel_changed)

    def _fill_choices(self, by: str, second: str) -> None:
        assert self.levels is not None
        choices = tuple(self.levels.choices())
        self._by.options, self._compare.options = choices, (NONE, *choices)
        self._by.value = by if by in choices else choices[0]
        self._compare.value = second if second in choices else NONE
        self._fill_legend()

    def _scale(self, by: str) -> Scale:
        assert self.levels is not None
        return replace(self.levels.scale(by, self.names(by)), palette=self._palette)

    def _fill_legend(self) -> None:
        scale = self._scale(self._by.value)
        second = None if self._compare.value in (NONE, self._by.value) else self._scale(self._compare.value)
        self._legend.content = text.legend(scale) + ("" if second is None else text.legend(second, "second copy"))
        self._classes.fill(self.levels, scale)

    def _recolored(self) -> None:
        if self.levels is not None:
            self._fill_legend()
            self._draw()

    def _copy_changed(self) -> None:
        """Redraw after a copy was added or removed, and show the whole scene."""
        self._recolored()
        self._reset_cameras()

    def _draw(self) -> None:
        if self.stage is None or self.levels is None:
            return
        second = None if self._compare.value == NONE else self._scale(self._compare.value)
        style = Style(
            self._scale(self._by.value),
            second,
            frozenset(self._classes.hidden),
            self._size.value,
            self._active() is not None,
        )
        self.stage.draw(style, self._camera)
        drawn, total = self.stage.drawn, len(self.levels)
        self._status.content = f"**{text.escape_markdown(self._path.name)}** {total:,} points" + (
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
            count = len(self.sample.cloud)
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

    async def _camera_moved(self, camera: Any) -> None:
        axis = np.asarray(camera.look_at) - np.asarray(camera.position)
        half = np.arctan(np.tan(camera.fov / 2) * np.hypot(1.0, camera.aspect))
        self._camera = Camera(np.asarray(camera.position), axis / max(np.linalg.norm(axis), 1e-12), float(half))
        self.worker.submit("rest", self._draw, REST_SECONDS)

    def _has_copy(self) -> bool:
        return bool(self._compare.value != NONE)

    def _reset_cameras(self) -> None:
        camera = self.server.initial_camera
        camera.position, camera.look_at = self._camera_pose()
        for client in self.server.get_clients().values():
            self._reset_camera(client)

    def _screenshot(self, client: Any) -> None:
        from PIL import Image

        if client is None or client.client_id in self._rendering:
            return
        self._rendering.add(client.client_id)
        size = client.camera.image_height, client.camera.image_width
        try:
            image = client.get_render(*size, transport_format="png", timeout=RENDER_SECONDS)
        except TimeoutError:
            self.report_error(f"the browser must send the screenshot within {RENDER_SECONDS:.0f} s, got none")
            return
        finally:
            self._rendering.discard(client.client_id)
        memory = io.BytesIO()
        Image.fromarray(image).save(memory, "png")
        client.send_file_download(f"{one_line(self._path.stem)}.png", memory.getvalue(), save_immediately=True)

    def _clicked(self, event: Any) -> None:
        ray = np.array(event.ray_origin), np.array(event.ray_direction)
        self.worker.submit("click", lambda: self._choose(*ray))

    def _choose(self, origin: np.ndarray, direction: np.ndarray) -> None:
        picked = None if self.stage is None else self.stage.pick(origin, direction)
        if picked is None:
            return
        self.picked = picked
        self._values.content = text.point_table(picked, self.names)
        self._mark()
        self._show_panel()

    def _mark(self) -> None:
        self.overlay.remove("picked")
        if self.picked is not None and self.stage is not None:
            place = self.picked.position[None].astype(np.float32)
            self.overlay.balls("picked", place, 2 * self.stage.point_size, MARKER_COLOR, 0.5)  # shows points inside


def _display_name(path: Path) -> str:
    return printable(path)

"""The page that shows a point cloud."""

import io
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pointgrad.data import ClassMap
from pointgrad.errors import one_line
from pointgrad.render import Palette, Scale
from pointgrad.render.colors import ERROR, LABEL, RIGHT_OR_WRONG
from pointgrad.train import Trained
from pointgrad.view import network, text
from pointgrad.view.classes import Classes
from pointgrad.view.clipping import Clipping
from pointgrad.view.detail import Camera
from pointgrad.view.display import Settings, point_limits
from pointgrad.view.inputs import Clouds, File, Input
from pointgrad.view.levels import Levels, Part, build
from pointgrad.view.measure import Measure
from pointgrad.view.operators import NONE, Operators
from pointgrad.view.page import Page
from pointgrad.view.stage import FRONT, HOME, SIDE, TOP, Picked, Stage, Style

if TYPE_CHECKING:
    import viser

BUDGET = 1_000_000  # points drawn at once
SAMPLE_POINTS = 100_000  # points that the panels compute on
BACKGROUNDS = {"white": (255, 255, 255), "grey": (120, 124, 130), "black": (14, 16, 20)}
REST_SECONDS = 0.15  # time that a camera must rest before the level of detail is updated
UPDATE_SECONDS = 0.1  # minimum time between two updates of clouds in memory
RENDER_SECONDS = 60.0  # time limit of a browser for a screenshot
VIEWS = {"Top": TOP, "Front": FRONT, "Side": SIDE}


class Viewer(Page):
    """Shows point clouds in all browsers connected to a server. The browsers share one set of controls.

    Args:
        server: viser server whose page is filled.
        paths: Files to choose from. The first is opened in a background thread. Without files, call `show`.
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
        paths: Sequence[Path] = (),
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
        self._input: Input | None = None  # what is open
        self._drawn = 0.0  # time at which the last update was drawn
        self._names: dict[str, dict[int, str]] = {}
        self._sample: Part | None = None
        self._camera: Camera | None = None
        self._rendering: set[int] = set()  # browsers that are rendering a screenshot
        self._expected = 0  # points of the file that is being opened
        self._build()
        server.on_client_connect(self._connected)
        server.scene.on_click()(self._clicked)
        if self.paths:
            self.open(self.paths[0])

    # -- for panels -----------------------------------------------------------------------------------------------

    @property
    def sample(self) -> Part:
        """Points that the panels compute on: all, or an even sample of 100,000 of a larger cloud."""
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
        self._on_change(control, "panel", self.operators.show)

    # -- files ----------------------------------------------------------------------------------------------------

    def open(self, path: Path) -> None:
        """Open a file in the background. If it cannot be read, the current cloud stays open."""
        self.worker.submit("open", lambda: self._open_path(path))

    def show(self, clouds: Clouds) -> None:
        """Show clouds in memory, drawn in the background. Frequent calls draw only the last clouds.

        Cameras, colors and the position of the scene are kept if the clouds are about where the last ones were.
        """
        self.worker.submit("open", lambda: self._open(clouds), self._drawn + UPDATE_SECONDS - time.monotonic())

    def wait(self) -> bool:
        """Wait for all submitted tasks.

        Returns:
            Whether a cloud is open.
        """
        self.worker.wait()
        return self.levels is not None

    def close(self) -> None:
        """Stop the worker and close the file. The server keeps running."""
        self.worker.stop()
        self.levels = None
        self._clear()

    def _open_path(self, path: Path) -> None:
        self._open(File(path, self._columns, self._category, self._class_map))

    def _open(self, source: Input) -> None:
        started = time.monotonic()
        updates = isinstance(source, Clouds)
        self._progress.visible = not updates
        try:
            levels = build(source.parts) if updates else build(source.parts, self._show_progress)
            network.add_error(levels)
            names = {by: source.names(by) for by in levels.choices()}
        except (ValueError, OSError, MemoryError, ImportError) as error:
            self._show_input()
            self.report_error(text.describe_error(source.label, error))
            return
        finally:
            self._progress.visible = False
        before, choices = (self.stage if updates else None), self._by.options
        chosen = None if self._input is None else self._input.preferred
        stage = Stage(self.server.scene, levels, self._budget, before)
        self._input, self.levels, self.picked, self._sample = source, levels, None, None
        with self.server.atomic():  # browsers draw the new points at once in place of the old ones
            self._clear()  # only now: a prediction stops once `levels` has changed
            self.stage = stage
            self._names = names
            self._values.content = "Click a point."
            self._show_input()
            self._measure.clear()
            same = before is not None and choices == tuple(levels.choices()) and chosen == source.preferred
            by = self._by.value if same else source.first_choice(self.sample.cloud)
            self._fill_choices(by, self._compare.value if same else NONE)
            if not stage.kept:
                self._clipping.fit(stage)
                self.framing.show_all(HOME)
            self._draw()
        self.operators.update()
        if self.trained is not None:
            self._start_prediction(self.trained, levels, source)
        if updates:
            self._drawn = time.monotonic()
            return
        dropped = levels.total - len(levels)
        print(
            f"{source.label}: {levels.total:,} points in {time.monotonic() - started:.1f} s"
            + (f", {dropped:,} not shown (non-finite coordinates)" if dropped else ""),
            flush=True,
        )

    def _show_input(self) -> None:
        """Show which file or clouds are open."""
        opened = self._input
        if isinstance(opened, File):
            self._file.value = self._titles.get(opened.path, opened.label)
            self._file.hint = opened.label
        self._apart.visible = isinstance(opened, Clouds) and len(opened.clouds) > 1
        if isinstance(opened, Clouds):
            self._apart.value = opened.side_by_side

    def _move_apart(self) -> None:
        if isinstance(self._input, Clouds):
            self._open(replace(self._input, side_by_side=self._apart.value))

    # -- the network ----------------------------------------------------------------------------------------------

    def _start_prediction(self, trained: Trained, levels: Levels, source: Input) -> None:
        def set_status(status: str) -> None:
            self._prediction_status.content = status

        def add_columns(columns: network.Columns) -> None:
            self.worker.submit("prediction", lambda: self._add_prediction(levels, columns))

        network.BackgroundPrediction(
            trained,
            source.parts,
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
        self._draw()
        if first and levels.has_labels:
            self.framing.show_all()
        self._prediction_status.content = columns.summary()

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
        self.operators = Operators(self, gui, self._on_change, self._on_click, self._draw)
        tabs = gui.add_tab_group()
        with tabs.add_tab("View"):
            self._build_view(gui)
        with tabs.add_tab("Operators"):
            self.operators.build(gui)

    def _build_view(self, gui: Any) -> None:
        files = text.short_names(self.paths)
        self._titles = {path: name for name, path in files.items()}
        self._file = gui.add_dropdown("File", tuple(files) or (NONE,), visible=len(files) > 1)
        self._apart = gui.add_checkbox("Side by side", False, visible=False, hint="Move the clouds apart")
        self._by = gui.add_dropdown("Colour by", ("height",))
        self._compare = gui.add_dropdown("Compare with", (NONE,), hint="Show a second view, coloured by this column")
        hint = "Show only points whose prediction differs from their label"
        self._only_wrong = gui.add_checkbox("Only errors", False, hint=hint, visible=False)
        self._size = gui.add_slider("Point size", 0.2, 5.0, 0.1, 1.0, hint="1: adapted to the density of the points")
        self._shading = gui.add_checkbox("Shading", True, hint="Darken edges and cavities (eye-dome lighting)")
        self._background = gui.add_dropdown("Background", tuple(BACKGROUNDS), initial_value="white")
        self._prediction_status = gui.add_markdown("", visible=self.trained is not None)
        home = gui.add_button("Reset camera")
        views = gui.add_button_group("View from", tuple(VIEWS))
        shot = gui.add_button("Screenshot")
        self._legend = gui.add_html("")
        self._classes = Classes(gui, self._on_change, self._draw)
        self._clipping = Clipping(gui, self.server.scene, self._on_change, self._draw)
        self._measure = Measure(gui, self.server.scene, self._on_change)
        with gui.add_folder("Values"):
            self._values = gui.add_markdown("Click a point.")
        self._on_change(self._file, "open", lambda: self._open_path(files[self._file.value]))
        self._on_change(self._apart, "open", self._move_apart)
        self._on_change(self._by, "colors", self._recolored)
        self._on_change(self._compare, "colors", self._copy_changed)
        for control in (self._only_wrong, self._size, self._shading):
            self._on_change(control, "draw", self._draw)
        self._on_change(self._background, "background", self._paint_background)
        home.on_click(lambda event: self._look(event.client, HOME))
        views.on_click(lambda event: self._look(event.client, VIEWS[event.target.value]))
        shot.on_click(lambda event: self._screenshot(event.client))
        self._paint_background()

    def _fill_choices(self, by: str, second: str) -> None:
        assert self.levels is not None
        choices = tuple(self.levels.choices())
        self._by.options, self._compare.options = choices, (NONE, *choices)
        self._by.value = by if by in choices else choices[0]
        self._compare.value = second if second in choices else NONE
        self._only_wrong.visible = ERROR in choices
        self._only_wrong.value = self._only_wrong.value and ERROR in choices
        self._fill_legend()

    def _scale(self, by: str) -> Scale:
        assert self.levels is not None
        return replace(self.levels.scale(by, self.names(by)), palette=self._palette)

    def _fill_legend(self) -> None:
        scale = self._scale(self._by.value)
        second = None if self._compare.value in (NONE, self._by.value) else self._scale(self._compare.value)
        self._legend.content = text.legend(scale) + ("" if second is None else text.legend(second, "second view"))
        self._classes.fill("" if self._input is None else self._input.label, scale)

    def _recolored(self) -> None:
        if self.levels is not None:
            self._fill_legend()
            self._draw()

    def _copy_changed(self) -> None:
        """Redraw with one or two views, and show the whole cloud in them."""
        self._recolored()
        self.framing.show_all()

    def _draw(self) -> None:
        if self.stage is None or self.levels is None or self._input is None:
            return
        second = None if self._compare.value == NONE else self._scale(self._compare.value)
        clip = self._clipping.box(self.stage)
        dim = None if self.operators.active is None else BACKGROUNDS[self._background.value]
        style = Style(
            self._scale(self._by.value),
            second,
            frozenset(self._classes.hidden),
            self._only_wrong.value,
            clip,
            self._size.value,
            dim,
        )
        titles = () if second is None else (self._by.value, self._compare.value)
        self._clipping.draw_edges(self.stage)
        self.display.set(Settings(self._shading.value and dim is None, titles, clip, point_limits(self._size.value)))
        self.stage.draw(style, self._camera)
        drawn, total, lost = self.stage.drawn, len(self.levels), self.levels.total - len(self.levels)
        more = f", {drawn:,} drawn" * (drawn < total) + f", {lost:,} not shown (non-finite coordinates)" * (lost > 0)
        self._status.content = f"**{text.escape_markdown(self._input.title)}** {total:,} points{more}"
        self.server.flush()

    def _paint_background(self) -> None:
        color = BACKGROUNDS[self._background.value]
        self.server.scene.set_background_image(np.full((1, 1, 3), color, np.uint8))
        self._draw()

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
        name = Path(self._input.title).stem if self._input is not None else "pointgrad"
        client.send_file_download(f"{one_line(name)}.png", memory.getvalue(), save_immediately=True)

    def _clicked(self, event: Any) -> None:
        ray = self.framing.ray(event)
        self.worker.submit("click", lambda: self._choose(*ray))

    def _choose(self, origin: np.ndarray, direction: np.ndarray) -> None:
        picked = None if self.stage is None else self.stage.pick(origin, direction)
        if picked is None or self._input is None:
            return
        self.picked = picked
        self._values.content = text.point_table(self._input.original(picked.row), self.names)
        self._measure.add(picked)
        self._mark()
        self.operators.show()

    def _mark(self) -> None:
        self._measure.mark(self.picked)

"""The page of a training run: metrics over time, confusion matrix and worst validation examples."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pointgrad.data import Cloud
from pointgrad.errors import printable
from pointgrad.render import Palette, Scale
from pointgrad.render.colors import ERROR, HEIGHT, LABEL
from pointgrad.train.checkpoint import BEST
from pointgrad.train.curve_style import loss_note
from pointgrad.train.evaluation import Evaluation, Example
from pointgrad.view import run_text as text
from pointgrad.view.curves import Curves
from pointgrad.view.display import Settings, point_limits
from pointgrad.view.levels import build
from pointgrad.view.network import PREDICTION
from pointgrad.view.page import Page
from pointgrad.view.run_data import Follower, Row, RunState
from pointgrad.view.stage import HOME, SIZE, Stage, Style
from pointgrad.view.text import legend
from pointgrad.view.worker import Worker

if TYPE_CHECKING:
    import viser

REFRESH_SECONDS = 1.0  # between two reads of the folder
ALL, NONE = "all", "none"
NOT_KEPT = "This run has no saved evaluation of its best checkpoint."

Progress = Callable[[int, int], None]  # number of batches done, total number
Evaluate = Callable[[Path, Progress], Evaluation]


class RunViewer(Page):
    """Shows a training run, and follows it while it is running, in all browsers connected to a server.

    The browsers share one set of controls. Nothing in the run folder is changed.

    Args:
        server: viser server whose page is filled.
        path: Run folder of `pointgrad train`.
        evaluate: Called as `evaluate(path, progress)` when a user clicks "Evaluate now", which is offered for runs
            without a saved evaluation of their best checkpoint. It reports `progress(done, total)` in batches. Without
            this function the button is not shown.
        palette: Rule for the colors of classes.

    Attributes:
        state: Contents of the folder when it was last read.
        evaluation: The evaluation that is shown.
        chosen: The example that is shown.
    """

    def __init__(
        self,
        server: "viser.ViserServer",
        path: Path,
        *,
        evaluate: Evaluate | None = None,
        palette: Palette | None = None,
    ) -> None:
        super().__init__(server)
        self._palette = palette or Palette()
        self.path, self._evaluate = path, evaluate
        self.state: RunState | None = None
        self.evaluation: Evaluation | None = None
        self.chosen: Example | None = None
        self._evaluated: tuple[object, Evaluation] | None = None  # checkpoint version and its evaluation, made here
        self._follower = Follower(path)
        self._problems: tuple[str, ...] = ()
        self._titles: dict[str, Example] = {}
        self._plotted: list[Row] = []
        self._build()
        self._evaluator = Worker(self.report_error)
        self._ended = threading.Event()
        self.worker.submit("refresh", self.refresh)
        self._clock = threading.Thread(target=self._tick, name="pointgrad view clock", daemon=True)
        self._clock.start()

    def wait(self) -> None:
        """Wait for all submitted tasks."""
        self._evaluator.wait()
        self.worker.wait()

    def close(self) -> None:
        """Stop following the run. The server keeps running."""
        self._ended.set()
        self._clock.join()
        self._evaluator.stop()
        self.worker.stop()
        self._clear()

    # -- following ------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        while not self._ended.wait(REFRESH_SECONDS):
            self.worker.submit("refresh", self.refresh)

    def refresh(self) -> None:
        """Read the folder and update the page. Runs on the worker once a second."""
        state, before = self._follower.read(), self.state
        self.state = state
        for problem in state.problems:
            if problem not in self._problems:
                self.report_error(problem)
        if self._problems and not state.problems:
            print(f"{printable(self.path)}: readable again", flush=True)
        self._problems = state.problems
        _set(self._header, text.header(self.path.name or str(self.path), state))
        _set(self._log, text.log(state.log))
        compared = any("train_loss" in row and "val_loss" in row for row in state.history)
        note = loss_note(state.config) if compared else ""
        _set(self._loss_note, note and text.SMALL.format(note))
        if state.history != self._plotted or before is None:
            self._curves_note.visible = not state.history
            self.curves.draw(state.history)
            self._plotted = state.history
        self._show_evaluation(state)
        self.server.flush()

    def _show_evaluation(self, state: RunState) -> None:
        if state.best is None:
            self._evaluated = None  # it belonged to another run
        version, made = self._evaluated or (None, None)
        evaluation = state.evaluation or made
        stale = state.evaluation is None and state.best != version
        self._evaluate_button.visible = self._evaluate is not None and stale
        if evaluation is None:
            note = f"No {BEST} yet: the first epoch is not finished." if state.best is None else NOT_KEPT
        else:
            note = "The best checkpoint is newer than this evaluation." if stale else ""
        _set(self._evaluation_note, note)
        if evaluation is not self.evaluation:
            self.evaluation = evaluation
            self._table.content = "" if evaluation is None else text.confusion_table(evaluation, self._palette)
            self._summary.content = "" if evaluation is None else text.confusion_summary(evaluation)
            classes = (ALL, *(() if evaluation is None else evaluation.classes))
            kept = self._class.value if self._class.value in classes else ALL
            self._class.options, self._class.value = classes, kept
            self._filter_examples()

    def _evaluate_now(self) -> None:
        """Evaluate the best checkpoint. Runs on its own worker, because it may take long."""
        state = self.state
        if self._evaluate is None or state is None:
            return
        self._progress.value, self._progress.visible, self._evaluate_button.disabled = 0.0, True, True

        def progress(done: int, total: int) -> None:
            self._progress.value = 100 * done / max(total, 1)

        try:
            made = self._evaluate(self.path, progress)
            epoch = state.best_epoch or made.epoch
            self._evaluated = state.best, replace(made, epoch=epoch)
        finally:
            self._progress.visible, self._evaluate_button.disabled = False, False
        self.worker.submit("refresh", self.refresh)

    # -- controls -------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        gui: Any = self.server.gui
        gui.configure_theme(control_width="large", show_logo=False, show_share_button=False)
        gui.main_panel.dock_right()
        self.server.scene.set_background_image(np.full((1, 1, 3), 255, np.uint8))
        self._header = gui.add_markdown("")
        self._evaluation_note = gui.add_markdown("")
        hint = "Evaluate the best checkpoint on the validation data"
        self._evaluate_button = gui.add_button("Evaluate now", visible=False, hint=hint)
        self._progress = gui.add_progress_bar(0.0, visible=False)
        tabs = gui.add_tab_group()
        curves = tabs.add_tab("Curves")
        self.curves = Curves(gui, curves)
        with curves:
            self._curves_note = gui.add_markdown("Curves appear after the first epoch.", order=0)
            self._loss_note = gui.add_html("", order=1.5)  # below the chart of the losses
            self._log = gui.add_html("", order=10)
        with tabs.add_tab("Confusion"):
            self._table, self._summary = gui.add_html(""), gui.add_html("")
        with tabs.add_tab("Examples"):
            self._build_examples(gui)
        self._evaluate_button.on_click(lambda event: self._evaluator.submit("evaluate", self._evaluate_now))

    def _build_examples(self, gui: Any) -> None:
        self._example = gui.add_dropdown("Example", (NONE,), initial_value=NONE, hint="Sorted by error, worst first")
        self._step = gui.add_button_group("", ("Previous", "Next"))
        self._class = gui.add_dropdown("True class", (ALL,), initial_value=ALL)
        self._wrong = gui.add_checkbox("Errors only", False, hint="Hide examples without a wrong prediction")
        self._by = gui.add_dropdown("Colour by", (PREDICTION, ERROR), visible=False)
        self._size = gui.add_slider("Point size", 0.2, 5.0, 0.1, 1.0)
        home = gui.add_button("Reset camera")
        self._details, self._legend = gui.add_html(""), gui.add_html("")
        self._on_change(self._example, "choose", lambda: self._choose(self._titles.get(self._example.value)))
        for control in (self._class, self._wrong):
            self._on_change(control, "list", self._filter_examples)
        for control in (self._by, self._size):
            self._on_change(control, "draw", self._draw)
        self._step.on_click(lambda event: self._step_to(event.target.value))
        home.on_click(lambda event: self._look(event.client, HOME))

    # -- examples -------------------------------------------------------------------------------------------------

    def _filter_examples(self) -> None:
        """List the examples that pass the filters; show the current one if it passes, otherwise the worst."""
        found = self.evaluation
        shown = [] if found is None else list(enumerate(found.examples))
        if found is not None and self._class.value != ALL:
            number = found.classes.index(self._class.value)
            shown = [(place, one) for place, one in shown if bool((one.target == number).any())]
        if self._wrong.value:
            shown = [(place, one) for place, one in shown if one.right < 1]
        self._titles = {} if found is None else {text.title(place, one, found.classes): one for place, one in shown}
        kept = [title for title, one in self._titles.items() if self.chosen and one.source == self.chosen.source]
        first = next(iter([*kept, *self._titles]), NONE)
        self._example.options = tuple(self._titles) or (NONE,)
        self._example.value = first
        self._choose(self._titles.get(first))

    def _step_to(self, where: str) -> None:
        """Select the next or previous example at once, so that every quick click counts; the worker draws it."""
        titles = list(self._titles)
        if self._example.value in titles:
            place = titles.index(self._example.value) + (1 if where == "Next" else -1)
            self._example.value = titles[place % len(titles)]
            self.worker.submit("choose", lambda: self._choose(self._titles.get(self._example.value)))

    def _choose(self, example: Example | None) -> None:
        if example is self.chosen and example is not None:
            return
        self.chosen = example
        self._clear()
        if example is None or self.evaluation is None:
            self._details.content, self._legend.content = "", ""
            if self.evaluation is not None:
                self._details.content = text.SMALL.format("No saved example passes these filters.")
            return
        per_point = bool(example.target.dim())
        self._by.visible = per_point
        features, labels = {}, None
        if per_point:
            wrong = (example.predicted != example.target).long()
            features = {PREDICTION: example.predicted, ERROR: wrong.masked_fill(example.target < 0, -1)}
            labels = example.target
        cloud = Cloud(example.points, features, labels=labels, source=example.source)
        self._details.content = text.details(example, self.evaluation.classes)
        self._legend.content = text.legend(example, self.evaluation.classes, self._palette) if per_point else ""
        self.stage = Stage(self.server.scene, build(lambda: [cloud]), len(cloud))
        self._draw()
        self.framing.show_all()  # from the direction of each camera
        self.server.flush()

    def _draw(self) -> None:
        stage, example, found = self.stage, self.chosen, self.evaluation
        if stage is None or example is None or found is None:
            return
        titles: tuple[str, ...]
        top = np.array([0.0, 0.0, stage.extent[2] / 2 + SIZE / 12])
        if example.target.dim():
            by, accuracy = self._by.value, f"{100 * example.right:.1f} % correct"
            names = dict(enumerate(found.classes))
            shown, truth = (Scale(column, "class", names=names, palette=self._palette) for column in (by, LABEL))
            style = Style(shown, truth, size=self._size.value)
            titles = f"{by}: {accuracy}", "ground truth"
        else:
            scale = stage.levels.scale(HEIGHT, {})
            style, titles = Style(scale, size=self._size.value), ()
            self._legend.content = legend(scale)
            true, predicted = (found.classes[int(each)] for each in (example.target, example.predicted))
            confidence = f"{100 * example.confidence:.0f} %"
            caption = f"{predicted} ({confidence}), correct"
            if true != predicted:
                caption = f"predicted: {predicted} ({confidence}), true: {true}"
            self.overlay.label("prediction", caption, top, "bottom-center")
        self.display.set(Settings(titles=titles, limits=point_limits(self._size.value)))
        stage.draw(style, None)
        self.server.flush()

    # -- browsers -------------------------------------------------------------------------------------------------

    def _has_copy(self) -> bool:
        return self.chosen is not None and bool(self.chosen.target.dim())


def _set(handle: Any, content: str) -> None:
    """Set the content of a control unless it is unchanged, in which case nothing is sent."""
    if handle.content != content:
        handle.content = content

"""The page of a training: its curves, its confusion matrix, and the clouds that it does worst on."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pointgrad.data import Cloud
from pointgrad.render import Scale
from pointgrad.render.colors import ERROR, HEIGHT, LABEL
from pointgrad.train.checkpoint import BEST
from pointgrad.train.evaluation import Evaluation, Example
from pointgrad.view import run_words as words
from pointgrad.view.curves import Curves
from pointgrad.view.levels import build
from pointgrad.view.network import PREDICTION
from pointgrad.view.page import Page
from pointgrad.view.run_data import Follower, Moment, Row
from pointgrad.view.stage import SIZE, Look, Stage
from pointgrad.view.words import legend
from pointgrad.view.worker import Worker

if TYPE_CHECKING:
    import viser

SECONDS = 1.0  # between two looks at the folder
ALL, NONE = "all", "none"
NOT_KEPT = "This run has kept no evaluation of its best checkpoint."

Progress = Callable[[int, int], None]  # batches that are done, and all
Evaluate = Callable[[Path, Progress], Evaluation]


class RunViewer(Page):
    """Shows a run in all browsers that are connected to a server, and follows it; they share one set of controls.

    server: whose page is filled. path: a run folder of `pointgrad train`; nothing in it is changed.
    evaluate: called as `evaluate(path, progress)` to evaluate the best checkpoint of a run that has kept no evaluation,
        when somebody asks for it; `progress(done, all)` counts batches. Without it nobody can ask.
    """

    def __init__(self, server: "viser.ViserServer", path: Path, *, evaluate: Evaluate | None = None) -> None:
        super().__init__(server)
        self.path, self._evaluate = path, evaluate
        self.moment: Moment | None = None
        self.evaluation: Evaluation | None = None  # that is shown
        self.chosen: Example | None = None
        self._made: tuple[object, Evaluation] | None = None  # here, of this version of the checkpoint
        self._follower = Follower(path)
        self._told: tuple[str, ...] = ()
        self._titles: dict[str, Example] = {}
        self._plotted: list[Row] = []
        self._seen: np.ndarray | None = None  # the middle of what browsers look at
        self._build()
        self._evaluator = Worker(self.tell)
        self._ended = threading.Event()
        self.worker.ask("look", self.look)
        self._clock = threading.Thread(target=self._tick, name="pointgrad view clock", daemon=True)
        self._clock.start()

    def wait(self) -> None:
        """Returns when everything that was asked for is done."""
        self._evaluator.wait()
        self.worker.wait()

    def close(self) -> None:
        """Ends what is being done. The server is not touched."""
        self._ended.set()
        self._clock.join()
        self._evaluator.stop()
        self.worker.stop()
        self._clear()

    # -- following ------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        while not self._ended.wait(SECONDS):
            self.worker.ask("look", self.look)

    def look(self) -> None:
        """Reads what is new in the folder, and shows it. In the viewer's thread, once a second."""
        moment, before = self._follower.look(), self.moment
        self.moment = moment
        for problem in moment.problems:
            if problem not in self._told:
                self.tell(problem)
        if self._told and not moment.problems:
            print(f"{self.path}: can be read again", flush=True)
        self._told = moment.problems
        _set(self._head, words.head(self.path.name or str(self.path), moment))
        _set(self._log, words.log(moment.log))
        if moment.history != self._plotted or before is None:
            self._waiting.visible = not moment.history
            self.curves.draw(moment.history)
            self._plotted = moment.history
        self._show_evaluation(moment)
        self.server.flush()

    def _show_evaluation(self, moment: Moment) -> None:
        if moment.best is None:
            self._made = None  # it was of another run
        of, made = self._made or (None, None)
        own = moment.evaluation or made
        stale = moment.evaluation is None and moment.best != of
        self._now.visible = self._evaluate is not None and stale
        if own is None:
            reason = f"There is no {BEST} yet: no epoch is finished." if moment.best is None else NOT_KEPT
        else:
            reason = "The best checkpoint is newer than this evaluation." if stale else ""
        _set(self._missing, reason)
        if own is not self.evaluation:
            self.evaluation = own
            self._table.content = "" if own is None else words.confusion(own)
            self._confused.content = "" if own is None else words.confused(own)
            classes = (ALL, *(() if own is None else own.classes))
            kept = self._class.value if self._class.value in classes else ALL
            self._class.options, self._class.value = classes, kept
            self._list()

    def _evaluate_now(self) -> None:
        """In a thread of its own: it may take long, and the run goes on."""
        moment = self.moment
        if self._evaluate is None or moment is None:
            return
        self._progress.value, self._progress.visible, self._now.disabled = 0.0, True, True

        def progress(done: int, total: int) -> None:
            self._progress.value = 100 * done / max(total, 1)

        try:
            made = self._evaluate(self.path, progress)
            epoch = moment.best_epoch or made.epoch
            self._made = moment.best, replace(made, epoch=epoch)
        finally:
            self._progress.visible, self._now.disabled = False, False
        self.worker.ask("look", self.look)

    # -- the panel ------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        gui: Any = self.server.gui
        gui.configure_theme(control_width="large", show_logo=False, show_share_button=False)
        gui.main_panel.dock_right()
        self.server.scene.set_background_image(np.full((1, 1, 3), 255, np.uint8))
        self._head = gui.add_markdown("")
        self._missing = gui.add_markdown("")
        self._now = gui.add_button("Evaluate now", visible=False, hint="The best checkpoint on the validation data")
        self._progress = gui.add_progress_bar(0.0, visible=False)
        tabs = gui.add_tab_group()
        curves = tabs.add_tab("Curves")
        self.curves = Curves(gui, curves)
        with curves:
            self._waiting = gui.add_markdown("The curves begin after the first epoch.", order=0)
            self._log = gui.add_html("", order=10)
        with tabs.add_tab("Confusion"):
            self._table, self._confused = gui.add_html(""), gui.add_html("")
        with tabs.add_tab("Examples"):
            self._build_examples(gui)
        self._now.on_click(lambda event: self._evaluator.ask("evaluate", self._evaluate_now))

    def _build_examples(self, gui: Any) -> None:
        self._example = gui.add_dropdown("Worst first", (NONE,), initial_value=NONE)
        self._step = gui.add_button_group("", ("Previous", "Next"))
        self._class = gui.add_dropdown("True class", (ALL,), initial_value=ALL)
        self._wrong = gui.add_checkbox("Only wrong ones", False)
        self._by = gui.add_dropdown("Colour by", (PREDICTION, ERROR), visible=False)
        self._size = gui.add_slider("Point size", 0.2, 5.0, 0.1, 1.0)
        home = gui.add_button("Reset camera")
        self._details, self._legend = gui.add_html(""), gui.add_html("")
        self._on(self._example, "choose", lambda: self._choose(self._titles.get(self._example.value)))
        for control in (self._class, self._wrong):
            self._on(control, "list", self._list)
        for control in (self._by, self._size):
            self._on(control, "draw", self._draw)
        self._step.on_click(lambda event: self._go(event.target.value))
        home.on_click(lambda event: self._home(event.client))

    # -- examples -------------------------------------------------------------------------------------------------

    def _list(self) -> None:
        """Those that the filters leave; of them the one that was shown, or the worst."""
        found = self.evaluation
        shown = [] if found is None else list(enumerate(found.examples))
        if found is not None and self._class.value != ALL:
            number = found.classes.index(self._class.value)
            shown = [(place, one) for place, one in shown if bool((one.target == number).any())]
        if self._wrong.value:
            shown = [(place, one) for place, one in shown if one.right < 1]
        self._titles = {} if found is None else {words.title(place, one, found.classes): one for place, one in shown}
        kept = [title for title, one in self._titles.items() if self.chosen and one.source == self.chosen.source]
        first = next(iter([*kept, *self._titles]), NONE)
        self._example.options = tuple(self._titles) or (NONE,)
        self._example.value = first
        self._choose(self._titles.get(first))

    def _go(self, where: str) -> None:
        """To the next or the previous one, at once: of quick clicks each counts. It is drawn in its turn."""
        titles = list(self._titles)
        if self._example.value in titles:
            place = titles.index(self._example.value) + (1 if where == "Next" else -1)
            self._example.value = titles[place % len(titles)]
            self.worker.ask("choose", lambda: self._choose(self._titles.get(self._example.value)))

    def _choose(self, example: Example | None) -> None:
        if example is self.chosen and example is not None:
            return
        self.chosen = example
        self._clear()
        if example is None or self.evaluation is None:
            self._details.content, self._legend.content = "", ""
            if self.evaluation is not None:
                self._details.content = words.SMALL.format("None of the kept clouds is like this.")
            return
        per_point = bool(example.target.dim())
        self._by.visible = per_point
        features, labels = {}, None
        if per_point:
            wrong = (example.predicted != example.target).long()
            features = {PREDICTION: example.predicted, ERROR: wrong.masked_fill(example.target < 0, -1)}
            labels = example.target
        cloud = Cloud(example.points, features, labels=labels, source=example.source)
        self._details.content = words.details(example, self.evaluation.classes)
        self._legend.content = words.legend(example, self.evaluation.classes) if per_point else ""
        self.stage = Stage(self.server.scene, build(lambda: [cloud]), len(cloud))
        self._draw()
        self._recentre()
        self.server.flush()

    def _draw(self) -> None:
        stage, example, found = self.stage, self.chosen, self.evaluation
        if stage is None or example is None or found is None:
            return
        top = np.array([0.0, 0.0, stage.extent[2] / 2 + SIZE / 12])
        if example.target.dim():
            by, right = self._by.value, f"{100 * example.right:.1f} % right"
            look = Look(Scale(by, "class"), Scale(LABEL, "class"), size=self._size.value)
            self.overlay.word("prediction", f"{by}: {right}", top, "bottom-center")
            self.overlay.word("truth", "truth", top + stage.shift, "bottom-center")
        else:
            scale = stage.levels.scale(HEIGHT, {})
            look = Look(scale, size=self._size.value)
            self._legend.content = legend(scale)
            true, said = (found.classes[int(each)] for each in (example.target, example.predicted))
            sure = f"{100 * example.confidence:.0f} %"
            text = f"{said} ({sure}), right" if true == said else f"predicted {said} ({sure}), true: {true}"
            self.overlay.word("prediction", text, top, "bottom-center")
        stage.draw(look, None)
        self.server.flush()

    # -- browsers -------------------------------------------------------------------------------------------------

    def _has_copy(self) -> bool:
        return self.chosen is not None and bool(self.chosen.target.dim())

    def _recentre(self) -> None:
        """Another cloud, seen as the one before: cameras move along with the middle."""
        self.server.initial_camera.position, self.server.initial_camera.look_at = self._view()
        _, middle = self._view()
        for client in self.server.get_clients().values():
            if self._seen is None:
                self._home(client)
            else:
                client.camera.position = client.camera.position + middle - self._seen  # takes look_at along
        self._seen = middle


def _set(handle: Any, content: str) -> None:
    """Sends only what is new."""
    if handle.content != content:
        handle.content = content

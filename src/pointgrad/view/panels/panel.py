"""What every panel has."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from pointgrad.ops.neighbors import knn

if TYPE_CHECKING:
    from pointgrad.view.viewer import Viewer

Value = TypeVar("Value")

# Colours over a grey cloud: what was chosen, what it is compared with, and what is only context.
CHOSEN, OTHER, CONTEXT = ((31, 95, 168), (224, 123, 57), (70, 76, 84))
CLICK = "Click a point."
BEAD = 0.12  # the largest radius of a bead, in the scene
CLOSE = 2.0  # the distance of the camera from a ball that fills the picture, in its radii
WIDEST = 1e18  # of a cloud whose squared distances float32 can hold
REACH = 40  # the widest radius that a slider offers, in usual distances between points


class Panel:
    """One operator: its controls, and what it draws over the cloud.

    title: in the dropdown. needs_network: only there with a checkpoint.
    """

    title: ClassVar[str]
    needs_network: ClassVar[bool] = False

    def __init__(self, viewer: "Viewer") -> None:
        self.viewer = viewer
        self.reach = 0.0  # how far what is drawn around the clicked point reaches, in the units of the cloud
        self._kept: dict[str, tuple[object, object, Any]] = {}

    def build(self, gui: Any) -> None:
        """Adds its controls; `self.viewer.shows(control)` for those that change what is drawn."""
        raise NotImplementedError

    def show(self) -> None:
        """Computes and draws, with `viewer.work`, `viewer.stage`, `viewer.picked` and `viewer.overlay`. Called in the
        viewer's thread when the panel is chosen, a control or the cloud has changed, or a point was clicked. What
        cannot be done is a ValueError of one sentence, which the person sees."""
        raise NotImplementedError

    # -- for the panels -------------------------------------------------------------------------------------------

    def keep(self, name: str, key: object, compute: Callable[[], Value]) -> Value:
        """What `compute` gave for this file and this key; computed again only when one of them is another. For what
        depends on the points only: columns may come later, from a network."""
        file = self.viewer.levels
        of, known, value = self._kept.get(name, (None, None, None))
        if of is not file or known != key:
            value = compute()
            self._kept[name] = (file, key, value)
        return value

    @property
    def points(self) -> Tensor:
        """(N, 3) float32: the points that are worked on, in the cloud's units, from its lower corner."""
        return self.keep("points", None, self._points)

    @property
    def clicked(self) -> Tensor | None:
        """(1, 3) float32: the clicked point, as `points`."""
        picked = self.viewer.picked
        return None if picked is None else self.local(picked.row.cloud.points)

    @property
    def spacing(self) -> float:
        """The usual distance from a point to the nearest other one; 0 if all are equal."""

        def find() -> float:
            apart = knn(self.points, min(2, len(self.points))).distance2[:, -1].sqrt()
            return float(apart[apart > 0].median()) if bool((apart > 0).any()) else 0.0

        return self.keep("spacing", None, find)

    def _points(self) -> Tensor:
        points = self.local(self.viewer.work.cloud.points)
        across = float(points.amax())
        if not across <= WIDEST:
            raise ValueError(f"operators compute with clouds of up to {WIDEST:.0e} units across, got {across:.0e}")
        return points

    def local(self, points: Tensor) -> Tensor:
        corner = self.keep("corner", None, lambda: self.viewer.work.cloud.points.amin(0))
        return (points.to(corner.dtype) - corner).float()

    def place(self, points: Tensor) -> np.ndarray:
        """(N, 3) where points of the form of `points` are in the scene."""
        corner = self.keep("corner", None, lambda: self.viewer.work.cloud.points.amin(0))
        stage = self.viewer.stage
        assert stage is not None
        return stage.place(points.to(corner.dtype) + corner)

    def fit_radius(self, slider: Any, usual: float, least: float = 0.0) -> None:
        """Once for each cloud, gives a slider a range of lengths: usual, least: in usual distances between points."""

        def fit() -> None:
            spacing = self.spacing or 1.0
            fit_slider(slider, least * spacing, REACH * spacing, usual * spacing)

        self.keep(f"range {slider.label}", None, fit)

    def closer(self, gui: Any) -> None:
        """Adds a button that moves the camera to what is drawn around the clicked point."""
        gui.add_button("Look closer").on_click(lambda event: self._look_closer(event.client))

    def _look_closer(self, client: Any) -> None:
        """Without turning the camera."""
        query, stage = self.clicked, self.viewer.stage
        if client is None or query is None or stage is None:
            return
        place, radius = self.place(query)[0], max(self.reach * stage.factor, stage.point_size)
        with client.atomic():
            away = np.asarray(client.camera.position) - np.asarray(client.camera.look_at)
            away = away / max(float(np.linalg.norm(away)), 1e-12)
            client.camera.position, client.camera.look_at = place + away * radius * CLOSE, place

    def drawn(self, points: Tensor, colors: Any, size: float, name: str = "chosen") -> None:
        """Points of the form of `points`, in one colour or one for each; size: in usual point sizes."""
        assert self.viewer.stage is not None
        self.viewer.overlay.points(name, self.viewer.stage, self.place(points), np.asarray(colors, np.uint8), size)

    def bead(self, length: float) -> float:
        """The size, in usual point sizes, of beads that lie about so far apart."""
        stage = self.viewer.stage
        assert stage is not None
        return min(max(0.12 * length * stage.factor, 1.5 * stage.point_size), BEAD) / stage.point_size


def fit_slider(slider: Any, low: float, high: float, value: float) -> None:
    """Sets range, value and a round step of a hundredth to a thousandth of the range."""
    exponent = math.floor(math.log10(high)) - 2
    step = 10.0**exponent
    slider.precision = max(0, -exponent)
    slider.step = step
    slider.min, slider.max = math.ceil(low / step) * step, math.ceil(high / step) * step
    slider.value = min(max(round(value / step) * step, slider.min), slider.max)


def seeded(compute: Callable[[], Value]) -> Value:
    """Computes something random that is the same each time, without touching the numbers that others draw."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return compute()


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "0.0%"

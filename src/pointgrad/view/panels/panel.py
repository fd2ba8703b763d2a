"""Base class of the panels."""

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

# Colours over a dimmed cloud: the result, what it is compared with, and context.
CHOSEN, OTHER, CONTEXT = ((31, 95, 168), (224, 123, 57), (70, 76, 84))
CLICK = "Click a point."
MAX_BEAD = 0.12  # largest radius of a sphere, in the scene
ZOOM_DISTANCE = 3.0  # distance of the camera after zooming in, in radii of the drawing
MAX_EXTENT = 1e18  # largest extent of a cloud whose squared distances fit into float32
MAX_RADIUS = 40  # largest radius of a slider, in point spacings
# Both ends of the twelve edges of a unit cube.
CUBE = torch.tensor([
    (0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 1), (1, 1, 1),
    (0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1),
    (0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1), (0, 1, 0), (0, 1, 1), (1, 1, 0), (1, 1, 1),
], dtype=torch.float32)  # fmt: skip


class Panel:
    """One operator: its controls, and what it draws over the cloud.

    Attributes:
        title: Name in the dropdown.
        needs_network: Whether the panel is available only with a checkpoint.
        reach: Extent of the drawing around the clicked point, in the units of the cloud.
        text: Markdown control that describes the result; created in `build`.
    """

    title: ClassVar[str]
    needs_network: ClassVar[bool] = False
    text: Any

    def __init__(self, viewer: "Viewer") -> None:
        self.viewer = viewer
        self.reach = 0.0
        self._cache: dict[str, tuple[object, object, Any]] = {}

    def build(self, gui: Any) -> None:
        """Add the controls. Call `self.viewer.redraw_on(control)` for those that change the drawing."""
        raise NotImplementedError

    def show(self) -> None:
        """Compute and draw, using `viewer.sample`, `viewer.stage`, `viewer.picked` and `viewer.overlay`.

        Called on the worker when the panel is chosen, a control or the cloud has changed, or a point was clicked.

        Raises:
            ValueError: With a one-sentence message for the user, if the operator cannot be shown.
        """
        raise NotImplementedError

    # -- helpers for subclasses -----------------------------------------------------------------------------------

    def cached(self, name: str, key: object, compute: Callable[[], Value]) -> Value:
        """Result of `compute` for the open file and this key, computed again only when either changes.

        Use it for results that depend on the points only, because a network may add columns later.
        """
        file = self.viewer.levels
        cached_file, cached_key, value = self._cache.get(name, (None, None, None))
        if cached_file is not file or cached_key != key:
            value = compute()
            self._cache[name] = (file, key, value)
        return value

    @property
    def points(self) -> Tensor:
        """(N, 3) float32 points of the sample, in the cloud's units, relative to its lower corner."""
        return self.cached("points", None, self._points)

    @property
    def clicked(self) -> Tensor | None:
        """(1, 3) float32 clicked point, in the coordinates of `points`; None before a click."""
        picked = self.viewer.picked
        return None if picked is None else self.local(picked.row.cloud.points)

    @property
    def spacing(self) -> float:
        """Median distance from a point to its nearest neighbour; 0 if all points are equal."""

        def find() -> float:
            nearest = knn(self.points, min(2, len(self.points))).distance2[:, -1].sqrt()
            return float(nearest[nearest > 0].median()) if bool((nearest > 0).any()) else 0.0

        return self.cached("spacing", None, find)

    def _points(self) -> Tensor:
        points = self.local(self.viewer.sample.cloud.points)
        extent = float(points.amax())
        if not extent <= MAX_EXTENT:
            raise ValueError(f"the extent of the cloud must be at most {MAX_EXTENT:.0e} units, got {extent:.0e}")
        return points

    def local(self, points: Tensor) -> Tensor:
        """Points of the cloud (N, 3) in the coordinates of `points`."""
        corner = self.cached("corner", None, lambda: self.viewer.sample.cloud.points.amin(0))
        return (points.to(corner.dtype) - corner).float()

    def place(self, points: Tensor) -> np.ndarray:
        """Scene positions (N, 3) of points in the coordinates of `points`."""
        corner = self.cached("corner", None, lambda: self.viewer.sample.cloud.points.amin(0))
        stage = self.viewer.stage
        assert stage is not None
        return stage.place(points.to(corner.dtype) + corner)

    def fit_radius(self, slider: Any, usual: float, least: float = 0.0) -> None:
        """Set range and default of a slider of lengths, once per cloud; `usual` and `least` are in point spacings."""

        def fit() -> None:
            spacing = self.spacing or 1.0
            fit_slider(slider, least * spacing, MAX_RADIUS * spacing, usual * spacing)

        self.cached(f"range {slider.label}", None, fit)

    def add_zoom_button(self, gui: Any) -> None:
        """Add a button that moves the camera to the clicked point."""
        gui.add_button("Zoom to point").on_click(lambda event: self._zoom_in(event.client))

    def _zoom_in(self, client: Any) -> None:
        """Move the camera to the clicked point without turning it."""
        query, stage = self.clicked, self.viewer.stage
        if client is None or query is None or stage is None:
            return
        place, radius = self.place(query)[0], max(self.reach * stage.factor, stage.point_size)
        with client.atomic():
            away = np.asarray(client.camera.position) - np.asarray(client.camera.look_at)
            away = away / max(float(np.linalg.norm(away)), 1e-12)
            client.camera.position, client.camera.look_at = place + away * radius * ZOOM_DISTANCE, place

    def draw_points(self, points: Tensor, colors: Any, size: float, name: str = "chosen") -> None:
        """Draw points, given in the coordinates of `points`.

        Args:
            points: (N, 3) points.
            colors: (3,) or (N, 3) colours, 0 to 255.
            size: Size in multiples of the default point size.
            name: Name of the drawing; the same name replaces it.
        """
        assert self.viewer.stage is not None
        self.viewer.overlay.points(name, self.viewer.stage, self.place(points), np.asarray(colors, np.uint8), size)

    def draw_boxes(
        self, corners: Tensor, edge: float, color: tuple[int, int, int], name: str, width: float = 1.5
    ) -> None:
        """Draw the edges of cubes, given in the coordinates of `points`.

        Args:
            corners: (N, 3) lower corners.
            edge: Edge length.
            color: 0 to 255.
            name: Name of the drawing; the same name replaces it.
            width: Width of the lines, in pixels.
        """
        ends = (corners[:, None] + CUBE * edge).reshape(-1, 2, 3)
        self.viewer.overlay.lines(name, self.place(ends[:, 0]), self.place(ends[:, 1]), np.array(color), width)

    def bead_size(self, length: float) -> float:
        """Size of spheres that are about `length` apart, in multiples of the default point size."""
        stage = self.viewer.stage
        assert stage is not None
        return min(max(0.12 * length * stage.factor, 1.5 * stage.point_size), MAX_BEAD) / stage.point_size


def fit_slider(slider: Any, low: float, high: float, value: float) -> None:
    """Set range, value and a round step of a slider, about a hundredth to a thousandth of the range."""
    exponent = math.floor(math.log10(high)) - 2
    step = 10.0**exponent
    slider.precision = max(0, -exponent)
    slider.step = step
    slider.min, slider.max = math.ceil(low / step) * step, math.ceil(high / step) * step
    slider.value = min(max(round(value / step) * step, slider.min), slider.max)


def seeded(compute: Callable[[], Value]) -> Value:
    """Run a random computation with a fixed seed, without affecting the global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return compute()


def share(part: float, whole: float) -> str:
    """Fraction as a percentage."""
    return f"{part / whole:.1%}" if whole else "0.0%"

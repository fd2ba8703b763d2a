"""Drawing of the open cloud: which of its points are drawn, where, and in which colors."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pointgrad.ops.neighbors import knn
from pointgrad.render import Scale, colors
from pointgrad.render.camera import Frame, View
from pointgrad.render.colors import ERROR
from pointgrad.render.palette import Color
from pointgrad.render.still import AZIMUTH, ELEVATION
from pointgrad.view.detail import Camera, points_per_leaf
from pointgrad.view.display import Vector
from pointgrad.view.levels import Levels, Part
from pointgrad.view.picking import pick

if TYPE_CHECKING:
    import viser

SIZE = 10.0  # longest side of any cloud without its outliers, which fits the browser's near and far planes
FARTHEST = 1e5  # largest coordinate in the scene; outliers beyond are moved here, out of sight
HOME = View(AZIMUTH, ELEVATION)  # initial viewing direction, as in images
TOP, FRONT, SIDE = View(-90.0, 89.9), View(-90.0, 0.0), View(0.0, 0.0)  # browsers cannot look exactly along z
MARGIN = 0.04  # free margin around the cloud, relative to the shorter side of a window
SPACING_SAMPLE = 1 << 16  # points from which framing and the typical point spacing are computed
LEAF_SAMPLE, LAST = 1024, 16  # first points of a leaf from whose last ones its spacing is computed
FRACTION = 4  # of the drawn points at most one in four: the last points of a whole cloud are its closest pairs
POINT_SCALE = 1.4  # point size in spacings; spacing varies, and at this size a surface has no holes
LEAF_SCALE = 1.0  # the same in spacings of an even sample, which are larger
MIN_POINT_SIZE = 1e-4
DOT = SIZE / 500  # point size of a cloud without extent: thousands of large discs in one place take browsers minutes
DIMMED = 0.4  # weight of a dimmed point's color; the rest is the background


@dataclass(frozen=True)
class Style:
    """Settings for drawing a cloud.

    Attributes:
        scale: Color scale.
        second: Color scale of a copy of the cloud, for a second view; None for no copy.
        hidden: Classes that are not drawn.
        only_wrong: Draw only points whose prediction differs from the label, if the cloud has this column.
        clip: Lower and upper corner, in the scene, of the box to which drawing and picking are limited.
        size: Factor on the point size.
        dim: Color of the background if the points are drawn smaller and dimmed, behind an overlay; None otherwise.
    """

    scale: Scale
    second: Scale | None = None
    hidden: frozenset[int] = frozenset()
    only_wrong: bool = False
    clip: tuple[Vector, Vector] | None = None
    size: float = 1.0
    dim: Color | None = None


@dataclass(frozen=True)
class Picked:
    """A clicked point.

    Attributes:
        position: (3,) position in the scene.
        row: The point with all of its columns.
    """

    position: np.ndarray
    row: Part


class Stage:
    """Draws a cloud in a scene. Not thread-safe.

    Args:
        scene: viser's scene API.
        levels: The cloud.
        budget: Maximum number of points to draw.
        before: The stage that this one replaces. Its position and scale in the scene are kept if the new cloud has
            about the same place and size, so that an updated cloud does not jump.

    Attributes:
        kept: Whether position and scale are those of `before`.
        factor: Scale from the cloud's units to the scene.
        extent: (3,) size of the cloud in the scene.
        point_size: Default point size in the scene.
    """

    def __init__(self, scene: "viser.SceneApi", levels: Levels, budget: int, before: "Stage | None" = None) -> None:
        self._scene, self.levels, self._budget = scene, levels, budget
        low, high = levels.region.low, levels.region.high
        extent = high - low
        self.middle = low + extent / 2
        self.factor = SIZE / max(float(extent.max()), 1e-300) if extent.max() > 0 else 1.0
        self.kept = before is not None and before._is_like(self)
        if before is not None and self.kept:
            self.middle, self.factor = before.middle, before.factor
        self.extent = extent * self.factor
        self._low, self._high = (self._scaled(bound) for bound in (levels.low, levels.high))
        sample = levels.sample(SPACING_SAMPLE).cloud.points
        self._framed = sample[torch.from_numpy(levels.region.inside(sample.double().numpy()))]
        self.point_size = self._spacing()
        self._leaf_spacing: dict[int, tuple[float, int]] = {}  # spacing of the first points, and their number
        self._style: Style | None = None
        self._counts = np.zeros(len(levels.counts), np.int64)
        self._parts: dict[int, Part] = {}  # drawn points, by leaf
        self._nodes: dict[str, Any] = {}

    def place(self, points: torch.Tensor) -> np.ndarray:
        """Scene positions (N, 3) float32 of points (N, 3) that are relative to the cloud's origin."""
        return self._scaled(points.double().numpy()).astype(np.float32)

    def _is_like(self, other: "Stage") -> bool:
        """Whether another cloud is at most twice or half as large, and its middle within a quarter of the size."""
        if not torch.equal(self.levels.origin, other.levels.origin):
            return False
        moved = float(abs(other.middle - self.middle).max()) * self.factor
        return bool(0.5 <= other.factor / self.factor <= 2 and moved <= SIZE / 4)

    def world(self, points: np.ndarray) -> np.ndarray:
        """Coordinates (..., 3) in the file of points that are relative to the cloud's origin."""
        return points + self.levels.origin.numpy()

    def from_world(self, points: np.ndarray) -> np.ndarray:
        """Scene positions (..., 3) of coordinates in the file."""
        return self._scaled(points - self.levels.origin.numpy())

    def _scaled(self, points: np.ndarray) -> np.ndarray:
        return np.clip((points - self.middle) * self.factor, -FARTHEST, FARTHEST)

    def camera_pose(
        self, view: View, fov: float, aspect: float, margin: float = MARGIN
    ) -> tuple[np.ndarray, np.ndarray]:
        """Camera position and target (3,) that show the whole cloud, without outliers.

        Args:
            view: Viewing direction.
            fov: Vertical field of view, in radians.
            aspect: Width of the view, relative to its height.
            margin: Free margin around the cloud, relative to the shorter side of the view.
        """
        width, height = round(1000 * max(aspect, 0.01)), 1000
        field = 2 * np.arctan(np.tan(fov / 2) * max(1.0, width / height))
        frame = Frame(width, height, margin * min(width, height), float(field))
        middle = torch.zeros(3, dtype=torch.float64)
        camera = view.fit(torch.from_numpy(self.place(self._framed)).double(), middle, frame)
        right, up, back = view.axes().numpy()
        target = right * camera.shift + up * camera.lift
        return target + back * max(camera.distance, SIZE / 10), target

    @property
    def drawn(self) -> int:
        """Number of points that are drawn."""
        return int(self._counts.sum())

    def draw(self, style: Style, camera: Camera | None) -> None:
        """Send the leaves whose number of points has changed, or all leaves if the style has."""
        counts = points_per_leaf(self._low, self._high, self._shown_counts(style), camera, self._budget)
        restyled = style != self._style if self._style is None else replace(style, clip=self._style.clip) != self._style
        self._style = style  # browsers clip without new points
        for leaf in np.flatnonzero((counts != self._counts) | restyled):
            if counts[leaf] != self._counts[leaf]:
                self._parts[int(leaf)] = self.levels.read(int(leaf), int(counts[leaf]))
                self._counts[leaf] = counts[leaf]
            self._send(int(leaf), style)

    def _shown_counts(self, style: Style) -> np.ndarray:
        """Number of points of each leaf that is not completely outside the clipping box."""
        if style.clip is None:
            return self.levels.counts
        low, high = np.array(style.clip)
        return np.where(((self._high >= low) & (self._low <= high)).all(1), self.levels.counts, 0)

    def invalidate(self) -> None:
        """Read all points again at the next `draw`: call after adding a column."""
        self._counts[:] = 0

    def clear(self) -> None:
        for node in self._nodes.values():
            node.remove()
        self._nodes.clear()

    def pick(self, origin: np.ndarray, direction: np.ndarray) -> Picked | None:
        """Find the drawn point that a ray hits."""
        style = self._style
        if style is None or not self._parts:
            return None
        clouds = [self._shown(part, style) for part in self._parts.values()]
        places = np.concatenate([self.place(part.cloud.points) for part in clouds])
        rows = np.arange(len(places))
        if style.clip is not None:
            low, high = np.array(style.clip)
            rows = np.flatnonzero(((places >= low) & (places <= high)).all(1))
        found = pick(places[rows], origin, direction)
        if found is None:
            return None
        number = int(rows[found])
        ends = np.cumsum([len(part.cloud) for part in clouds])
        leaf = int(np.searchsorted(ends, number, side="right"))
        row = number - (int(ends[leaf - 1]) if leaf else 0)
        part = clouds[leaf]
        return Picked(
            places[number],
            Part(part.cloud.select(torch.tensor([row])), part.number[row : row + 1]),
        )

    def _shown(self, part: Part, style: Style) -> Part:
        """Points of a part whose class is not hidden, and which are wrong if only those are drawn."""
        keep = torch.ones(len(part.cloud), dtype=torch.bool)
        if style.hidden and style.scale.kind == "class":
            keep &= ~torch.isin(colors.column(part.cloud, style.scale.by), torch.tensor(sorted(style.hidden)))
        if style.only_wrong and ERROR in part.cloud.features:
            keep &= part.cloud.features[ERROR] > 0
        return part if bool(keep.all()) else Part(part.cloud.select(keep), part.number[keep.numpy()])

    def _send(self, leaf: int, style: Style) -> None:
        part = self._shown(self._parts[leaf], style)
        if not len(part.cloud):
            self._remove(f"/cloud/{leaf}", f"/copy/{leaf}")
            return
        points, size = self.place(part.cloud.points), style.size * self._size(leaf) * (0.6 if style.dim else 1.0)
        self._node(f"/cloud/{leaf}", points, part, style.scale, style.dim, size)
        self._node(f"/copy/{leaf}", points, part, style.second, style.dim, size)

    def _node(
        self, name: str, points: np.ndarray, part: Part, scale: Scale | None, dim: Color | None, size: float
    ) -> None:
        if scale is None:
            self._remove(name)
            return
        self._nodes[name] = self._scene.add_point_cloud(
            name,
            points,
            _paint(part, scale, dim),
            point_size=size,
            point_shape="circle",
            point_shading="flat",
            precision="float32",
        )

    def _remove(self, *names: str) -> None:
        for name in names:
            if name in self._nodes:
                self._nodes.pop(name).remove()

    def _size(self, leaf: int) -> float:
        """Point size at which the drawn points of a leaf just cover a surface.

        The first points of a leaf are in farthest point sampling order: the distance from the last of them to the
        nearest other point is the spacing of an even sample. On a surface it decreases with the square root of the
        number of points.
        """
        if leaf not in self._leaf_spacing:
            points = self._parts[leaf].cloud.points
            places = torch.from_numpy(self.place(points[: min(LEAF_SAMPLE, max(2, len(points) // FRACTION))]))
            distance = torch.cdist(places[-LAST:], places, compute_mode="donot_use_mm_for_euclid_dist")
            distance[distance == 0] = torch.inf  # the point itself, and copies of it
            nearest = distance.amin(1)
            nearest = nearest[nearest.isfinite()]
            self._leaf_spacing[leaf] = (float(nearest.median()) if len(nearest) else 0.0), len(places)
        spacing, count = self._leaf_spacing[leaf]
        spacing *= (count / max(count, int(self._counts[leaf]))) ** 0.5
        return min(max(LEAF_SCALE * spacing, MIN_POINT_SIZE), SIZE / 50) if spacing else self.point_size

    def _spacing(self) -> float:
        """Point size at which the drawn points of the whole cloud just cover a surface."""
        sample = self._framed
        if not self.extent.any():
            return DOT
        nearest = knn(torch.from_numpy(self.place(sample)), 2).distance2[:, 1].sqrt()
        spacing = float(nearest[nearest > 0].median()) if bool((nearest > 0).any()) else SIZE / 50
        density = len(sample) / min(len(self.levels), self._budget)  # on a surface, spacing grows with its square root
        return min(max(POINT_SCALE * spacing * density**0.5, MIN_POINT_SIZE), SIZE / 50)


def _paint(part: Part, scale: Scale, dim: Color | None) -> np.ndarray:
    """Colors (N, 3) uint8 of points, dimmed towards a background."""
    painted = colors.paint(part.cloud, scale)
    if dim is None:
        return painted
    return np.rint(DIMMED * painted + (1 - DIMMED) * np.array(dim)).astype(np.uint8)

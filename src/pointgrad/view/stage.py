"""Drawing of the open cloud: which of its points are drawn, where, and in which colors."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pointgrad.ops.neighbors import knn
from pointgrad.render import Scale, colors
from pointgrad.view.detail import Camera, points_per_leaf
from pointgrad.view.levels import Levels, Part
from pointgrad.view.picking import pick

if TYPE_CHECKING:
    import viser

SIZE = 10.0  # longest side of any cloud in the scene, which fits the browser's near and far planes
GAP = 1.05  # distance from a cloud to its copy, in widths
HOME = np.array([-0.45, -0.75, 0.5])  # initial direction from the cloud to the camera
HOME_DISTANCE = 0.74  # initial distance of the camera, in diameters of the cloud
SPACING_SAMPLE = 1 << 16  # points from which the typical point spacing is computed
POINT_SCALE = 1.4  # point size in median spacings; spacing varies, and at this size a surface has no holes
MIN_POINT_SIZE = 1e-4
DIMMED = 0.4  # weight of a dimmed point's color; the rest is the background


@dataclass(frozen=True)
class Style:
    """Settings for drawing a cloud.

    Attributes:
        scale: Color scale.
        second: Color scale of a second copy beside the cloud; None for no copy.
        hidden: Classes that are not drawn.
        size: Factor on the point size.
        dim: Color of the background if the points are drawn smaller and dimmed, behind an overlay; None otherwise.
    """

    scale: Scale
    second: Scale | None = None
    hidden: frozenset[int] = frozenset()
    size: float = 1.0
    dim: tuple[int, int, int] | None = None


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
            about its place and size, so that an updated cloud does not jump.

    Attributes:
        kept: Whether position and scale are those of `before`.
        factor: Scale from the cloud's units to the scene.
        extent: (3,) size of the cloud in the scene.
        point_size: Default point size in the scene.
    """

    def __init__(self, scene: "viser.SceneApi", levels: Levels, budget: int, before: "Stage | None" = None) -> None:
        self._scene, self.levels, self._budget = scene, levels, budget
        low, high = levels.low.min(0), levels.high.max(0)
        extent = high - low
        self.middle = (low + high) / 2
        self.factor = SIZE / max(float(extent.max()), 1e-30) if extent.max() > 0 else 1.0
        self.kept = before is not None and before._is_like(self)
        if before is not None and self.kept:
            self.middle, self.factor = before.middle, before.factor
        self.extent = extent * self.factor
        self._low, self._high = ((bound - self.middle) * self.factor for bound in (levels.low, levels.high))
        self.point_size = self._spacing()
        self._style: Style | None = None
        self._counts = np.zeros(len(levels.counts), np.int64)
        self._parts: dict[int, Part] = {}  # drawn points, by leaf
        self._nodes: dict[str, Any] = {}

    def place(self, points: torch.Tensor) -> np.ndarray:
        """Scene positions (N, 3) float32 of points (N, 3) that are relative to the cloud's origin."""
        return ((points.double().numpy() - self.middle) * self.factor).astype(np.float32)

    def _is_like(self, other: "Stage") -> bool:
        """Whether another cloud is at most twice or half as large, and its middle within a quarter of the size."""
        if not torch.equal(self.levels.origin, other.levels.origin):
            return False
        moved = float(abs(other.middle - self.middle).max()) * self.factor
        return bool(0.5 <= other.factor / self.factor <= 2 and moved <= SIZE / 4)

    @property
    def copy_offset(self) -> np.ndarray:
        """(3,) vector from the cloud to its copy: to the right, as seen from the initial camera."""
        right = np.array([-HOME[1], HOME[0], 0]) / np.hypot(HOME[0], HOME[1])
        return right * max(float(self.extent @ abs(right)), SIZE / 10) * GAP

    def camera_pose(self, with_copy: bool) -> tuple[np.ndarray, np.ndarray]:
        """Camera position and target (3,) that show the whole cloud, and its copy if there is one."""
        offset = self.copy_offset if with_copy else np.zeros(3)
        size = np.linalg.norm(self.extent + abs(offset))
        return offset / 2 + HOME * max(float(size), SIZE / 10) * HOME_DISTANCE, offset / 2

    @property
    def drawn(self) -> int:
        """Number of points that are drawn."""
        return int(self._counts.sum())

    def draw(self, style: Style, camera: Camera | None) -> None:
        """Send the leaves whose number of points has changed, or all leaves if the style has."""
        counts = points_per_leaf(self._low, self._high, self.levels.counts, camera, self._budget)
        restyled = style != self._style
        self._style = style
        for leaf in np.flatnonzero((counts != self._counts) | restyled):
            if counts[leaf] != self._counts[leaf]:
                self._parts[int(leaf)] = self.levels.read(int(leaf), int(counts[leaf]))
                self._counts[leaf] = counts[leaf]
            self._send(int(leaf), style)

    def invalidate(self) -> None:
        """Read all points again at the next `draw`: call after adding a column."""
        self._counts[:] = 0

    def clear(self) -> None:
        for node in self._nodes.values():
            node.remove()
        self._nodes.clear()

    def pick(self, origin: np.ndarray, direction: np.ndarray) -> Picked | None:
        """Find the drawn point that a ray hits, in the cloud or in its copy."""
        if self._style is None or not self._parts:
            return None
        clouds = [self._shown(part, self._style) for part in self._parts.values()]
        places = np.concatenate([self.place(part.cloud.points) for part in clouds])
        copies = [np.zeros(3)] if self._style.second is None else [np.zeros(3), self.copy_offset]
        found = pick(np.concatenate([places + copy for copy in copies]), origin, direction)
        if found is None:
            return None
        number = found % len(places)
        ends = np.cumsum([len(part.cloud) for part in clouds])
        leaf = int(np.searchsorted(ends, number, side="right"))
        row = number - (int(ends[leaf - 1]) if leaf else 0)
        part = clouds[leaf]
        return Picked(
            places[number] + copies[found // len(places)],
            Part(part.cloud.select(torch.tensor([row])), part.number[row : row + 1]),
        )

    def _shown(self, part: Part, style: Style) -> Part:
        """Points of a part whose class is not hidden."""
        if not style.hidden or style.scale.kind != "class":
            return part
        values = colors.column(part.cloud, style.scale.by)
        keep = ~torch.isin(values, torch.tensor(sorted(style.hidden)))
        return Part(part.cloud.select(keep), part.number[keep.numpy()])

    def _send(self, leaf: int, style: Style) -> None:
        part = self._shown(self._parts[leaf], style)
        points = self.place(part.cloud.points)
        size = style.size * (1.0 if style.dim is None else 0.6)
        self._node(f"/cloud/{leaf}", points, _paint(part, style.scale, style.dim), size, np.zeros(3))
        if style.second is None:
            points, painted = points[:0], np.zeros((0, 3), np.uint8)
        else:
            painted = _paint(part, style.second, None)
        self._node(f"/copy/{leaf}", points, painted, style.size, self.copy_offset)

    def _node(self, name: str, points: np.ndarray, painted: np.ndarray, size: float, offset: np.ndarray) -> None:
        if not len(points):
            if name in self._nodes:
                self._nodes.pop(name).remove()
            return
        self._nodes[name] = self._scene.add_point_cloud(
            name,
            points,
            painted,
            point_size=self.point_size * size,
            point_shape="circle",
            point_shading="flat",
            precision="float32",
            position=offset,
        )

    def _spacing(self) -> float:
        """Point size at which the drawn points just cover a surface."""
        sample = self.levels.sample(SPACING_SAMPLE).cloud.points
        if len(sample) < 2:
            return SIZE / 50
        nearest = knn(torch.from_numpy(self.place(sample)), 2).distance2[:, 1].sqrt()
        spacing = float(nearest[nearest > 0].median()) if bool((nearest > 0).any()) else SIZE / 50
        density = len(sample) / min(len(self.levels), self._budget)  # on a surface, spacing grows with its square root
        return min(max(POINT_SCALE * spacing * density**0.5, MIN_POINT_SIZE), SIZE / 50)


def _paint(part: Part, scale: Scale, dim: tuple[int, int, int] | None) -> np.ndarray:
    """Colors (N, 3) uint8 of points, dimmed towards a background."""
    painted = colors.paint(part.cloud, scale)
    if dim is None:
        return painted
    return np.rint(DIMMED * painted + (1 - DIMMED) * np.array(dim)).astype(np.uint8)

"""The open cloud in the scene: which of its points are drawn, where, and in which colours."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pointgrad.ops.neighbors import knn
from pointgrad.render import Scale, colors
from pointgrad.view.detail import Camera, shares
from pointgrad.view.levels import Levels, Part
from pointgrad.view.picking import pick

if TYPE_CHECKING:
    import viser

SIZE = 10.0  # of the longest side of any cloud in the scene: the browser's near and far planes fit
GAP = 1.05  # from a cloud to its copy beside it, in widths
HOME = np.array([-0.45, -0.75, 0.5])  # the direction from which a cloud is looked at first
FILLS = 0.74  # the distance from there, in diameters of the cloud
SPACED = 1 << 16  # points that the usual distance between points is found from
CLOSED = 1.4  # distances of points are uneven: a surface closes at so many times the middle one
SMALLEST = 1e-4
DIM = np.array([196, 200, 206], np.uint8)


@dataclass(frozen=True)
class Look:
    """What is drawn: in the colours of `scale`, and beside it once more in those of `beside`; without the classes in
    `hidden`; points of so many times the usual size; dim, as the ground for something else."""

    scale: Scale
    beside: Scale | None = None
    hidden: frozenset[int] = frozenset()
    size: float = 1.0
    dim: bool = False


@dataclass(frozen=True)
class Picked:
    """A point that was clicked: where it is in the scene, and its row, a cloud of one point with all columns."""

    position: np.ndarray
    row: Part


class Stage:
    """Draws a cloud. Everything here is called from one thread at a time."""

    def __init__(self, scene: "viser.SceneApi", levels: Levels, budget: int) -> None:
        self._scene, self.levels, self._budget = scene, levels, budget
        low, high = levels.low.min(0), levels.high.max(0)
        extent = high - low
        self.middle = (low + high) / 2
        self.factor = SIZE / max(float(extent.max()), 1e-30) if extent.max() > 0 else 1.0
        self.extent = extent * self.factor
        self._low, self._high = ((bound - self.middle) * self.factor for bound in (levels.low, levels.high))
        self.point_size = self._spacing()
        self._look: Look | None = None
        self._counts = np.zeros(len(levels.counts), np.int64)
        self._parts: dict[int, Part] = {}  # what is drawn, by leaf
        self._nodes: dict[str, Any] = {}

    def place(self, points: torch.Tensor) -> np.ndarray:
        """(N, 3) float32: where points, relative to the cloud's origin, are in the scene."""
        return ((points.double().numpy() - self.middle) * self.factor).astype(np.float32)

    @property
    def shift(self) -> np.ndarray:
        """From the cloud to its copy: to the right, as seen from where a cloud is looked at first."""
        right = np.array([-HOME[1], HOME[0], 0]) / np.hypot(HOME[0], HOME[1])
        return right * max(float(self.extent @ abs(right)), SIZE / 10) * GAP

    def view(self, beside: bool) -> tuple[np.ndarray, np.ndarray]:
        """Where a camera is, and what it looks at, to see the cloud, and its copy if there is one."""
        shift = self.shift if beside else np.zeros(3)
        size = np.linalg.norm(self.extent + abs(shift))
        return shift / 2 + HOME * max(float(size), SIZE / 10) * FILLS, shift / 2

    @property
    def drawn(self) -> int:
        return int(self._counts.sum())

    def draw(self, look: Look, camera: Camera | None) -> None:
        """Sends what is new: leaves that need more or fewer points, or all of them in a new look."""
        counts = shares(self._low, self._high, self.levels.counts, camera, self._budget)
        again = look != self._look
        self._look = look
        for leaf in np.flatnonzero((counts != self._counts) | again):
            if counts[leaf] != self._counts[leaf]:
                self._parts[int(leaf)] = self.levels.read(int(leaf), int(counts[leaf]))
                self._counts[leaf] = counts[leaf]
            self._send(int(leaf), look)

    def refill(self) -> None:
        """To be called when the cloud has got new columns."""
        self._counts[:] = 0

    def clear(self) -> None:
        for node in self._nodes.values():
            node.remove()
        self._nodes.clear()

    def pick(self, origin: np.ndarray, direction: np.ndarray) -> Picked | None:
        """The drawn point that a ray meets, of the cloud or of its copy."""
        if self._look is None or not self._parts:
            return None
        clouds = [self._shown(part, self._look) for part in self._parts.values()]
        places = np.concatenate([self.place(part.cloud.points) for part in clouds])
        copies = [np.zeros(3)] if self._look.beside is None else [np.zeros(3), self.shift]
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

    def _shown(self, part: Part, look: Look) -> Part:
        """Without the hidden classes."""
        if not look.hidden or look.scale.kind != "class":
            return part
        values = colors.column(part.cloud, look.scale.by)
        keep = ~torch.isin(values, torch.tensor(sorted(look.hidden)))
        return Part(part.cloud.select(keep), part.number[keep.numpy()])

    def _send(self, leaf: int, look: Look) -> None:
        part = self._shown(self._parts[leaf], look)
        points = self.place(part.cloud.points)
        self._node(f"/cloud/{leaf}", points, part, None if look.dim else look.scale, look.size, np.zeros(3))
        self._node(f"/beside/{leaf}", points if look.beside else points[:0], part, look.beside, look.size, self.shift)

    def _node(
        self, name: str, points: np.ndarray, part: Part, scale: Scale | None, size: float, shift: np.ndarray
    ) -> None:
        if not len(points):
            if name in self._nodes:
                self._nodes.pop(name).remove()
            return
        self._nodes[name] = self._scene.add_point_cloud(
            name,
            points,
            DIM if scale is None else colors.paint(part.cloud, scale),
            point_size=self.point_size * size * (0.6 if scale is None else 1.0),
            point_shape="circle",
            point_shading="flat",
            precision="float32",
            position=shift,
        )

    def _spacing(self) -> float:
        """The size of a point such that a surface of as many points as are drawn just closes."""
        sample = self.levels.sample(SPACED).cloud.points
        if len(sample) < 2:
            return SIZE / 50
        nearest = knn(torch.from_numpy(self.place(sample)), 2).distance2[:, 1].sqrt()
        apart = float(nearest[nearest > 0].median()) if bool((nearest > 0).any()) else SIZE / 50
        density = len(sample) / min(len(self.levels), self._budget)  # of a surface: distances go with its root
        return min(max(CLOSED * apart * density**0.5, SMALLEST), SIZE / 50)

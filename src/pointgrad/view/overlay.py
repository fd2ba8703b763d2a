"""Points, lines, balls and labels that panels draw over the cloud."""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import viser

    from pointgrad.view.stage import Stage

BEADS = 4096  # up to this many points are drawn as spheres, more as flat dots


class Overlay:
    """Named drawings in the scene.

    Drawing under the same name again replaces the drawing; removing "a" also removes "a/b". Sizes are in multiples of
    `Stage.point_size`, positions in scene coordinates (see `Stage.place`).
    """

    def __init__(self, scene: "viser.SceneApi") -> None:
        self._scene = scene
        self._nodes: dict[str, Any] = {}
        self._count = 0  # nodes created so far
        # Colors carry meaning: soft light changes them little and still makes spheres look round.
        scene.configure_environment_map(None)
        scene.configure_default_lights(enabled=False)
        scene.add_light_ambient("/light/everywhere", intensity=2.6)
        scene.add_light_directional("/light/above", intensity=1.0, position=(-2.0, -3.0, 6.0))

    def points(self, name: str, stage: "Stage", places: np.ndarray, colors: np.ndarray, size: float = 3.0) -> None:
        """Draw points at `places` (N, 3) in `colors` (N, 3) or (3,) uint8.

        Up to `BEADS` points are drawn as spheres, which hide the points of the cloud inside them.
        """
        self.remove(name)
        if not len(places):
            return
        if len(places) <= BEADS:
            self._meshes(name, places, size * stage.point_size, colors, 12, None)
            return
        self._nodes[name] = self._scene.add_point_cloud(
            self._fresh(name), places, colors, point_size=size * stage.point_size,
            point_shape="circle", point_shading="flat", precision="float32",
        )  # fmt: skip

    def lines(self, name: str, starts: np.ndarray, ends: np.ndarray, colors: np.ndarray, width: float = 2.0) -> None:
        """Draw lines from `starts` (N, 3) or (3,) to `ends` (N, 3), in `colors` (N, 3) or (3,); width in pixels."""
        self.remove(name)
        if len(ends):
            segments = np.stack([np.broadcast_to(starts, ends.shape), ends], axis=1)
            both = np.broadcast_to(_linear(colors).reshape(-1, 1, 3), segments.shape)
            self._nodes[name] = self._scene.add_line_segments(
                self._fresh(name), segments, both, thickness=width, thickness_units="screen"
            )

    def label(self, name: str, text: str, place: np.ndarray, anchor: Any = "top-left") -> None:
        """Draw text at `place` (3,); `anchor` is the part of the text at that position, such as "bottom-center"."""
        self.remove(name)
        self._nodes[name] = self._scene.add_label(self._fresh(name), text, position=place, anchor=anchor)

    def balls(
        self, name: str, places: np.ndarray, radius: float, color: tuple[int, int, int], opacity: float = 0.2
    ) -> None:
        """Draw transparent balls at `places` (N, 3) with a radius in scene units."""
        self.remove(name)
        if len(places) and radius > 0:
            self._meshes(name, places, radius, color, 32, opacity)

    def _meshes(
        self, name: str, places: np.ndarray, radius: float, colors: Any, around: int, opacity: float | None
    ) -> None:
        corners, faces = _ball(around)
        rotations = np.tile(np.array([1.0, 0.0, 0.0, 0.0], np.float32), (len(places), 1))
        self._nodes[name] = self._scene.add_batched_meshes_simple(
            self._fresh(name), corners * np.float32(radius), faces, rotations, places.astype(np.float32),
            batched_colors=_linear(colors), opacity=opacity, lod="off", cast_shadow=False, receive_shadow=False,
        )  # fmt: skip

    def _fresh(self, name: str) -> str:
        """A node name that was never used: a browser that updates a node in place may briefly mix old and new data."""
        self._count += 1
        return f"/overlay/{name}/{self._count}"

    def remove(self, name: str) -> None:
        """Remove a drawing and those below its name."""
        for other in list(self._nodes):
            if other == name or other.startswith(f"{name}/"):
                self._nodes.pop(other).remove()

    def clear(self) -> None:
        """Remove all drawings."""
        for name in list(self._nodes):
            self.remove(name)


def _linear(colors: Any) -> np.ndarray:
    """Linear RGB: the browser takes colors of points as sRGB, but those of lines and meshes as linear."""
    return np.rint(255 * (np.asarray(colors, np.float64) / 255) ** 2.2).astype(np.uint8)


def _ball(around: int) -> tuple[np.ndarray, np.ndarray]:
    """Vertices (V, 3) and triangles (F, 3) of a unit sphere made of rings of `around` vertices."""
    rings = around // 2
    down, turn = np.meshgrid(np.linspace(0, np.pi, rings + 1), np.arange(around) * 2 * np.pi / around, indexing="ij")
    corners = np.stack([np.sin(down) * np.cos(turn), np.sin(down) * np.sin(turn), np.cos(down)], axis=-1)
    ring, step = np.meshgrid(np.arange(rings), np.arange(around), indexing="ij")
    here, right = ring * around + step, ring * around + (step + 1) % around
    faces = np.stack([here, here + around, right, right, here + around, right + around], axis=-1)
    return corners.reshape(-1, 3).astype(np.float32), faces.reshape(-1, 3).astype(np.uint32)

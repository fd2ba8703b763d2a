"""What a panel draws over the cloud."""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import viser

    from pointgrad.view.stage import Stage

BEADS = 4096  # more points are drawn flat


class Overlay:
    """Points, lines, balls and words in the scene. Drawing under a name again replaces what was there, and removing
    "a" removes "a/b" too; sizes are in usual point sizes, positions in the scene (see `Stage.place`)."""

    def __init__(self, scene: "viser.SceneApi") -> None:
        self._scene = scene
        self._nodes: dict[str, Any] = {}
        self._count = 0  # nodes so far
        # Colours have meanings: a soft light keeps them as they are, and beads still look round.
        scene.configure_environment_map(None)
        scene.configure_default_lights(enabled=False)
        scene.add_light_ambient("/light/everywhere", intensity=2.6)
        scene.add_light_directional("/light/above", intensity=1.0, position=(-2.0, -3.0, 6.0))

    def points(self, name: str, stage: "Stage", places: np.ndarray, colors: np.ndarray, size: float = 3.0) -> None:
        """places: (N, 3); colors: (N, 3) or (3,) uint8. Few are drawn as beads, which hide the points inside them."""
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
        """starts: (N, 3) or (3,); ends: (N, 3); colors: (N, 3) or (3,) uint8; width in pixels."""
        self.remove(name)
        if len(ends):
            segments = np.stack([np.broadcast_to(starts, ends.shape), ends], axis=1)
            both = np.broadcast_to(_linear(colors).reshape(-1, 1, 3), segments.shape)
            self._nodes[name] = self._scene.add_line_segments(
                self._fresh(name), segments, both, thickness=width, thickness_units="screen"
            )

    def word(self, name: str, text: str, place: np.ndarray, anchor: Any = "top-left") -> None:
        """anchor: what of the text is at the place, such as "bottom-center"."""
        self.remove(name)
        self._nodes[name] = self._scene.add_label(self._fresh(name), text, position=place, anchor=anchor)

    def balls(
        self, name: str, places: np.ndarray, radius: float, color: tuple[int, int, int], opacity: float = 0.2
    ) -> None:
        """places: (N, 3); radius: in the scene."""
        self.remove(name)
        if len(places) and radius > 0:
            self._meshes(name, places, radius, color, 32, opacity)

    def _meshes(
        self, name: str, places: np.ndarray, radius: float, colors: Any, around: int, opacity: float | None
    ) -> None:
        corners, faces = _ball(around)
        turned = np.tile(np.array([1.0, 0.0, 0.0, 0.0], np.float32), (len(places), 1))
        self._nodes[name] = self._scene.add_batched_meshes_simple(
            self._fresh(name), corners * np.float32(radius), faces, turned, places.astype(np.float32),
            batched_colors=_linear(colors), opacity=opacity, lod="off", cast_shadow=False, receive_shadow=False,
        )  # fmt: skip

    def _fresh(self, name: str) -> str:
        """A node that was never there: a browser that changes one in place may draw it half old, half new."""
        self._count += 1
        return f"/overlay/{name}/{self._count}"

    def remove(self, name: str) -> None:
        for other in list(self._nodes):
            if other == name or other.startswith(f"{name}/"):
                self._nodes.pop(other).remove()

    def clear(self) -> None:
        for name in list(self._nodes):
            self.remove(name)


def _linear(colors: Any) -> np.ndarray:
    """The browser takes colours of points as they are, but those of lines and meshes as amounts of light."""
    return np.rint(255 * (np.asarray(colors, np.float64) / 255) ** 2.2).astype(np.uint8)


def _ball(around: int) -> tuple[np.ndarray, np.ndarray]:
    """Corners (V, 3) of a ball of radius 1, and its triangles (F, 3): rings from pole to pole, of so many corners."""
    rings = around // 2
    down, turn = np.meshgrid(np.linspace(0, np.pi, rings + 1), np.arange(around) * 2 * np.pi / around, indexing="ij")
    corners = np.stack([np.sin(down) * np.cos(turn), np.sin(down) * np.sin(turn), np.cos(down)], axis=-1)
    ring, step = np.meshgrid(np.arange(rings), np.arange(around), indexing="ij")
    here, right = ring * around + step, ring * around + (step + 1) % around
    faces = np.stack([here, here + around, right, right, here + around, right + around], axis=-1)
    return corners.reshape(-1, 3).astype(np.float32), faces.reshape(-1, 3).astype(np.uint32)

"""What a panel draws over the cloud."""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import viser

    from pointgrad.view.stage import Stage


class Overlay:
    """Points, lines and words in the scene. Drawing under a name again replaces what was there; sizes are in usual
    point sizes, positions in the scene (see `Stage.place`)."""

    def __init__(self, scene: "viser.SceneApi") -> None:
        self._scene = scene
        self._nodes: dict[str, Any] = {}

    def points(self, name: str, stage: "Stage", places: np.ndarray, colors: np.ndarray, size: float = 3.0) -> None:
        """places: (N, 3); colors: (N, 3) or (3,) uint8."""
        self.remove(name)
        if len(places):
            self._nodes[name] = self._scene.add_point_cloud(
                f"/overlay/{name}", places, colors, point_size=size * stage.point_size,
                point_shape="circle", point_shading="gradient", precision="float32",
            )  # fmt: skip

    def lines(self, name: str, starts: np.ndarray, ends: np.ndarray, colors: np.ndarray, width: float = 2.0) -> None:
        """starts, ends: (N, 3); colors: (N, 3) or (3,) uint8; width in pixels."""
        self.remove(name)
        if len(starts):
            segments = np.stack([starts, ends], axis=1)
            both = np.broadcast_to(np.asarray(colors).reshape(-1, 1, 3), segments.shape)
            self._nodes[name] = self._scene.add_line_segments(
                f"/overlay/{name}", segments, both, thickness=width, thickness_units="screen"
            )

    def word(self, name: str, text: str, place: np.ndarray, anchor: Any = "top-left") -> None:
        """anchor: what of the text is at the place, such as "bottom-center"."""
        self.remove(name)
        self._nodes[name] = self._scene.add_label(f"/overlay/{name}", text, position=place, anchor=anchor)

    def ball(self, name: str, place: np.ndarray, radius: float, color: tuple[int, int, int], opacity: float) -> None:
        self.remove(name)
        self._nodes[name] = self._scene.add_icosphere(
            f"/overlay/{name}", radius, color, subdivisions=3, opacity=opacity, position=place,
            cast_shadow=False, receive_shadow=False,
        )  # fmt: skip

    def remove(self, name: str) -> None:
        if name in self._nodes:
            self._nodes.pop(name).remove()

    def clear(self) -> None:
        for name in list(self._nodes):
            self.remove(name)

"""Settings of the drawing in the browser: shading, limits of the point size, a clipping box, and linked views."""

import json
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import viser

NODE = "/pointgrad"  # invisible label whose text display.js reads
MIN_PIXELS, MAX_PIXELS = 2.0, 16.0  # diameter of points at the default size

Vector = tuple[float, float, float]


@dataclass(frozen=True)
class Settings:
    """Settings of the drawing, the same for all browsers.

    Attributes:
        shading: Whether points are darkened at edges and in cavities (eye-dome lighting).
        titles: Titles of two linked views, which show the cloud and its copy; empty for one view.
        clip: Lower and upper corner of the box outside which points are not drawn, in the scene; None for no box.
        limits: Smallest and largest diameter of a point, in pixels.
    """

    shading: bool = True
    titles: tuple[str, ...] = ()
    clip: tuple[Vector, Vector] | None = None
    limits: tuple[float, float] = MIN_PIXELS, MAX_PIXELS


class Display:
    """Sends settings to the script display.js in all browsers, including those that connect later.

    Args:
        server: The server of the page.
    """

    def __init__(self, server: "viser.ViserServer") -> None:
        self._label: Any = server.scene.add_label(NODE, json.dumps(asdict(Settings())), visible=False)
        self.settings = Settings()

    def set(self, settings: Settings) -> None:
        """Change the settings."""
        if settings != self.settings:
            self.settings = settings
            self._label.text = json.dumps(asdict(settings))


def point_limits(size: float) -> tuple[float, float]:
    """Smallest and largest diameter of a point, in pixels, for a factor on the default size."""
    return max(1.0, MIN_PIXELS * min(size, 1.0)), MAX_PIXELS * size


@cache
def script() -> str:
    """The script that browsers run."""
    return files(__package__).joinpath("display.js").read_text("utf-8")

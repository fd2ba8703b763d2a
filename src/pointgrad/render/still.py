"""Images and turntable animations of clouds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Literal

import numpy as np

from pointgrad.data import Cloud
from pointgrad.render.camera import Frame, View
from pointgrad.render.colors import HEIGHT, Scale, first_choice
from pointgrad.render.legend import Pen, Title
from pointgrad.render.palette import Palette
from pointgrad.render.scene import Scene

Background = Literal["white", "dark", "transparent"]
GROUNDS = {"white": (255, 255, 255), "dark": (22, 24, 29)}
INKS = {"white": (51, 58, 66), "dark": (221, 225, 230), "transparent": (128, 134, 142)}  # text colors
MARGIN = 0.035  # relative to the shorter side of an image
WIDEST = 0.3  # maximum width of a legend, relative to the image
LEAST, MOST = 16, 16_384  # minimum and maximum side length in pixels
AZIMUTH, ELEVATION = -60.0, 30.0
SIZE = (1280, 960)
FRAMES = 48


@dataclass(frozen=True)
class Look:
    """Appearance of an image; see `picture`."""

    size: tuple[int, int] = SIZE
    azimuth: float = AZIMUTH
    elevation: float = ELEVATION
    point_size: float | None = None
    background: Background = "white"
    legend: bool = True

    def __post_init__(self) -> None:
        if not _is_pair(self.size):
            raise TypeError(f"size must be two integers, width and height, got {self.size!r}")
        if not all(LEAST <= side <= MOST for side in self.size):
            raise ValueError(f"size must be {LEAST} to {MOST} pixels, got {' x '.join(map(str, self.size))}")
        if self.point_size is not None and not 0 < self.point_size <= min(self.size):
            raise ValueError(f"point_size must be in (0, {min(self.size)}] pixels, got {self.point_size}")
        if self.background not in INKS:
            raise ValueError(f"background must be one of {', '.join(INKS)}, got {self.background}")
        if not -90 <= self.elevation <= 90:
            raise ValueError(f"elevation must be in [-90, 90], got {self.elevation}")
        if not abs(self.azimuth) <= 36000:
            raise ValueError(f"azimuth must be in [-36000, 36000], got {self.azimuth}")

    @property
    def view(self) -> View:
        return View(self.azimuth, self.elevation)


def picture(
    cloud: Cloud | Sequence[Cloud],
    by: str | None = None,
    *,
    size: tuple[int, int] = SIZE,
    azimuth: float = AZIMUTH,
    elevation: float = ELEVATION,
    point_size: float | None = None,
    background: Background = "white",
    legend: bool = True,
    names: Mapping[int, str] | None = None,
    titles: Sequence[str] = (),
    palette: Palette | None = None,
) -> np.ndarray:
    """Render a cloud, or several side by side with the same color scale.

    Points with non-finite coordinates are not shown. The order of the points does not matter.

    Args:
        cloud: One or several clouds.
        by: One of `choices(cloud)`. Default: labels if there are at least two, else colors, else height.
        size: Width and height in pixels.
        azimuth: Direction of the camera in degrees: with elevation 0, it looks along -x at 0 and along -y at 90. It is
            as close as possible with all points in the image.
        elevation: Elevation of the camera in degrees; at 90 it looks straight down.
        point_size: Diameter of the dots in pixels, at the center of the cloud. Default: large enough to close surfaces.
        background: "white", "dark" or "transparent".
        legend: Whether to show class names, or the range of values, on the right. Legend and titles need pillow.
        names: Class names.
        titles: One title for each cloud.
        palette: Rule for the colors of classes.

    Returns:
        The image (height, width, 3), uint8; (height, width, 4) with opacity for a transparent background.

    Raises:
        ValueError: If an argument is out of range, the column is missing, or no point has finite coordinates.

    Example:
        >>> import torch
        >>> image = picture(Cloud(torch.rand(1000, 3)), size=(160, 120), legend=False)
        >>> image.shape, image.dtype
        ((120, 160, 3), dtype('uint8'))
    """
    look = Look(size, azimuth, elevation, point_size, background, legend)
    scenes = [scene(each, look, by) for each in ([cloud] if isinstance(cloud, Cloud) else cloud)]
    scales = shared_scales(scenes, by, names, palette)
    return next(compose(scenes, scales, look, [Title(text) for text in titles]))


def turntable(
    cloud: Cloud,
    by: str | None = None,
    *,
    frames: int = FRAMES,
    size: tuple[int, int] = SIZE,
    azimuth: float = AZIMUTH,
    elevation: float = ELEVATION,
    point_size: float | None = None,
    background: Background = "white",
    legend: bool = True,
    names: Mapping[int, str] | None = None,
    titles: Sequence[str] = (),
    palette: Palette | None = None,
) -> list[np.ndarray]:
    """Render a full rotation about the vertical axis through the center of a cloud.

    Args:
        cloud: The cloud.
        by: See `picture`.
        frames: Number of images.
        size: See `picture`.
        azimuth: Azimuth of the first image, in degrees.
        elevation: See `picture`.
        point_size: See `picture`.
        background: See `picture`.
        legend: See `picture`.
        names: See `picture`.
        titles: See `picture`.
        palette: See `picture`.

    Returns:
        The images, each (height, width, 3 or 4), uint8.

    Raises:
        ValueError: As for `picture`.

    Example:
        >>> import torch
        >>> images = turntable(Cloud(torch.rand(100, 3)), frames=3, size=(40, 30), legend=False)
        >>> len(images), images[0].shape
        (3, (30, 40, 3))
    """
    look = Look(size, azimuth, elevation, point_size, background, legend)
    scenes = [scene(cloud, look, by)]
    scales = shared_scales(scenes, by, names, palette)
    return list(compose(scenes, scales, look, [Title(text) for text in titles], frames=frames))


def shared_scales(
    scenes: Sequence[Scene],
    by: str | None,
    names: Mapping[int, str] | None = None,
    palette: Palette | None = None,
) -> list[Scale]:
    """Return a scale for each scene, the same for all, with counts of classes if there is only one.

    Without `by`, it is `first_choice` if that is the same for all scenes, else height.
    """
    if not scenes:
        raise ValueError("cloud must contain at least one cloud, got none")
    if by is None:
        wanted = {first_choice(scene.sample) for scene in scenes}
        by = wanted.pop() if len(wanted) == 1 else HEIGHT
    scales = [scene.scale(by, names, palette) for scene in scenes]
    if all(scale.kind == "class" for scale in scales):
        counts = dict.fromkeys(sorted({number for scale in scales for number in scale.counts}), 0)
        return [replace(scales[0], counts=counts if len(scenes) > 1 else scales[0].counts)] * len(scenes)
    ranges = [(min(one.counts), max(one.counts)) if one.kind == "class" else (one.low, one.high) for one in scales]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    kind: Literal["rgb", "value"] = "rgb" if scales[0].kind == "rgb" else "value"
    return [replace(scales[0], kind=kind, counts={}, low=low, high=high)] * len(scenes)


def compose(
    scenes: Sequence[Scene],
    scales: Sequence[Scale],
    look: Look,
    titles: Sequence[Title] = (),
    *,
    columns: int = 0,
    frames: int = 0,
) -> Iterator[np.ndarray]:
    """Render scenes in a grid, with titles and legends.

    Args:
        scenes: The scenes.
        scales: One scale for each scene.
        look: Appearance.
        titles: One title for each scene, or none.
        columns: Number of scenes in a row; 0 chooses the largest cells.
        frames: Number of images of a rotation; 0 for a single image.

    Yields:
        Images (height, width, 3 or 4), uint8.
    """
    if titles and len(titles) != len(scenes):
        raise ValueError(f"titles must have one entry for each of {len(scenes)} clouds, got {len(titles)}")
    if frames < 0:
        raise ValueError(f"frames must be at least 1, got {frames}")
    width, height = look.size
    pen = Pen(width, height, INKS[look.background]) if look.legend or titles else None
    legends = [scale for number, scale in enumerate(scales) if look.legend and scale not in scales[:number]]
    side = pen.legend_width(legends, round(WIDEST * width)) if pen and legends else 0
    gap = round(MARGIN * min(width, height))
    across = width - (side + gap if side else 0)
    above = pen.row if pen and titles else 0
    columns = columns or _columns(len(scenes), across, height)
    rows = -(-len(scenes) // columns)
    cell = across // columns, height // rows
    frame = Frame(cell[0], cell[1] - above, gap)
    if min(frame.width, frame.height) - 2 * gap < LEAST / 2:
        contract = f"large enough for {len(scenes)} clouds and their names"
        raise ValueError(f"the image must be {contract}, got {width} x {height}")
    places = [(number % columns * cell[0], number // columns * cell[1]) for number in range(len(scenes))]
    first = [scene.circling(frame, look.azimuth) if frames else scene.camera(frame) for scene in scenes]
    dots = [look.point_size or scene.dots(camera) for scene, camera in zip(scenes, first, strict=True)]
    for number in range(frames or 1):
        image = np.zeros((height, width, 4), np.float32)
        for scene, scale, camera, diameter, (left, top) in zip(scenes, scales, first, dots, places, strict=True):
            if number:
                camera = scene.circling(frame, look.azimuth + 360 * number / frames)
            drawn = scene.draw(camera, scale, diameter)
            image[top + above : top + above + frame.height, left : left + frame.width] = drawn
        out = _opaque(image, look.background)
        if pen:
            for title, (left, top) in zip(titles, places, strict=False):
                out = pen.title(out, title, left, top, cell[0])
            if side:
                out = pen.legend(out, legends, across, side)
        yield out


def scene(cloud: Cloud, look: Look, by: str | None) -> Scene:
    """Make the scene of a cloud in memory."""
    return Scene(lambda: [cloud], look.view, by)


def _is_pair(size: object) -> bool:
    return (
        isinstance(size, (tuple, list))
        and len(size) == 2
        and all(isinstance(side, Integral) and not isinstance(side, bool) for side in size)
    )


def _columns(count: int, width: int, height: int) -> int:
    """Number of columns for the largest cells."""
    return max(range(1, count + 1), key=lambda columns: min(width / columns, height / -(-count // columns)))


def _opaque(image: np.ndarray, background: Background) -> np.ndarray:
    """Blend with the background. Without one, empty pixels get the text color, so that text edges blend well."""
    colors, opacity = image[..., :3], image[..., 3:]
    if background != "transparent":
        ground = np.array(GROUNDS[background], np.float32) / 255
        return np.rint((colors + (1 - opacity) * ground) * 255).astype(np.uint8)
    ink = np.array(INKS[background], np.float32) / 255
    straight = np.where(opacity > 0, colors / np.maximum(opacity, 1e-6), ink)
    return np.rint(np.concatenate([straight, opacity], axis=2) * 255).astype(np.uint8)

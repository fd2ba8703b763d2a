"""`pointgrad.render(points)`: an image of tensors, arrays and clouds."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pointgrad.data.as_clouds import as_clouds, class_map, preferred_column, stored_names
from pointgrad.render.palette import Palette
from pointgrad.render.still import AZIMUTH, ELEVATION, SIZE, Background, picture

if TYPE_CHECKING:
    import PIL.Image


def image(
    points: Any,
    colors: Any = None,
    labels: Any = None,
    *,
    classes: Sequence[str] | Mapping[int, str] | None = None,
    by: str | None = None,
    size: tuple[int, int] = SIZE,
    azimuth: float = AZIMUTH,
    elevation: float = ELEVATION,
    point_size: float | None = None,
    background: Background = "white",
    legend: bool = True,
    palette: Palette | None = None,
) -> "PIL.Image.Image":
    """Render points to an image, which a notebook displays. `pointgrad.render(...)` is this function.

    Args:
        points: (N, 3) tensor, array or `Cloud`, on any device. Several clouds, which are drawn side by side: a dict of
            them by name, a list of them, or a batch (B, N, 3).
        colors: (N, 3) uint8 or from 0 to 1, or one value per point (N,). For several clouds, structured as `points`.
        labels: Class of each point (N,), -1 for no label. For several clouds, structured as `points`.
        classes: Class names, in order or by number; by default those of the file that a `Cloud` was read from.
        by: Column that colors the points. Default: the colors, else the labels, else the height.
        size: See `picture`.
        azimuth: See `picture`.
        elevation: See `picture`.
        point_size: See `picture`.
        background: See `picture`.
        legend: See `picture`.
        palette: See `picture`.

    Returns:
        The image. `save("cloud.png")` writes it, and `numpy.asarray` returns its pixels.

    Raises:
        TypeError: If an argument has a wrong type or dtype.
        ValueError: If a shape or value is invalid, or the column is missing.
        ModuleNotFoundError: If pillow is not installed.

    Example:
        >>> import torch
        >>> image({"a": torch.rand(100, 3), "b": torch.rand(50, 3)}, size=(320, 160)).size
        (320, 160)
    """
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("images need pillow: pip install 'pointgrad[view]'", name=error.name) from None
    clouds = as_clouds(points, colors, labels)
    for name, cloud in clouds.items():
        if not bool(cloud.points.isfinite().all(1).any()):
            raise ValueError(f"points[{name!r}] must have at least one finite point, got none")
    pixels = picture(
        list(clouds.values()),
        preferred_column(colors, clouds) if by is None else by,
        size=size,
        azimuth=azimuth,
        elevation=elevation,
        point_size=point_size,
        background=background,
        legend=legend,
        names=class_map(classes) or (stored_names(clouds) if labels is None else {}),
        titles=list(clouds) if len(clouds) > 1 else (),
        palette=palette,
    )
    return Image.fromarray(pixels)

"""Mapping of columns to colors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pointgrad.data import Cloud
from pointgrad.render.palette import NONE, Palette
from pointgrad.render.palette import PALETTE as PALETTE

RGB, HEIGHT, LABEL, ERROR = "rgb", "height", "label", "error"
NUMBERED = (LABEL, "prediction", "predicted_label")  # always classes, regardless of their number
CHANNELS = ("red", "green", "blue")
MAX_CLASSES = 64  # integer columns with more distinct values are quantities
CUT = 0.02  # fraction of the points at either end that is ignored for the range
RIGHT, WRONG = (190, 196, 204), (210, 40, 40)
RIGHT_OR_WRONG = {0: "right", 1: "wrong"}  # class names of the column ERROR

# Dark blue to yellow, with uniformly increasing lightness.
RAMP = np.array([
    (68, 1, 84), (71, 39, 119), (62, 73, 137), (49, 104, 142), (38, 130, 142), (31, 158, 137), (53, 183, 121),
    (110, 206, 88), (181, 222, 43), (253, 231, 37),
], np.float64)  # fmt: skip

_PLACES = np.linspace(0, len(RAMP) - 1, 1024)
_STEPS = np.stack([np.interp(_PLACES, np.arange(len(RAMP)), part) for part in RAMP.T], axis=1).round().astype(np.uint8)


@dataclass(frozen=True)
class Scale:
    """Mapping of one column to colors, which can be shared by parts of a cloud and by several clouds.

    Attributes:
        by: Name of the column.
        kind: "rgb" for stored colors, "class" for integers with one color each, "value" for numbers on a color ramp.
        low: Value at the start of the ramp.
        high: Value at the end of the ramp; for "rgb", the intensity that is shown as white.
        counts: Number of points of each class, in the cloud from which the scale was computed.
        names: Class names.
        palette: Rule for the colors of classes.
    """

    by: str
    kind: Literal["rgb", "class", "value"]
    low: float = 0.0
    high: float = 1.0
    counts: Mapping[int, int] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)
    palette: Palette = field(default_factory=Palette)

    def name(self, number: int) -> str:
        """Return the name of a class, or its number if it has no name."""
        return self.names.get(number, "none" if number == -1 else str(number))

    def color(self, number: int) -> tuple[int, int, int]:
        """Return the color of a class."""
        if self.by == ERROR:
            return NONE if number < 0 else (RIGHT, WRONG)[number % 2]
        return self.palette.color(number, self.names)


def choices(cloud: Cloud) -> list[str]:
    """List the columns by which a cloud can be colored, the most useful ones first.

    Args:
        cloud: The cloud.

    Returns:
        Names for the argument `by` of `scale` and `picture`.

    Example:
        >>> choices(Cloud(torch.zeros(4, 3), {"intensity": torch.zeros(4), "normal": torch.zeros(4, 3)}))
        ['height', 'intensity', 'normal[0]', 'normal[1]', 'normal[2]']
    """
    names = [LABEL] if cloud.labels is not None else []
    names += [RGB] if _colors(cloud) is not None else []
    names.append(HEIGHT)
    for name, column in cloud.features.items():
        if column.dim() == 1:
            names.append(name)
        elif column.dim() == 2:
            names += [f"{name}[{index}]" for index in range(column.shape[1])]
    return list(dict.fromkeys(names))


def first_choice(cloud: Cloud) -> str:
    """Choose the default coloring: labels if at least two differ, else colors if at least two differ, else height.

    Args:
        cloud: The cloud.

    Returns:
        One of `choices(cloud)`.

    Example:
        >>> first_choice(Cloud(torch.zeros(2, 3), labels=torch.tensor([0, 0])))
        'height'
        >>> first_choice(Cloud(torch.zeros(2, 3), labels=torch.tensor([0, 3])))
        'label'
    """
    if cloud.labels is not None and bool((cloud.labels != cloud.labels[:1]).any()):
        return LABEL
    colors = _colors(cloud)
    return HEIGHT if colors is None or bool((colors == colors[:1]).all()) else RGB


def scale(cloud: Cloud, by: str, names: Mapping[int, str] | None = None, palette: Palette | None = None) -> Scale:
    """Compute the color scale of a column.

    Labels, predictions, and integers with at most 64 distinct values are classes. Other columns are quantities, shown
    from the 2nd to the 98th percentile, so that outliers do not compress the range of the other values.

    Args:
        cloud: The cloud.
        by: One of `choices(cloud)`.
        names: Class names.
        palette: Rule for the colors of classes.

    Returns:
        The scale.

    Raises:
        ValueError: If the cloud has no such column.

    Example:
        >>> found = scale(Cloud(torch.rand(100, 3)), "height")
        >>> found.kind, 0 < found.low < found.high < 1
        ('value', True)
    """
    colors = _colors(cloud)
    if by == RGB and colors is not None:
        is_integer = all(cloud.features[name].dtype in (torch.int32, torch.int64) for name in CHANNELS)
        return Scale(by, "rgb", high=_white(colors, is_integer))
    values = column(cloud, by)
    if not values.is_floating_point():
        found, counts = values.unique(return_counts=True)
        if by in NUMBERED or len(found) <= MAX_CLASSES:
            counted = dict(zip(found.tolist(), counts.tolist(), strict=True))
            return Scale(by, "class", counts=counted, names=names or {}, palette=palette or Palette())
    finite = values.double()
    finite = finite[finite.isfinite()]
    if not len(finite):
        return Scale(by, "value")
    low, high = np.quantile(finite.numpy(), (CUT, 1 - CUT)).tolist()
    if low == high:
        low, high = float(finite.min()), float(finite.max())
    return Scale(by, "value", low, high)


def paint(cloud: Cloud, scale: Scale) -> np.ndarray:
    """Compute the color of each point.

    Args:
        cloud: N points.
        scale: A scale for a column of the cloud.

    Returns:
        Colors (N, 3), uint8.

    Raises:
        ValueError: If the cloud does not have the column.

    Example:
        >>> labelled = Cloud(torch.zeros(3, 3), labels=torch.tensor([0, 1, -1]))
        >>> paint(labelled, scale(labelled, "label")).tolist()
        [[31, 95, 168], [224, 123, 57], [150, 150, 150]]
    """
    if scale.kind == "rgb":
        colors = _colors(cloud)
        if colors is None:
            raise _missing(cloud, scale.by)
        return (colors.div(scale.high).nan_to_num(0).clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    values = column(cloud, scale.by)
    if scale.kind == "class":
        return _classes(values.long().numpy(), scale)
    return ramp(values.double().numpy(), scale.low, scale.high)


def ramp(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Map numbers (N,) to colors (N, 3), uint8, from dark blue at `low` to yellow at `high`, with clamping."""
    span = high - low
    known = np.isfinite(values)
    share = np.clip(np.where(known, values, low) - low, 0, span) / (span if span > 0 else 1.0)
    return np.where(
        known[:, None], _STEPS[np.rint(share * (len(_STEPS) - 1)).astype(np.int64)], np.array(NONE, np.uint8)
    )


def _classes(numbers: np.ndarray, scale: Scale) -> np.ndarray:
    found, inverse = np.unique(numbers, return_inverse=True)
    table = np.array([scale.color(number) for number in found.tolist()], np.uint8).reshape(-1, 3)
    return table[inverse.reshape(-1)]


def column(cloud: Cloud, by: str) -> Tensor:
    """Return the values (N,) of one of `choices(cloud)`, except "rgb"."""
    if by == LABEL and cloud.labels is not None:
        return cloud.labels
    if by == HEIGHT and HEIGHT not in cloud.features:
        return cloud.points[:, 2].detach().double() + cloud.origin[2]
    if by not in choices(cloud) or by == LABEL or (by == RGB and RGB not in cloud.features):
        raise _missing(cloud, by)
    if by in cloud.features:
        found = cloud.features[by]
    else:
        name, _, index = by.rpartition("[")
        found = cloud.features[name][:, int(index[:-1])]
    return found.double() if found.dtype == torch.uint64 else found.detach()  # torch hardly supports uint64


def _colors(cloud: Cloud) -> Tensor | None:
    """Colors (N, 3) from 0 to 1, or None."""
    if not all(name in cloud.features for name in CHANNELS):
        return None
    colors = cloud.stack(CHANNELS)
    return None if colors is None else colors.detach()


def _white(colors: Tensor, is_integer: bool) -> float:
    """Detect the value of white. Many LAS files store 8-bit values in 16 bits, and many text files 8-bit values."""
    most = float(colors.nan_to_num(0, 0, 0).amax()) if len(colors) else 0.0
    if is_integer:
        return 1.0 if most > 255 / 65535 else 255 / 65535
    return next((white for white in (1.0, 255.0) if most <= white), 65535.0)


def _missing(cloud: Cloud, by: str) -> ValueError:
    return ValueError(f"{cloud.prefix()}by must be one of {', '.join(choices(cloud))}, got {by}")

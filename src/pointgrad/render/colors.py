"""From columns of a cloud to colours: which there are, what range they span, and the colour of each point."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pointgrad.data import Cloud

RGB, HEIGHT, LABEL, ERROR = "rgb", "height", "label", "error"
NUMBERED = (LABEL, "prediction", "predicted_label")  # classes, however many
CHANNELS = ("red", "green", "blue")
MOST_CLASSES = 64  # whole numbers of more different values are quantities
CUT = 0.02  # of the points at either end do not stretch the range
NONE = (150, 150, 150)  # a class of -1, a value that is not finite

# Classes that follow each other differ in hue and in lightness; none is as grey as NONE.
PALETTE = np.array([
    (31, 95, 168), (224, 123, 57), (58, 143, 92), (192, 57, 43), (142, 90, 168), (140, 96, 58), (227, 119, 194),
    (190, 178, 40), (38, 176, 196), (134, 187, 216), (247, 182, 130), (140, 205, 150), (240, 150, 145),
    (196, 176, 220), (196, 160, 130), (90, 60, 110),
], np.uint8)  # fmt: skip
RIGHT, WRONG = (190, 196, 204), (210, 40, 40)
RIGHT_OR_WRONG = {0: "right", 1: "wrong"}  # of the column ERROR

# Dark blue to yellow, of evenly rising lightness.
RAMP = np.array([
    (68, 1, 84), (71, 39, 119), (62, 73, 137), (49, 104, 142), (38, 130, 142), (31, 158, 137), (53, 183, 121),
    (110, 206, 88), (181, 222, 43), (253, 231, 37),
], np.float64)  # fmt: skip

_PLACES = np.linspace(0, len(RAMP) - 1, 1024)
_STEPS = np.stack([np.interp(_PLACES, np.arange(len(RAMP)), part) for part in RAMP.T], axis=1).round().astype(np.uint8)


@dataclass(frozen=True)
class Scale:
    """How one column becomes colours. Found once, so that parts of a cloud, and several clouds, are coloured alike.

    by: the column. kind: "rgb", colours as they are; "class", whole numbers with a colour each; "value", numbers from
    low to high. Of colours, high is the share of full white that is shown white. counts: of classes, how many points
    each has in what the scale was found from. names: of classes.
    """

    by: str
    kind: Literal["rgb", "class", "value"]
    low: float = 0.0
    high: float = 1.0
    counts: Mapping[int, int] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)

    def name(self, number: int) -> str:
        return self.names.get(number, "none" if number == -1 else str(number))

    def color(self, number: int) -> tuple[int, int, int]:
        """Of a class."""
        red, green, blue = (int(part) for part in _classes(np.array([number]), self.by)[0])
        return red, green, blue


def choices(cloud: Cloud) -> list[str]:
    """What a cloud can be coloured by, what most people want first.

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
            names += [f"{name}[{place}]" for place in range(column.shape[1])]
    return list(dict.fromkeys(names))


def first_choice(cloud: Cloud) -> str:
    """What shows most of a cloud: labels, else colours, if there is more than one of them; else height.

    >>> first_choice(Cloud(torch.zeros(2, 3), labels=torch.tensor([0, 0])))
    'height'
    >>> first_choice(Cloud(torch.zeros(2, 3), labels=torch.tensor([0, 3])))
    'label'
    """
    if cloud.labels is not None and bool((cloud.labels != cloud.labels[:1]).any()):
        return LABEL
    colors = _colors(cloud)
    return HEIGHT if colors is None or bool((colors == colors[:1]).all()) else RGB


def scale(cloud: Cloud, by: str, names: Mapping[int, str] | None = None) -> Scale:
    """The scale of a column over a cloud. names: of classes.

    Whole numbers of at most 64 different values are classes, and so are labels and predictions of any number;
    everything else is a quantity, shown from its 2nd to its 98th percentile, so that a few outliers do not make all
    others look alike.

    >>> found = scale(Cloud(torch.rand(100, 3)), "height")
    >>> found.kind, 0 < found.low < found.high < 1
    ('value', True)
    """
    colors = _colors(cloud)
    if by == RGB and colors is not None:
        whole = all(cloud.features[name].dtype in (torch.int32, torch.int64) for name in CHANNELS)
        return Scale(by, "rgb", high=_white(colors, whole))
    values = column(cloud, by)
    if not values.is_floating_point():
        found, counts = values.unique(return_counts=True)
        if by in NUMBERED or len(found) <= MOST_CLASSES:
            return Scale(by, "class", counts=dict(zip(found.tolist(), counts.tolist(), strict=True)), names=names or {})
    finite = values.double()
    finite = finite[finite.isfinite()]
    if not len(finite):
        return Scale(by, "value")
    low, high = np.quantile(finite.numpy(), (CUT, 1 - CUT)).tolist()
    if low == high:
        low, high = float(finite.min()), float(finite.max())
    return Scale(by, "value", low, high)


def paint(cloud: Cloud, scale: Scale) -> np.ndarray:
    """(N, 3) uint8: the colour of each point.

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
        return _classes(values.long().numpy(), scale.by)
    return ramp(values.double().numpy(), scale.low, scale.high)


def ramp(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """(N, 3) uint8: numbers from low to high, from dark blue to yellow; what is beyond has the colour of the end."""
    span = high - low
    known = np.isfinite(values)
    share = np.clip(np.where(known, values, low) - low, 0, span) / (span if span > 0 else 1.0)
    return np.where(
        known[:, None], _STEPS[np.rint(share * (len(_STEPS) - 1)).astype(np.int64)], np.array(NONE, np.uint8)
    )


def _classes(numbers: np.ndarray, by: str) -> np.ndarray:
    colors = np.array([RIGHT, WRONG], np.uint8) if by == ERROR else PALETTE
    return np.where((numbers < 0)[:, None], np.array(NONE, np.uint8), colors[numbers % len(colors)])


def column(cloud: Cloud, by: str) -> Tensor:
    """(N,) the numbers of a name that `choices` gives, except for the colours."""
    if by == LABEL and cloud.labels is not None:
        return cloud.labels
    if by == HEIGHT and HEIGHT not in cloud.features:
        return cloud.points[:, 2].detach().double() + cloud.origin[2]
    if by not in choices(cloud) or by == LABEL or (by == RGB and RGB not in cloud.features):
        raise _missing(cloud, by)
    if by in cloud.features:
        found = cloud.features[by]
    else:
        name, _, place = by.rpartition("[")
        found = cloud.features[name][:, int(place[:-1])]
    return found.double() if found.dtype == torch.uint64 else found.detach()  # torch hardly computes with uint64


def _colors(cloud: Cloud) -> Tensor | None:
    """(N, 3) from 0 to 1."""
    if not all(name in cloud.features for name in CHANNELS):
        return None
    colors = cloud.stack(CHANNELS)
    return None if colors is None else colors.detach()


def _white(colors: Tensor, whole: bool) -> float:
    """What stands for white. Many LAS files hold bytes where 16 bits are expected, and many texts bytes as floats."""
    most = float(colors.nan_to_num(0, 0, 0).amax()) if len(colors) else 0.0
    if whole:
        return 1.0 if most > 255 / 65535 else 255 / 65535
    return next((white for white in (1.0, 255.0) if most <= white), 65535.0)


def _missing(cloud: Cloud, by: str) -> ValueError:
    return ValueError(f"{cloud.prefix()}colours must be by {', '.join(choices(cloud))}, got {by}")

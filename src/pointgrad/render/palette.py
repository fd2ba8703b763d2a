"""Class colors: by the meaning of a class name, chosen by the user, or the next free color of a palette."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

Color: TypeAlias = tuple[int, int, int]
PaletteName = Literal["standard", "colorblind"]

NONE: Color = (150, 150, 150)  # color of class -1 and of non-finite values
DISTINCT = 20.0  # minimum distance of two assigned colors, in CIELAB
SHADES = ((0.35, 255), (0.35, 0), (0.6, 255), (0.6, 0))  # share of white or black in variants of a color

# Consecutive classes differ in hue and lightness. No color is as gray as NONE.
PALETTE = np.array([
    (31, 95, 168), (224, 123, 57), (58, 143, 92), (192, 57, 43), (142, 90, 168), (140, 96, 58), (227, 119, 194),
    (190, 178, 40), (38, 176, 196), (134, 187, 216), (247, 182, 130), (140, 205, 150), (240, 150, 145),
    (196, 176, 220), (196, 160, 130), (90, 60, 110),
], np.uint8)  # fmt: skip

# Colors of Okabe and Ito, which color vision deficiencies affect little, then variants of their lightness.
COLORBLIND = np.array([
    (0, 114, 178), (230, 159, 0), (0, 158, 115), (213, 94, 0), (204, 121, 167), (86, 180, 233), (240, 228, 66),
    (40, 40, 40), (0, 60, 100), (255, 214, 140), (0, 85, 62), (120, 50, 0), (110, 40, 85), (190, 228, 250),
    (130, 124, 20), (225, 225, 225),
], np.uint8)  # fmt: skip

# Meaning of a name, the first pattern that occurs in it; then its color in the standard and in the colorblind palette.
MEANINGS: tuple[tuple[str, Color, Color], ...] = (
    (r"never classified|created", (112, 112, 118), (112, 112, 118)),
    (r"unclassified|unassigned|unlabel\w*|undefined|unknown", (192, 192, 196), (192, 192, 196)),
    (r"high noise", (255, 120, 210), (204, 121, 167)),
    (r"low point|noise|outlier", (232, 30, 150), (110, 40, 85)),
    (r"low vegetation|grass|lawn|shrub|bush|hedge", (170, 212, 90), (170, 230, 190)),
    (r"medium vegetation|natural", (92, 178, 70), (60, 195, 145)),
    (r"trunk|stem|branch", (112, 74, 44), (120, 50, 0)),
    (r"high vegetation|trees?|conifers?|canopy|forest", (24, 120, 52), (0, 120, 85)),
    (r"vegetation|plants?|foliage|leaf|leaves", (52, 150, 62), (0, 158, 115)),
    (r"other ground", (196, 160, 130), (255, 214, 140)),
    (r"sidewalk|pavement|footpath|curb", (205, 170, 190), (236, 176, 205)),
    (r"bridge( deck)?", (120, 98, 150), (150, 105, 175)),
    (r"road( surface| marking)?|street|asphalt|parking|driveway", (66, 68, 80), (50, 50, 56)),
    (r"rail\w*|tracks?", (110, 46, 80), (120, 20, 80)),
    (r"model key( ?points?)?", (214, 160, 40), (255, 190, 60)),
    (r"ground|terrain|soil|earth|dirt", (166, 118, 62), (200, 170, 110)),
    (r"floor", (186, 150, 104), (200, 170, 110)),
    (r"roof", (160, 44, 40), (160, 60, 0)),
    (r"buildings?|houses?|facade|construction", (206, 72, 56), (213, 94, 0)),
    (r"walls?", (214, 140, 110), (245, 160, 110)),
    (r"water|river|lake|sea|pond", (40, 122, 204), (0, 114, 178)),
    (r"cars?|vehicles?|automobile|van", (128, 66, 176), (204, 121, 167)),
    (r"trucks?|lorry|bus(es)?", (84, 60, 200), (120, 60, 140)),
    (r"motorcycl\w*", (178, 100, 214), (180, 80, 140)),
    (r"bicycl\w*|bikes?|cyclist", (214, 150, 236), (240, 190, 220)),
    (r"persons?|people|pedestrians?|humans?", (250, 96, 132), (235, 100, 150)),
    (r"wire guard", (120, 190, 230), (190, 228, 250)),
    (r"wire conn\w*", (10, 60, 84), (0, 40, 70)),
    (r"wires?( conductor)?|power ?lines?|cables?|conductor", (38, 176, 196), (86, 180, 233)),
    (r"transmission tower|towers?|pylons?|masts?", (24, 104, 140), (0, 60, 100)),
    (r"fences?|guardrails?|railings?|barriers?", (232, 168, 48), (230, 159, 0)),
    (r"(lamp|light)\w*( ?posts?)?|street ?lights?", (250, 214, 60), (240, 228, 66)),
    (r"traffic (sign|light)s?|signs?", (240, 220, 90), (240, 228, 66)),
    (r"poles?|posts?|columns?", (36, 70, 150), (0, 80, 160)),
    (r"overlap", (208, 200, 150), (225, 225, 190)),
    (r"clutter|others?|misc\w*|rest", (172, 166, 156), (172, 166, 156)),
)  # fmt: skip
_PATTERNS = [re.compile(rf"(?<![a-z])(?:{pattern})(?![a-z])") for pattern, _, _ in MEANINGS]


def parse_color(text: str) -> Color:
    """Read a color written as `#8c6d31` or `#8d3`.

    Raises:
        ValueError: If it is not written like this.

    Example:
        >>> parse_color("#8c6d31"), parse_color("#F00")
        ((140, 109, 49), (255, 0, 0))
    """
    digits = text.removeprefix("#")
    if not text.startswith("#") or not re.fullmatch(r"[0-9a-fA-F]{3}|[0-9a-fA-F]{6}", digits):
        raise ValueError(f"a color must be written as #rgb or #rrggbb, such as #8c6d31, got {text}")
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    return int(digits[:2], 16), int(digits[2:4], 16), int(digits[4:], 16)


@dataclass(frozen=True)
class Palette:
    """Rule for class colors.

    A class gets the color that the user chose for it; else the color of its meaning, such as brown for "ground" and
    green for "high vegetation", or a lighter or darker variant if a class before it has this color; else the first
    color of the palette that differs from all colors in use. Only the list
    of class names matters, not which classes a cloud has, so that a class has one color in all images of a dataset.

    Attributes:
        name: "standard", or "colorblind" for colors that people with color vision deficiencies can distinguish.
        chosen: Pairs of a class name, or number, and its color.
    """

    name: PaletteName = "standard"
    chosen: tuple[tuple[str, Color], ...] = ()

    def __post_init__(self) -> None:
        if self.name not in ("standard", "colorblind"):
            raise ValueError(f"palette must be standard or colorblind, got {self.name}")

    @classmethod
    def parse(cls, name: PaletteName, chosen: Iterable[str]) -> "Palette":
        """Make a palette from texts such as `ground=#8c6d31`.

        Raises:
            ValueError: If a text is not a class name and a color, or a class occurs twice.

        Example:
            >>> Palette.parse("standard", ["ground=#8c6d31"]).chosen
            (('ground', (140, 109, 49)),)
        """
        found: dict[str, Color] = {}
        for text in chosen:
            key, equals, color = text.rpartition("=")
            if not equals or not key.strip():
                raise ValueError(f"--colors must be class names with colors, such as ground=#8c6d31, got {text}")
            if _normal(key) in map(_normal, found):
                raise ValueError(f"--colors must name each class once, got {key.strip()} twice")
            try:
                found[key.strip()] = parse_color(color.strip())
            except ValueError as error:
                raise ValueError(f"--colors {text}: {error}") from None
        return cls(name, tuple(found.items()))

    def check(self, names: Mapping[int, str], numbers: Iterable[int] = ()) -> None:
        """Raise ValueError if a chosen class is neither one of the names nor one of the numbers."""
        known = {_normal(name) for name in names.values()} | {str(number) for number in (*names, *numbers)}
        for key, _ in self.chosen:
            if _normal(key) not in known:
                listed = ", ".join(names.values()) or ", ".join(map(str, sorted(numbers))) or "no classes"
                raise ValueError(f"--colors must name classes of the data ({listed}), got {key}")

    def colors(self, names: Mapping[int, str]) -> Mapping[int, Color]:
        """Assign a color to every named class."""
        return _assign(self, tuple(names.items()))

    def color(self, number: int, names: Mapping[int, str]) -> Color:
        """Return the color of a class, which need not have a name."""
        chosen = dict(self.chosen).get(str(number))
        if chosen is not None:
            return chosen
        assigned = self.colors(names)
        if number in assigned:
            return assigned[number]
        if number < 0:
            return NONE
        free = _free(self, tuple(assigned.values())) if assigned else _table(self)
        return free[number % len(free)]


def distance(first: Color, second: Color) -> float:
    """Perceived difference of two colors: the distance in CIELAB.

    Example:
        >>> round(distance((0, 0, 0), (255, 255, 255)))
        100
    """
    return float(np.linalg.norm(_lab(first) - _lab(second)))


def meaning(name: str, palette: PaletteName = "standard") -> Color | None:
    """Return the color of the meaning of a class name, None if it has no known meaning."""
    text = _normal(name)
    for pattern, (_, standard, colorblind) in zip(_PATTERNS, MEANINGS, strict=True):
        if pattern.search(text):
            return standard if palette == "standard" else colorblind
    return None


def _normal(name: str) -> str:
    """Lower case, with one space for spaces, hyphens, underscores and punctuation."""
    split = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return re.sub(r"[^a-z0-9#]+", " ", split.lower()).strip()


@lru_cache(maxsize=256)
def _assign(palette: Palette, names: tuple[tuple[int, str], ...]) -> dict[int, Color]:
    chosen = {_normal(key): color for key, color in palette.chosen}
    found: dict[int, Color] = {}
    for number, name in names:
        color = chosen.get(_normal(name), chosen.get(str(number)))
        if color is not None:
            found[number] = color
        elif number == -1:
            found[number] = NONE
    used = [NONE, *found.values()]
    open_names: dict[int, str] = {number: name for number, name in names if number not in found}
    for number, name in list(open_names.items()):
        wanted = meaning(name, palette.name)
        shades = [] if wanted is None else [wanted, *(_mixed(wanted, end, share) for share, end in SHADES)]
        for color in shades:
            if all(distance(color, other) >= DISTINCT for other in used[1:]):
                found[number] = color
                used.append(color)
                del open_names[number]
                break
    free = iter(_free(palette, tuple(used[1:])))
    for number in open_names:
        color = next(free, None)
        found[number] = _table(palette)[number % len(_table(palette))] if color is None else color
    return {number: found[number] for number, _ in names}


@lru_cache(maxsize=256)
def _free(palette: Palette, used: tuple[Color, ...]) -> tuple[Color, ...]:
    """Colors of the palette, and lighter and darker variants, that differ from those in use and from each other."""
    table = _table(palette)
    shades = [_mixed(color, end, share) for share, end in SHADES for color in table]
    found: list[Color] = []
    for color in (*table, *shades):
        if all(distance(color, other) >= DISTINCT for other in (NONE, *used, *found)):
            found.append(color)
    return tuple(found) or table


def _mixed(color: Color, other: int, share: float) -> Color:
    red, green, blue = (round(part + share * (other - part)) for part in color)
    return red, green, blue


def _table(palette: Palette) -> tuple[Color, ...]:
    colors = PALETTE if palette.name == "standard" else COLORBLIND
    return tuple((int(red), int(green), int(blue)) for red, green, blue in colors)


@lru_cache(maxsize=4096)
def _lab(color: Color) -> np.ndarray:
    """CIELAB coordinates of an sRGB color."""
    srgb = np.array(color, np.float64) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    ratio = xyz / np.array([0.9505, 1.0, 1.089])
    root = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])

"""The twelve kinds of objects, each built by a function of twelve parameters between 0 and 1.

The first two parameters are the main proportions of a kind; training, validation and test data take them from different
cells (see `Shapes`). The third and fourth choose between variants. Objects stand on the plane z = 0.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pointgrad.data.datasets.shapes.surface import Surface, X, Y, Z

Numbers = Sequence[float]


class Kind(NamedTuple):
    build: Callable[[Surface, Numbers], None]
    parts: tuple[str, ...]


def between(t: float, low: float, high: float) -> float:
    return low + t * (high - low)


def airplane(s: Surface, t: Numbers) -> None:
    span, length = between(t[0], 0.5, 1.1), between(t[1], 1.2, 2.0)
    radius, sweep, chord = between(t[4], 0.08, 0.13), between(t[5], 0.0, 0.45), between(t[6], 0.2, 0.34)
    half = length / 2
    along = (Y, Z, X)
    nose = [(0, half), (radius * 0.6, half * 0.93), (radius, half * 0.75)]
    s.lathe(0, [*nose, (radius, -half * 0.5), (radius * 0.25, -half)], (0, 0, 0.3), along)
    low = 0.3 - radius * 0.6 if t[2] < 0.5 else 0.3 + radius * 0.7
    wing = between(t[7], -0.05, 0.2)
    for side in (1, -1):
        s.flat(1, (wing + chord / 2, 0, low), (-sweep, side * span, 0.06), (-chord, 0, 0))
        tail = span * 0.38
        s.flat(2, (-half + 0.16, 0, 0.3), (-sweep * 0.3, side * tail, 0), (-0.15, 0, 0))
        if t[3] < 0.6:
            engine = (wing - sweep * 0.4 + 0.1, side * span * 0.4, low - 0.07)
            s.lathe(3, [(0.045, -0.14), (0.06, 0), (0.055, 0.14), (0, 0.12)], engine, along)
    s.flat(2, (-half + 0.2, 0, 0.3), (-0.14, 0, between(t[8], 0.22, 0.38)), (-0.18, 0, 0))


def bottle(s: Surface, t: Numbers) -> None:
    radius, height = between(t[0], 0.2, 0.42), between(t[1], 0.5, 1.0)
    neck, reach = between(t[4], 0.3, 0.45) * radius, between(t[5], 0.2, 0.45)
    shoulder = between(t[6], 0.08, 0.3)
    top = height + shoulder
    if t[2] < 0.7:
        s.lathe(
            0, [(0, 0), (radius, 0), (radius, height), ((radius + neck) * 0.55, height + shoulder * 0.6), (neck, top)]
        )
    else:  # square
        s.box(0, (0, 0, height / 2), (radius * 1.8, radius * 1.8, height))
        s.lathe(0, [(radius * 0.9, height), (neck, top)])
    s.lathe(1, [(neck, top), (neck, top + reach)])
    cap = neck * 1.25
    s.lathe(2, [(cap, top + reach), (cap, top + reach + 0.12), (0, top + reach + 0.12)])


def car(s: Surface, t: Numbers) -> None:
    length, height = between(t[0], 1.3, 2.1), between(t[1], 0.22, 0.42)
    width, wheel = between(t[4], 0.7, 0.9), between(t[5], 0.15, 0.22)
    floor = wheel * 0.9
    s.box(0, (0, 0, floor + height / 2), (length, width, height))
    tall, long = between(t[6], 0.2, 0.36), length * between(t[7], 0.4, 0.6)
    shift = -length * between(t[8], 0.0, 0.15)
    base = floor + height
    if t[2] < 0.3:  # a van: the cabin reaches the rear
        long, shift = length * 0.72, -length * 0.13
    w, inset = width * 0.92, min(0.16, long * 0.25)
    s.flat(1, (shift - long / 2 + inset * 0.6, -w / 2, base + tall), (long - inset * 1.6, 0, 0), (0, w, 0))
    s.flat(1, (shift + long / 2, -w / 2, base), (-inset, 0, tall), (0, w, 0))
    s.flat(1, (shift - long / 2, -w / 2, base), (inset * 0.6, 0, tall), (0, w, 0))
    for side in (1, -1):
        s.flat(1, (shift - long / 2 + inset * 0.3, side * w / 2, base), (long - inset * 0.8, 0, 0), (0, 0, tall))
        for end in (1, -1):
            hub = (end * length * between(t[9], 0.28, 0.34), side * width / 2, wheel)
            s.lathe(2, [(0, 0.06), (wheel, 0.06), (wheel, -0.1)], hub, (X, Z, (0, side, 0)))


def legs(s: Surface, part: int, w: float, d: float, height: float, thick: float, splay: float, square: bool) -> None:
    for x in (w / 2, -w / 2):
        for y in (d / 2, -d / 2):
            if square and splay == 0:
                s.box(part, (x, y, height / 2), (thick * 1.8, thick * 1.8, height))
            else:
                s.rod(part, (x * (1 + splay), y * (1 + splay), 0), (x, y, height), thick * 0.7, thick)


def star(s: Surface, part: int, reach: float, height: float, thick: float) -> None:
    """Add a column with five feet."""
    s.rod(part, (0, 0, 0.1), (0, 0, height), thick * 1.3)
    for number in range(5):
        angle = 2 * math.pi * number / 5
        s.rod(part, (0, 0, 0.12), (reach * math.cos(angle), reach * math.sin(angle), 0.02), thick)


def chair(s: Surface, t: Numbers) -> None:
    back, seat = between(t[0], 0.35, 0.85), between(t[1], 0.35, 0.75)
    w, d, thick = between(t[4], 0.5, 0.7), between(t[5], 0.48, 0.65), between(t[6], 0.04, 0.1)
    slant = between(t[7], 0.0, 0.2)
    s.box(0, (0, 0, seat), (w, d, thick))
    if t[2] < 0.25:
        star(s, 2, w * 0.55, seat, 0.03)
    else:
        legs(s, 2, w * 0.88, d * 0.88, seat, between(t[8], 0.02, 0.035), 0.0 if t[2] < 0.7 else 0.12, t[9] < 0.5)
    y = d / 2 - 0.03
    if t[3] < 0.55:
        s.box(1, (0, y, seat + back / 2), (w, 0.05, back), slant)
    else:  # posts and rails
        for x in (w * 0.45, -w * 0.45):
            s.rod(1, (x, y, seat), (x, y + slant, seat + back), 0.025)
        for share in (0.35, 0.65, 0.95):
            s.box(1, (0, y + slant * share, seat + back * share), (w * 0.9, 0.03, back * 0.13))
    if t[10] < 0.4:
        for x in (w / 2 - 0.02, 0.02 - w / 2):
            s.box(3, (x, 0, seat + 0.24), (0.05, d * 0.9, 0.04))
            s.rod(3, (x, -d * 0.38, seat), (x, -d * 0.38, seat + 0.22), 0.02)


def lamp(s: Surface, t: Numbers) -> None:
    height, shade = between(t[0], 0.55, 1.5), between(t[1], 0.2, 0.42)
    foot, tall = between(t[4], 0.16, 0.34), between(t[5], 0.22, 0.4)
    if t[2] < 0.6:
        s.lathe(0, [(0, 0), (foot, 0), (foot, 0.05), (0.03, 0.09)])
    else:  # three feet
        for number in range(3):
            angle = 2 * math.pi * number / 3
            s.rod(0, (0, 0, 0.3), (foot * 1.2 * math.cos(angle), foot * 1.2 * math.sin(angle), 0), 0.02)
    bulge = between(t[6], 0.02, 0.05) if t[3] < 0.6 else between(t[6], 0.06, 0.13)
    s.lathe(1, [(0.02, 0.07), (bulge, height * 0.3), (0.02, height * 0.6), (0.02, height)])
    top = shade * between(t[7], 0.35, 0.9)
    s.lathe(2, [(shade, height - tall * 0.6), (top, height + tall * 0.4)])


def mug(s: Surface, t: Numbers) -> None:
    radius, height = between(t[0], 0.26, 0.5), between(t[1], 0.5, 1.1)
    flare = between(t[4], 0.75, 1.15)
    inner = 0.9
    profile = [
        (0, 0),
        (radius * flare, 0),
        (radius, height),
        (radius * inner, height),
        (radius * inner * flare, 0.06),
        (0, 0.06),
    ]
    s.lathe(0, profile)
    middle, bend = height * between(t[5], 0.45, 0.6), height * between(t[6], 0.24, 0.34)
    wall = radius * (flare + (1 - flare) * middle / height)
    tube = between(t[7], 0.03, 0.055)
    if t[2] < 0.6:
        s.arc(1, (wall, 0, middle), X, Z, bend, tube, -math.pi / 2, math.pi / 2)
    else:  # angular
        out = wall + bend * 0.9
        s.rod(1, (wall, 0, middle + bend), (out, 0, middle + bend), tube)
        s.rod(1, (out, 0, middle + bend), (out, 0, middle - bend), tube)
        s.rod(1, (out, 0, middle - bend), (wall, 0, middle - bend), tube)


def rocket(s: Surface, t: Numbers) -> None:
    radius, height = between(t[0], 0.14, 0.34), between(t[1], 0.6, 1.3)
    nose = between(t[4], 0.3, 0.6)
    base = 0.2
    s.lathe(
        0, [(0, base), (radius * between(t[5], 0.7, 1.0), base), (radius, base + height * 0.3), (radius, base + height)]
    )
    s.lathe(1, [(radius, base + height), (radius * 0.72, base + height + nose * 0.5), (0, base + height + nose)])
    count = 3 if t[2] < 0.5 else 4
    reach, tall = between(t[6], 0.18, 0.34), between(t[7], 0.3, 0.5)
    for number in range(count):
        angle = 2 * math.pi * number / count
        x, y = math.cos(angle), math.sin(angle)
        s.flat(2, (x * radius * 0.9, y * radius * 0.9, base), (x * reach, y * reach, -base), (0, 0, tall * 0.8))


def shelf(s: Surface, t: Numbers) -> None:
    width, height = between(t[0], 0.6, 1.4), between(t[1], 0.7, 1.7)
    depth, thick = between(t[4], 0.25, 0.5), between(t[5], 0.02, 0.05)
    count = 3 + int(t[6] * 3)
    for number in range(count):
        s.box(1, (0, 0, 0.05 + (height - 0.1) * number / (count - 1)), (width, depth, thick))
    if t[2] < 0.6:
        for side in (1, -1):
            s.box(0, (side * width / 2, 0, height / 2), (thick, depth, height))
    else:
        legs(s, 0, width, depth, height, 0.025, 0.0, True)
    if t[3] < 0.5:
        s.flat(2, (-width / 2, depth / 2, 0), (width, 0, 0), (0, 0, height))


def sofa(s: Surface, t: Numbers) -> None:
    width, back = between(t[0], 0.7, 1.8), between(t[1], 0.25, 0.6)
    depth, seat = between(t[4], 0.6, 0.8), between(t[5], 0.3, 0.42)
    arm, rise = between(t[6], 0.1, 0.2), between(t[7], 0.12, 0.28)
    s.box(0, (0, 0, seat / 2 + 0.04), (width, depth, seat - 0.08))
    s.box(1, (0, depth / 2 - 0.08, seat + back / 2), (width, between(t[8], 0.14, 0.22), back), between(t[9], 0, 0.12))
    for side in (1, -1):
        x = side * (width / 2 + arm / 2)
        if t[2] < 0.6:
            s.box(2, (x, 0, (seat + rise) / 2 + 0.02), (arm, depth, seat + rise - 0.04))
        else:  # rolled
            s.box(2, (x, 0, seat / 2 + 0.04), (arm, depth, seat))
            s.rod(2, (x, -depth / 2, seat + rise * 0.6), (x, depth / 2, seat + rise * 0.6), arm * 0.75)


def stool(s: Surface, t: Numbers) -> None:
    seat, height = between(t[0], 0.22, 0.42), between(t[1], 0.4, 1.0)
    thick = between(t[4], 0.06, 0.16)
    if t[2] < 0.6:
        s.lathe(0, [(0, height), (seat, height), (seat, height + thick), (0, height + thick)])
    else:
        s.box(0, (0, 0, height + thick / 2), (seat * 1.8, seat * 1.8, thick))
    count = 3 if t[3] < 0.4 else 4
    splay, rung, bar = between(t[5], 1.0, 1.5), between(t[6], 0.2, 0.45), between(t[7], 0.02, 0.035)
    inner = seat * 0.75
    feet = [2 * math.pi * (number + 0.5) / count for number in range(count)]
    at = inner * (splay + (1 - splay) * rung)
    corners = [(at * math.cos(angle), at * math.sin(angle), height * rung) for angle in feet]
    for angle in feet:
        x, y = math.cos(angle), math.sin(angle)
        s.rod(1, (inner * splay * x, inner * splay * y, 0), (inner * x, inner * y, height), bar)
    for start, end in zip(corners, corners[1:] + corners[:1], strict=True):
        s.rod(2, start, end, bar * 0.8)


def table(s: Surface, t: Numbers) -> None:
    width, height = between(t[0], 0.45, 1.6), between(t[1], 0.35, 0.95)
    depth, thick = width * between(t[4], 0.55, 1.0), between(t[5], 0.03, 0.09)
    if t[2] < 0.4:
        s.lathe(0, [(0, height), (width / 2, height), (width / 2, height + thick), (0, height + thick)])
        depth = width
    else:
        s.box(0, (0, 0, height + thick / 2), (width, depth, thick))
    bar = between(t[6], 0.02, 0.045)
    reach = 0.62 if t[2] < 0.4 else 0.9
    if t[3] < 0.5:
        legs(s, 1, width * reach, depth * reach, height, bar, 0.0, t[7] < 0.5)
    elif t[3] < 0.75:
        s.rod(1, (0, 0, 0.04), (0, 0, height), bar * 1.8)
        s.lathe(1, [(0, 0), (width * 0.3, 0), (width * 0.3, 0.04), (0, 0.06)])
    else:  # two panels
        for side in (1, -1):
            s.box(1, (side * width * reach * 0.42, 0, height / 2), (bar * 1.5, depth * reach * 0.9, height))


def vase(s: Surface, t: Numbers) -> None:
    belly, height = between(t[0], 0.26, 0.5), between(t[1], 0.6, 1.3)
    foot, waist, lip = (
        belly * between(t[4], 0.45, 0.8),
        belly * between(t[5], 0.3, 0.6),
        belly * between(t[6], 0.6, 1.0),
    )
    at = between(t[7], 0.3, 0.5)
    body = [(0, 0.0), (foot, 0.0)]
    for step in range(1, 5):
        share = step / 4
        body.append((foot + (belly - foot) * math.sin(share * math.pi / 2), height * at * share))
    for step in range(1, 5):
        share = step / 4
        blend = (1 + math.cos(share * math.pi)) / 2
        body.append((waist + (belly - waist) * blend, height * (at + (0.82 - at) * share)))
    s.lathe(0, body)
    s.lathe(1, [(waist, height * 0.82), ((waist + lip) * 0.5, height * 0.93), (lip, height)])


KINDS: dict[str, Kind] = {
    "airplane": Kind(airplane, ("body", "wing", "tail", "engine")),
    "bottle": Kind(bottle, ("body", "neck", "cap")),
    "car": Kind(car, ("body", "cabin", "wheel")),
    "chair": Kind(chair, ("seat", "back", "leg", "arm")),
    "lamp": Kind(lamp, ("foot", "pole", "shade")),
    "mug": Kind(mug, ("body", "handle")),
    "rocket": Kind(rocket, ("body", "nose", "fin")),
    "shelf": Kind(shelf, ("side", "board", "back")),
    "sofa": Kind(sofa, ("seat", "back", "arm")),
    "stool": Kind(stool, ("seat", "leg", "rung")),
    "table": Kind(table, ("top", "leg")),
    "vase": Kind(vase, ("body", "lip")),
}

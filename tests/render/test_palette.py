"""Class colors by meaning, chosen colors and their errors."""

import itertools

import numpy as np
import pytest

from pointgrad.data import STREET_CLASSES
from pointgrad.data.classes import ASPRS
from pointgrad.render import Palette, Scale
from pointgrad.render.palette import NONE, distance, meaning


@pytest.mark.parametrize("name", ["standard", "colorblind"])
@pytest.mark.parametrize("classes", [ASPRS, STREET_CLASSES, ("a", "b", "ground", "c"), ("road", "street", "parking")])
def test_classes_of_a_legend_differ(name, classes):
    assigned = Palette(name).colors(dict(enumerate(classes)))
    assert list(assigned) == list(range(len(classes)))
    for first, second in itertools.combinations(assigned.values(), 2):
        assert distance(first, second) >= 20


def test_colors_follow_the_meaning_of_names():
    red, green, blue = meaning("Ground")
    assert red > green > blue  # brown
    for name in ("low vegetation", "High_Vegetation", "trees", "MediumVegetation"):
        red, green, blue = meaning(name)
        assert green > max(red, blue)
    red, green, blue = meaning("water")
    assert blue > max(red, green)
    assert meaning("house") == meaning("building")
    for name in ("brick", "carpet", "busy", "groundhog"):
        assert meaning(name) is None
    assert Palette().color(-1, {2: "ground"}) == NONE
    assert Scale("label", "class", names={0: "ground"}).color(0) == meaning("ground")


# Linear RGB as seen with deuteranopia and protanopia (Machado, Oliveira and Fernandes, 2009).
VISIONS = {
    "deuteranopia": [(0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)],
    "protanopia": [(0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)],
}
FREQUENT = ("unclassified", "ground", "low vegetation", "high vegetation", "building", "water", "car", "pole", "fence")


@pytest.mark.parametrize("vision", VISIONS)
def test_colorblind_palette_keeps_frequent_classes_apart(vision):
    def seen(color):
        srgb = np.array(color) / 255
        linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
        linear = np.clip(np.array(VISIONS[vision]) @ linear, 0, 1)
        srgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
        return tuple(np.rint(255 * srgb).astype(int).tolist())

    def nearest(palette):
        colors = Palette(palette).colors(dict(enumerate(FREQUENT))).values()
        return min(distance(seen(first), seen(second)) for first, second in itertools.combinations(colors, 2))

    assert nearest("colorblind") > 12
    assert nearest("standard") < 6  # ground, buildings and trees look alike


def test_chosen_colors():
    palette = Palette.parse("standard", ["High-Vegetation=#0f0", "7=#010203"])
    names = {5: "high vegetation", 6: "building"}
    assert palette.color(5, names) == (0, 255, 0)
    assert palette.color(7, names) == (1, 2, 3)
    assert palette.color(6, names) == meaning("building")
    palette.check(names, [7])
    with pytest.raises(ValueError, match=r"must name classes of the data .*, got 7"):
        palette.check(names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ground", "such as ground=#8c6d31, got ground"),
        ("=#fff", "such as ground=#8c6d31, got =#fff"),
        ("ground=red", "written as #rgb or #rrggbb, such as #8c6d31, got red"),
        ("ground=#12345", "got #12345"),
    ],
)
def test_bad_colors(text, message):
    with pytest.raises(ValueError, match=message):
        Palette.parse("standard", [text])
    with pytest.raises(ValueError, match="name each class once"):
        Palette.parse("standard", ["a=#fff", "A=#000"])

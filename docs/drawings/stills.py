"""Images drawn by `pointgrad.render`: the one at the top of the README, and those of the renderer's page."""

import numpy as np
import torch

import pointgrad
from pointgrad import data, render
from pointgrad.render.camera import Frame, View
from pointgrad.render.canvas import Canvas
from pointgrad.render.colors import PALETTE

from .style import ROOT

IMAGES = ROOT / "docs" / "images"
NAMES = dict(enumerate(data.STREET_CLASSES))
INK = (120, 128, 138)  # text that is legible on white and on dark pages
GRAY, BLUE, ORANGE, PALE, WHITE = (
    np.array(color) for color in ((150, 158, 168), (31, 95, 168), (224, 123, 57), (176, 200, 226), (232, 236, 240))
)
PARTS = (
    ("points", "as recorded by a scanner"),
    ("farthest_point_sampling", "an even subset and its covering radius"),
    ("knn, ball_query, group", "neighbourhoods for a network"),
    ("interpolate", "class labels from few points to all points"),
)
SAMPLES = 1500
HERO = 14  # seed of a street without houses in front
LENGTH, GAP = 20.0, 1.4  # metres: size of each part, and distance between parts


def hero() -> None:
    """One street in four parts: points, samples, neighbourhoods, classes."""
    width, height, below = 1600, 600, 104
    scene = data.street(700_000, length=4 * LENGTH, seed=HERO)
    part = (scene.points[:, 0] / LENGTH).long().clamp(0, 3)
    points = scene.points + torch.stack([part * GAP, part * 0, part * 0], dim=1)
    samples = pointgrad.farthest_point_sampling(points, SAMPLES, return_radius=True)
    centers, reach = points[samples.index], float(samples.radius[-1])
    nearest = pointgrad.knn(centers, 1, points)
    group, distance = nearest.index[:, 0], nearest.distance2[:, 0].sqrt()
    known = pointgrad.farthest_point_sampling(points, 8 * SAMPLES)
    near = torch.nn.functional.one_hot(scene.labels[known], len(NAMES)).float()
    classes = pointgrad.interpolate(near, points[known], points, k=3).argmax(1)

    share = (distance / reach).clamp(0, 1)[:, None].numpy()
    height_share = (points[:, 2:] / 10).clamp(0, 1).numpy()
    shuffled = np.random.default_rng(3).permutation(len(centers)) % (len(PALETTE) - 1)
    looks = [
        GRAY - 30 + 50 * height_share,
        WHITE * (1 - share) + BLUE * 0.55 * share + PALE * 0.45 * share,
        PALETTE[shuffled[group.numpy()]] * 0.62 + WHITE * 0.38,
        PALETTE[classes.numpy()],
    ]
    colors = np.choose(part.numpy()[:, None], looks).astype(np.uint8)

    frame = Frame(width, height - below, 18)
    view = View(-90, 34)
    world = points.double()
    camera = view.fit(world, (world.amin(0) + world.amax(0)) / 2, frame)
    canvas = Canvas(frame.width, frame.height)
    origin = torch.zeros(3, dtype=torch.float64)
    for shown, radius in ((part == 0, 1.2), (part > 0, 2.0)):  # the first part as points, not as a surface
        canvas.add(camera.project(points[shown], origin), colors[shown.numpy()], radius, camera.distance)
    chosen = centers[part[samples.index] == 1]
    forward = chosen + 0.25 * view.axes()[2].float()  # slightly in front of the surface
    dots = np.tile(ORANGE.astype(np.uint8), (len(chosen), 1))
    canvas.add(camera.project(forward, origin), dots, 3.6, camera.distance)
    image = np.zeros((height, width, 4), np.float32)
    image[: frame.height] = canvas.image(20 * camera.distance / frame.focal)
    render.save(IMAGES / "hero.png", _captions(image, frame.height), overwrite=True)


def _captions(image: np.ndarray, top: int) -> np.ndarray:
    """Add captions on a transparent background."""
    from PIL import Image, ImageDraw, ImageFont

    opacity = image[..., 3:]
    colors = np.where(opacity > 0, image[..., :3] / np.maximum(opacity, 1e-6), np.array(INK) / 255)
    picture = Image.fromarray(np.rint(np.concatenate([colors, opacity], 2) * 255).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    large, small = ImageFont.load_default(23), ImageFont.load_default(15)
    width = picture.width / len(PARTS)
    for place, (name, about) in enumerate(PARTS):
        middle = (place + 0.5) * width
        draw.text((middle, top + 26), name, (*INK, 255), large, anchor="mm")
        draw.text((middle, top + 54), about, (*INK, 255), small, anchor="mm")
    left = 3.5 * width - sum(small.getlength(name) + 34 for name in NAMES.values()) / 2
    for number, name in NAMES.items():
        draw.rectangle((left, top + 77, left + 13, top + 90), (*PALETTE[number].tolist(), 255))
        draw.text((left + 19, top + 84), name, (*INK, 255), small, anchor="lm")
        left += small.getlength(name) + 34
    return np.asarray(picture)


def street() -> None:
    """The output of `pointgrad render` for four columns."""
    scene = data.street(400_000, length=45.0, seed=HERO)
    looks = [("label", "white"), ("rgb", "white"), ("height", "dark"), ("intensity", "dark")]
    images = [render.picture(scene, by, names=NAMES, size=(720, 440), background=ground) for by, ground in looks]
    rows = [np.concatenate(images[:2], axis=1), np.concatenate(images[2:], axis=1)]
    render.save(IMAGES / "render_columns.png", np.concatenate(rows), overwrite=True)


def shading() -> None:
    """The same points with different dot sizes."""
    scene = data.street(60_000, length=24.0, seed=HERO)
    sizes = (1.0, 3.0, None)
    images = [render.picture(scene, "rgb", size=(480, 340), point_size=size, legend=False) for size in sizes]
    render.save(IMAGES / "render_sizes.png", np.concatenate(images, axis=1), overwrite=True)


def turntable() -> None:
    scene = data.street(120_000, length=24.0, seed=HERO)
    frames = render.turntable(scene, "label", frames=40, size=(400, 260), legend=False, elevation=28)
    render.save(IMAGES / "turntable.gif", frames, seconds=6, overwrite=True)


def draw() -> None:
    hero()
    street()
    shading()
    turntable()

"""The pictures of the README that show what operators do; those of speed are in benchmarks.py."""

import itertools
import sys

import matplotlib.pyplot as plt
import torch
from style import BLUE, GREY, ORANGE, ROOT, save_svg

import pointgrad

sys.path.insert(0, str(ROOT))
from examples.operators import torus_knot

IMAGES = ROOT / "docs" / "images"


def sampling() -> None:
    torch.manual_seed(1)
    cloud = torus_knot(20_000)
    farthest = pointgrad.farthest_point_sampling(cloud, 400, return_radius=True)
    random = pointgrad.random_sampling(cloud, 400)
    reach = torch.cdist(cloud, cloud[random]).amin(1).max()
    panels = [
        (cloud, "20,000 points, uneven density", GREY, 0.4),
        (cloud[random], f"random_sampling: 400\nfarthest point left out: {reach:.2f}", ORANGE, 5),
        (
            cloud[farthest.index],
            f"farthest_point_sampling: 400\nfarthest point left out: {farthest.radius[-1]:.2f}",
            BLUE,
            5,
        ),
    ]
    figure = plt.figure(figsize=(12, 4.2))
    for number, (points, title, color, size) in enumerate(panels, 1):
        axes = figure.add_subplot(1, 3, number, projection="3d")
        axes.scatter(*points.T.numpy(), s=size, c=color, linewidths=0)
        axes.set_title(title, fontsize=11, y=1.02)
        axes.view_init(55, -60)
        axes.set_box_aspect((1, 1, 0.45), zoom=1.35)
        axes.set_axis_off()
    figure.subplots_adjust(0, -0.08, 1, 0.9, 0)
    figure.savefig(IMAGES / "sampling.png", dpi=130, facecolor="white")


def neighborhoods() -> None:
    """A query's nearest points, its ball, and the distance to the nearest of few samples."""
    torch.manual_seed(1)
    cloud = torus_knot(20_000)
    query = cloud[:1]
    near = pointgrad.knn(cloud, 100, query).index[0]
    ball = pointgrad.ball_query(cloud, 1.6, 20_000, query).index[0]
    ball = ball[ball >= 0]
    samples = cloud[pointgrad.farthest_point_sampling(cloud, 60)]
    height = pointgrad.interpolate(samples[:, 2:], samples, cloud, k=3)[:, 0]
    figure = plt.figure(figsize=(12, 4.2))
    panels = [
        (f"knn: the {len(near)} nearest of a point", near),
        (f"ball_query: {len(ball)} points within 1.6", ball),
        ("interpolate: height from 60 samples", None),
    ]
    for number, (title, chosen) in enumerate(panels, 1):
        axes = figure.add_subplot(1, 3, number, projection="3d")
        if chosen is None:
            axes.scatter(*cloud.T.numpy(), s=0.6, c=height.numpy(), cmap="viridis", linewidths=0)
            axes.scatter(*samples.T.numpy(), s=14, c=ORANGE, linewidths=0)
        else:
            rest = torch.ones(len(cloud), dtype=torch.bool)
            rest[chosen] = False
            axes.scatter(*cloud[rest].T.numpy(), s=0.6, c=GREY, linewidths=0)
            axes.scatter(*cloud[chosen].T.numpy(), s=3, c=BLUE, linewidths=0)
            axes.scatter(*query.T.numpy(), s=40, c=ORANGE, linewidths=0)
        axes.set_title(title, fontsize=11, y=1.02)
        axes.view_init(55, -60)
        axes.set_box_aspect((1, 1, 0.45), zoom=1.35)
        axes.set_axis_off()
    figure.subplots_adjust(0, -0.08, 1, 0.9, 0)
    figure.savefig(IMAGES / "neighborhoods.png", dpi=130, facecolor="white")


def cell() -> None:
    figure = plt.figure(figsize=(4.6, 4.2))
    axes = figure.add_subplot(projection="3d")
    corners = list(itertools.product((-1, 1), repeat=3))
    for a, b in itertools.combinations(corners, 2):
        if sum(p != q for p, q in zip(a, b, strict=True)) == 1:
            axes.plot(*zip(a, b, strict=True), color=GREY, linewidth=1)
    for number, corner in enumerate(corners):
        axes.scatter(*corner, color=BLUE, s=30)
        axes.text(
            *(1.18 * value for value in corner), f"{number}", fontsize=12, ha="center", va="center", weight="bold"
        )
    axes.scatter(0.3, -0.2, 0.4, color=ORANGE, s=60)
    axes.text(0.3, -0.2, 0.58, "p", fontsize=12, color=ORANGE, weight="bold")
    axes.set(xlabel="x", ylabel="y", zlabel="z", xticks=[-1, 0, 1], yticks=[-1, 0, 1], zticks=[-1, 0, 1])
    axes.set_title("corner 4x + 2y + z", fontsize=11)
    axes.view_init(22, -62)
    figure.tight_layout()
    save_svg(figure, IMAGES / "cell.svg")


def draw() -> None:
    sampling()
    neighborhoods()
    cell()

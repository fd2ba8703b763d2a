"""The pictures of the README. Speeds come from benchmarks/results, nothing is typed in here but the peers' figures,
which were measured on the same kind of GPU and are marked as such."""

import itertools
import json
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


def speed() -> None:
    # Milliseconds of the fastest of pointops, pointnet2_ops, PyTorch3D and torch-cluster on an H200.
    peers_on_gpu = {"32 x 4096 -> 1024": 1.34, "8 x 16384 -> 4096": 16.6, "1 x 100000 -> 25000": 488.0}
    gpu = {row["name"]: row for row in json.loads((ROOT / "benchmarks/results/gpu.json").read_text())["rows"]}
    cpu = {row["name"]: row for row in json.loads((ROOT / "benchmarks/results/cpu.json").read_text())["rows"]}
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 3.6))
    names = list(peers_on_gpu)
    ours = [gpu[f"farthest points {name}"]["ms"]["ours"]["median"] for name in names]
    bars(left, names, ours, list(peers_on_gpu.values()), "farthest point sampling, one H200", "fastest CUDA peer")
    work = ["1 x 4096 -> 1024", "1 x 16384 -> 4096", "1 x 100000 -> 25000"]
    rows = [cpu[f"farthest points {name}"] for name in work]
    best = [row["ms"][row["ratio"]["to"]]["median"] for row in rows]
    bars(
        right,
        work,
        [row["ms"]["ours"]["median"] for row in rows],
        best,
        "farthest point sampling, CPU",
        "fpsample, best setting",
    )
    figure.tight_layout()
    figure.savefig(IMAGES / "speed.png", dpi=130, facecolor="white")


def bars(axes, names, ours, peers, title, peer_name) -> None:
    for place, (mine, theirs) in enumerate(zip(ours, peers, strict=True)):
        axes.barh(place - 0.2, theirs, 0.36, color=GREY, label=peer_name if place == 0 else None)
        axes.barh(place + 0.2, mine, 0.36, color=BLUE, label="pointgrad" if place == 0 else None)
        axes.text(theirs * 1.08, place - 0.2, f"{theirs:.3g} ms", va="center", fontsize=9)
        axes.text(
            mine * 1.08, place + 0.2, f"{mine:.3g} ms, {theirs / mine:.0f}x", va="center", fontsize=9, weight="bold"
        )
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(min(ours) / 2, max(peers) * 12)
    axes.set_xlabel("milliseconds, logarithmic")
    axes.set_title(title, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper right")


def scaling() -> None:
    """Milliseconds against the number of points, from benchmarks/results/scaling_*.json."""
    colors = {"pointgrad": BLUE, "scipy": GREY, "pykdtree": ORANGE, "fpsample": ORANGE, "cdist + topk": ORANGE}
    devices = {"gpu": "one H200", "cpu": "2 CPU cores"}
    results = {name: json.loads((ROOT / f"benchmarks/results/scaling_{name}.json").read_text()) for name in devices}
    figure, panels = plt.subplots(2, 3, figsize=(12, 6.4), sharex=True)
    for row, (device, title) in zip(panels, devices.items(), strict=True):
        for axes, (work, contestants) in zip(row, results[device]["ms"].items(), strict=True):
            for name, times in contestants.items():
                sizes = [int(size) for size in times]
                width = 2.4 if name == "pointgrad" else 1.4
                axes.plot(sizes, times.values(), "o-", color=colors[name], label=name, linewidth=width, markersize=3)
            axes.set(xscale="log", yscale="log", title=f"{work}, {title}")
            axes.title.set_fontsize(10)
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False, fontsize=9)
    for axes in panels[1]:
        axes.set_xlabel("points")
    for axes in panels[:, 0]:
        axes.set_ylabel("milliseconds")
    figure.tight_layout()
    figure.savefig(IMAGES / "scaling.png", dpi=130, facecolor="white")


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
    speed()
    scaling()

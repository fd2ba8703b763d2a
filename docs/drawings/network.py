"""Figure of one level of a network, down and up again, and of the gradient of one output."""

import matplotlib.pyplot as plt
import torch

import pointgrad

from .figures import INK, PALE, sample_shape, save_png
from .style import GRAY, ORANGE


def draw() -> None:
    torch.manual_seed(0)
    cloud, _ = sample_shape("airplane", 2500)
    points = cloud[:, :2].contiguous()  # top view, which hides nothing
    features = cloud[:, 2:].clone().requires_grad_()  # the height, one channel
    index = pointgrad.farthest_point_sampling(points, 60)
    centers = pointgrad.gather(points, index)
    found = pointgrad.ball_query(points, 0.2, 32, centers, select="random")
    grouped = pointgrad.group(features, found.index)
    pooled = grouped.sum(1) / found.count.unsqueeze(1)
    upsampled = pointgrad.interpolate(pooled, centers, points)
    output = int(pointgrad.knn(points, 1, torch.tensor([[0.02, 0.52]])).index)
    (slope,) = torch.autograd.grad(upsampled[output].sum(), features)

    figure, axes = plt.subplots(2, 3, figsize=(10, 6.9))
    titles = (
        f"points, coloured by a feature\n{tuple(points.shape)}, {tuple(features.shape)}",
        f"farthest_point_sampling, gather\n{tuple(centers.shape)}",
        f"ball_query, group\n{tuple(grouped.shape)}",
        f"mean over neighbours\n{tuple(pooled.shape)}",
        f"interpolate\n{tuple(upsampled.shape)}",
        "backward: contributions to\none output (cross)",
    )
    for one, title in zip(axes.flat, titles, strict=True):
        one.set_aspect("equal")
        one.axis("off")
        one.set_title(title, fontsize=12, color=INK)
        one.set(xlim=(-1, 0.9), ylim=(-0.9, 0.9))
    style = {"cmap": "viridis", "vmin": cloud[:, 2].min(), "vmax": cloud[:, 2].max(), "linewidths": 0}
    one, two, three, four, five, six = axes.flat
    one.scatter(*points.T, s=5, c=features.detach()[:, 0], **style)
    for other in (two, three, four, six):
        other.scatter(*points.T, s=2.5, c=PALE, linewidths=0)
    two.scatter(*centers.T, s=20, c=ORANGE, linewidths=0)
    for center in range(0, 60, 5):
        near = points[found.index[center][found.index[center] >= 0]]
        for end in near:
            three.plot(*torch.stack([centers[center], end]).T, color=GRAY, linewidth=0.6)
    three.scatter(*centers[::5].T, s=24, c=ORANGE, linewidths=0, zorder=3)
    four.scatter(*centers.T, s=46, c=pooled.detach()[:, 0], **style)
    five.scatter(*points.T, s=5, c=upsampled.detach()[:, 0], **style)
    reached = slope[:, 0] > 0
    six.scatter(*points[reached].T, s=2000 * slope[reached, 0], c=ORANGE, linewidths=0, zorder=2)
    six.scatter(*points[output], s=70, c=INK, marker="X", linewidths=0, zorder=3)
    figure.tight_layout(w_pad=0.6, h_pad=1.2)
    save_png(figure, "network")

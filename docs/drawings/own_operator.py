"""Figure of docs/own_operator.md: a noisy step, smoothed by descending the variance of its neighbourhoods."""

import torch

import pointgrad

from .figures import INK, panels, save_png


def draw() -> None:
    torch.manual_seed(0)
    flat = torch.rand(3000, 2)
    height = 0.3 * (flat[:, :1] > 0.5) + 0.05 * torch.randn(3000, 1)
    lists = pointgrad.knn(flat, 12).index
    heights = []
    for _ in range(6):
        height.requires_grad_()
        variance = pointgrad.group(height, lists).var(1, correction=0)
        (slope,) = torch.autograd.grad(variance.sum(), height)
        heights.append((height.detach(), variance.detach()))
        height = (height - 0.1 * slope).detach()
    shown = {
        "height: a noisy step": heights[0][0],
        "variance of neighbourhoods": heights[0][1],
        "after 2 gradient steps": heights[2][0],
        "after 5 gradient steps": heights[5][0],
    }
    figure, axes = panels(4, 2.9)
    for one, (title, values) in zip(axes, shown.items(), strict=True):
        limits = (0, 0.03) if title.startswith("variance") else (-0.1, 0.4)
        one.scatter(*flat.T, s=7, c=values[:, 0], cmap="viridis", vmin=limits[0], vmax=limits[1], linewidths=0)
        one.set_title(title, fontsize=11, color=INK)
        one.set(xlim=(0, 1), ylim=(0, 1))
    figure.tight_layout(w_pad=0.6)
    save_png(figure, "own_operator")

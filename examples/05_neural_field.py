"""A signed distance field f from points with normals: trilinear features, a small network, |grad f| = 1 as a loss.

That loss (eikonal) is all that is said about f away from the points. It is made of a gradient, so learning by it takes
second derivatives, those of `grid_sample`. Fits a box with and without it. Writes out/05_neural_field.png.
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure

from pointgrad import grid_sample


def distance(x):  # (N, 3) -> (N,): of a box with round edges. The truth; training sees points and normals of it only
    beyond = x.abs() - torch.tensor([0.5, 0.3, 0.2], device=x.device)
    return beyond.clamp(min=0).norm(dim=1) + beyond.amax(1).clamp(max=0) - 0.15


def field(grid, mlp, x):  # (N, 3) in [-1, 1] -> f (N,) and its gradient (N, 3)
    x = x.detach().requires_grad_()
    f = x.norm(dim=1) + mlp(grid_sample(grid, x[None], align_corners=True)[0])[:, 0]
    return f, torch.autograd.grad(f.sum(), x, create_graph=True)[0]


def main(steps=300):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = (2 * torch.rand(20000, 3, device=device) - 1).requires_grad_()
    (normals,) = torch.autograd.grad(distance(start).sum(), start)
    points = (start - distance(start)[:, None] * normals).detach()  # on the surface
    x = torch.cartesian_prod(*3 * [torch.linspace(-0.99, 0.99, 41, device=device)])
    figure, rows = Figure(figsize=(12, 4), layout="constrained"), []
    for axes, weight in zip(figure.subplots(1, 3), ("untrained", 0, 0.1), strict=True):
        grid = torch.nn.Parameter(0.01 * torch.randn(1, 8, 16, 16, 16, device=device))  # 8 features at each corner
        mlp = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Softplus(beta=30), torch.nn.Linear(64, 1)).to(device)
        optimizer = torch.optim.Adam([grid, *mlp.parameters()], 0.003)
        for _ in range(0 if weight == "untrained" else steps):
            pick = torch.randint(len(points), (2048,), device=device)
            f, slope = field(grid, mlp, points[pick])
            _, anywhere = field(grid, mlp, 2 * torch.rand(2048, 3, device=device) - 1)
            fits = f.abs().mean() + 0.1 * (slope - normals[pick]).norm(dim=1).mean()
            optimizer.zero_grad()
            (fits + weight * (anywhere.norm(dim=1) - 1).square().mean()).backward()
            optimizer.step()
        (f, anywhere), (on, slope) = field(grid, mlp, x), field(grid, mlp, points)
        errors = (anywhere.norm(dim=1) - 1, on / slope.norm(dim=1), f - distance(x))
        rows.append([error.abs().mean().item() for error in errors])
        print("weight {}: ||grad f| - 1| {:.3f}, zero level off by {:.4f}, distance {:.3f}".format(weight, *rows[-1]))
        axes.contourf(f.detach().cpu().view(41, 41, 41)[:, :, 20].T, levels=20, cmap="RdBu", vmin=-0.8, vmax=0.8)
        axes.contour(f.detach().cpu().view(41, 41, 41)[:, :, 20].T, levels=[0], colors="black", linewidths=2)
        axes.set(title=f"eikonal weight: {weight}", aspect="equal", xticks=[], yticks=[])
    Path("out").mkdir(exist_ok=True)
    figure.savefig("out/05_neural_field.png", dpi=100)
    return rows


if __name__ == "__main__":
    main()

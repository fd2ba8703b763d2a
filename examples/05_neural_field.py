"""A signed distance field f from points with normals: trilinear features, a small network, |grad f| = 1 as a loss.

Away from the points, f is constrained only by this eikonal loss. The loss contains a gradient, so minimizing it needs
second derivatives of `grid_sample`. Fits a box with and without the loss. Writes out/05_neural_field.png.
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure

from pointgrad import grid_sample


def distance(x):  # (N, 3) -> (N,): true distance to a box with round edges; training uses only points and normals
    outside = x.abs() - torch.tensor([0.5, 0.3, 0.2], device=x.device)
    return outside.clamp(min=0).norm(dim=1) + outside.amax(1).clamp(max=0) - 0.15


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
        grid = torch.nn.Parameter(0.01 * torch.randn(1, 8, 16, 16, 16, device=device))  # 8 features per grid point
        mlp = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Softplus(beta=30), torch.nn.Linear(64, 1)).to(device)
        optimizer = torch.optim.Adam([grid, *mlp.parameters()], 0.003)
        for _ in range(0 if weight == "untrained" else steps):
            pick = torch.randint(len(points), (2048,), device=device)
            f, grad = field(grid, mlp, points[pick])
            _, grad_anywhere = field(grid, mlp, 2 * torch.rand(2048, 3, device=device) - 1)
            fit = f.abs().mean() + 0.1 * (grad - normals[pick]).norm(dim=1).mean()
            optimizer.zero_grad()
            (fit + weight * (grad_anywhere.norm(dim=1) - 1).square().mean()).backward()
            optimizer.step()
        (f, grad_anywhere), (f_surface, grad) = field(grid, mlp, x), field(grid, mlp, points)
        errors = (grad_anywhere.norm(dim=1) - 1, f_surface / grad.norm(dim=1), f - distance(x))
        rows.append([error.abs().mean().item() for error in errors])
        print("weight {}: mean errors of |grad f| {:.3f}, zero level {:.4f}, distance {:.3f}".format(weight, *rows[-1]))
        axes.contourf(f.detach().cpu().view(41, 41, 41)[:, :, 20].T, levels=20, cmap="RdBu", vmin=-0.8, vmax=0.8)
        axes.contour(f.detach().cpu().view(41, 41, 41)[:, :, 20].T, levels=[0], colors="black", linewidths=2)
        axes.set(title=f"eikonal weight: {weight}", aspect="equal", xticks=[], yticks=[])
    Path("out").mkdir(exist_ok=True)
    figure.savefig("out/05_neural_field.png", dpi=100)
    return rows


if __name__ == "__main__":
    main()

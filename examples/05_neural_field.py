"""A signed distance field from points with normals: trilinear features, a small network, and |grad f| = 1 as a loss.

That loss is made of the gradient of f, so training it needs second derivatives of the interpolation. PyTorch's own
grid_sample has none. The shape is a torus, whose true distance is known. Writes out/05_neural_field.png.
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn

import pointgrad

BIG, SMALL = 0.55, 0.25  # radii of the torus


def distance(x):  # (N, 3) -> (N,)
    return torch.hypot(torch.hypot(x[:, 0], x[:, 1]) - BIG, x[:, 2]) - SMALL


class Field(nn.Module):
    def __init__(self, resolution=24, channels=8):
        super().__init__()
        self.grid = nn.Parameter(0.1 * torch.randn(1, channels, resolution, resolution, resolution))
        self.mlp = nn.Sequential(nn.Linear(channels, 64), nn.Softplus(beta=30), nn.Linear(64, 1))

    def forward(self, x, sample=pointgrad.grid_sample):  # (N, 3) in [-1, 1] -> f (N,), its gradient (N, 3)
        x = x.detach().requires_grad_()
        f = self.mlp(sample(self.grid, x[None], align_corners=True)[0])[:, 0]
        return f, torch.autograd.grad(f.sum(), x, create_graph=True)[0]


def torch_sample(grid, x, align_corners):
    return nn.functional.grid_sample(grid, x[:, None, None], align_corners=align_corners)[:, :, 0, 0].mT


def figures(field, device):
    x = 2 * torch.rand(20000, 3, device=device) - 1
    residual = (field(x)[1].norm(dim=1) - 1).abs().mean().item()
    x = x[distance(x).abs() < 0.1]
    for _ in range(5):  # down to f = 0, by Newton's steps
        f, gradient = field(x)
        x = (x - (f / gradient.square().sum(1).clamp(min=0.1))[:, None] * gradient).detach().clamp(-1, 1)
    return residual, distance(x).abs().mean().item()


def main(steps=400, batch=4096):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    field = Field().to(device)
    u, v = 2 * torch.pi * torch.rand(2, 20000, device=device)
    normals = torch.stack([u.cos() * v.cos(), u.sin() * v.cos(), v.sin()], 1)
    points = BIG * torch.stack([u.cos(), u.sin(), 0 * u], 1) + SMALL * normals
    before = figures(field, device)
    optimizer = torch.optim.Adam(field.parameters(), 0.01)
    for step in range(steps):
        pick = torch.randint(len(points), (batch,), device=device)
        f, gradient = field(points[pick])
        _, anywhere = field(2 * torch.rand(batch, 3, device=device) - 1)
        eikonal = (anywhere.norm(dim=1) - 1).square().mean()
        loss = f.abs().mean() + 0.1 * (gradient - normals[pick]).norm(dim=1).mean() + 0.1 * eikonal
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 99: print(step, loss.item(), figures(field, device))
    after = figures(field, device)
    print(before, after)
    try:
        field(points, torch_sample)[1].sum().backward()
    except RuntimeError as error:
        print("PyTorch's grid_sample:", error)


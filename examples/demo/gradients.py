"""Inspection of gradients: the backward graph of a network, its calls and layers, and an operator with a mistake.

    python examples/demo/gradients.py

Writes out/graph.html and out/audit.html: open them in a browser.
"""

import math
import os

import torch
from rich.console import Console
from torch import Tensor, nn

import pointgrad
from pointgrad import inspect

OUT = "out"


class Classifier(nn.Module):
    """Farthest points, their neighbourhoods, and the maximum feature of each: one step of PointNet++."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.local = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU())
        self.head = nn.Linear(64, classes)

    def forward(self, points: Tensor) -> Tensor:
        centers = pointgrad.gather(points, pointgrad.farthest_point_sampling(points, 64))  # (B, 64, 3)
        index = pointgrad.knn(points, 16, centers).index
        relative = pointgrad.group(points, index) - centers[:, :, None]  # (B, 64, 16, 3)
        return self.head(self.local(relative).amax(2).mean(1))


class Cube(torch.autograd.Function):
    """x³ with a mistake: the backward ignores the upstream gradient."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2


def clouds(count: int) -> tuple[Tensor, Tensor]:
    """Points on spheres and cubes, and their classes."""
    direction = torch.randn(count, 512, 3)
    label = torch.arange(count) % 2
    size = torch.where(label[:, None, None] == 0, direction.norm(dim=2, keepdim=True), direction.abs().amax(2, True))
    return direction / size, label


def main() -> None:
    console = Console()
    os.makedirs(OUT, exist_ok=True)
    torch.manual_seed(0)
    net = Classifier(classes=2)
    points, label = clouds(16)

    console.rule("tensors saved for backward")
    loss = pointgrad.functional.cross_entropy(net(points), label)
    graph = inspect.graph(loss, net)
    graph.write(f"{OUT}/graph.html")
    print(graph)

    console.rule("kernels that a call runs")
    print(inspect.calls(net.head, torch.randn(16, 64)))

    console.rule("layers during training")
    optimizer = torch.optim.Adam(net.parameters(), 0.003)
    with (
        inspect.ActivationPenalty(net, nn.ReLU) as penalty,
        inspect.GradientWatcher(net) as watcher,
        inspect.Recorder(net, "head", limit=1) as recorder,
    ):
        for step in range(60):
            points, label = clouds(16)
            output = net(points)
            loss = pointgrad.functional.cross_entropy(output, label)
            optimizer.zero_grad()
            (loss + 0.01 * penalty.loss()).backward()
            optimizer.step()
            if step % 20 == 19:
                accuracy = (output.argmax(1) == label).float().mean()
                print(f"step {step + 1:3d}  loss {loss.item():.3f}  accuracy {accuracy:.0%}")
        print(watcher)
    print("last input of the head:", tuple(recorder["head"][-1].inputs[0].shape))
    assert math.isfinite(loss.item())

    console.rule("an operator with a mistake")
    report = inspect.audit(Cube.apply, lambda dtype, device: (torch.randn(4, 5, dtype=dtype, device=device),))
    with open(f"{OUT}/audit.html", "w") as file:
        file.write(report.html())
    print(report)
    print("\nThis is expected: Cube's backward ignores the upstream gradient, and the audit detects it.")
    print(f"written: {OUT}/graph.html, {OUT}/audit.html")


if __name__ == "__main__":
    main()

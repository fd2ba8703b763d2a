"""Looking into gradients: a network on points, what its backward holds, its layers, and an operator with a mistake.

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
    """Farthest points, their neighbourhoods, and the largest feature of each: one step of PointNet++."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.local = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU())
        self.head = nn.Linear(64, classes)

    def forward(self, points: Tensor) -> Tensor:
        centers = pointgrad.gather(points, pointgrad.farthest_point_sampling(points, 64))  # (B, 64, 3)
        index = pointgrad.knn(points, 16, centers).index
        around = pointgrad.group(points, index) - centers[:, :, None]  # (B, 64, 16, 3), relative
        return self.head(self.local(around).amax(2).mean(1))


class Cube(torch.autograd.Function):
    """x³, by somebody in a hurry: the backward forgets what came from above."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2


def clouds(count: int) -> tuple[Tensor, Tensor]:
    """Spheres and cubes."""
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

    console.rule("what backward holds")
    loss = pointgrad.functional.cross_entropy(net(points), label)
    graph = inspect.graph(loss, net)
    graph.write(f"{OUT}/graph.html")
    print(graph)

    console.rule("what a call runs")
    print(inspect.calls(net.head, torch.randn(16, 64)))

    console.rule("layers, in training")
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
                right = (output.argmax(1) == label).float().mean()
                print(f"step {step + 1:3d}  loss {loss.item():.3f}  right {right:.0%}")
        print(watcher)
    print("the head last received", tuple(recorder["head"][-1].inputs[0].shape))
    assert math.isfinite(loss.item())

    console.rule("an operator with a mistake")
    report = inspect.audit(Cube.apply, lambda dtype, device: (torch.randn(4, 5, dtype=dtype, device=device),))
    with open(f"{OUT}/audit.html", "w") as file:
        file.write(report.html())
    print(report)
    print("\nThat is as it should be: Cube's backward forgets the upstream gradient, and the audit says so.")
    print(f"pictures: {OUT}/graph.html, {OUT}/audit.html")


if __name__ == "__main__":
    main()

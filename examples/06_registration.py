"""Registration: two scans of one object are aligned with the gradient of the chamfer distance.

The second scan is rotated, shifted and noisy. The scans share no points, and each covers a part that the other lacks;
therefore the largest 30 % of the nearest-neighbour distances are left out. The optimization is local and may fail for
large rotations. Writes out/06_registration.png.
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure

import pointgrad


def scan(count, device):  # (count, 3): points on the surface of a boulder
    x, y, z = directions = torch.nn.functional.normalize(torch.randn(3, count, device=device), dim=0)
    bumps = 1 + 0.3 * torch.sin(3 * x + y) + 0.2 * torch.cos(4 * z - 2 * y) * x
    return (directions * bumps).T * torch.tensor([1.4, 1.0, 0.7], device=device)


def rotation(vector):  # (3,), axis times angle -> (3, 3): the exponential of the cross product matrix
    cross = torch.linalg.cross(vector.expand(3, 3), torch.eye(3, device=vector.device), dim=1)
    return torch.linalg.matrix_exp(cross.mT)


def main(count=6000, steps=120):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    first, second = scan(count, device), scan(count, device)
    first, second = first[first[:, 0] < 0.6], second[second[:, 0] > -0.6]
    turn, shift = (torch.tensor(vector, device=device) for vector in ((0.5, 0.2, -0.6), (0.4, -0.2, 0.3)))
    second = second @ rotation(turn).T + shift + 0.01 * torch.randn_like(second)

    vector, move = (torch.zeros(3, device=device, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.Adam([vector, move], 0.03)
    for step in range(steps + 1):
        aligned = (second - move) @ rotation(vector)
        angle = torch.acos((((rotation(vector).T @ rotation(turn)).trace() - 1) / 2).clamp(-1, 1)).rad2deg().item()
        distances = pointgrad.chamfer_distance(aligned, first, reduction="none")  # (N,) and (M,), squared
        loss = sum(side.sort().values[: int(0.7 * len(side))].mean() for side in distances)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % (steps // 6) == 0:
            print(f"step {step:3}: loss {loss:.5f}, errors {angle:5.2f} degrees and {(move - shift).norm():.3f} units")

    figure = Figure(figsize=(8, 4), layout="constrained")
    for axes, name, cloud in zip(figure.subplots(1, 2), ("before", "after"), (second, aligned.detach()), strict=True):
        for points, color in ((first, "#8a94a0"), (cloud, "#e07b39")):
            axes.scatter(*points[points[:, 2].abs() < 0.1, :2].cpu().T, s=6, color=color)
        axes.set(title=f"slice of both scans, {name}", aspect="equal", xticks=[], yticks=[])
    Path("out").mkdir(exist_ok=True)
    figure.savefig("out/06_registration.png", dpi=100)
    return angle


if __name__ == "__main__":
    main()

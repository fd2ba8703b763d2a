"""Operators on three clouds of different sizes at once: sample, search, group, pool, interpolate, differentiate.

The clouds are packed: concatenated in one tensor, with `offsets` where each begins. out/01_operators.png shows the
samples, and heights that were pooled at the samples and interpolated back to all points.
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure

import pointgrad


def main(sizes=(500, 2000, 8000), samples=64):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    u, v = torch.tensor([[2 * torch.pi], [torch.pi]], device=device) * torch.rand(2, sum(sizes), device=device)
    points = torch.stack(
        [(2 + v.cos()) * u.cos(), (2 + v.cos()) * u.sin(), v.sin()], 1
    )  # (N, 3), each cloud half a torus
    offsets = torch.tensor([0, *sizes], device=device).cumsum(0)  # cloud b is points[offsets[b]:offsets[b + 1]]
    sample_offsets = torch.arange(len(sizes) + 1, device=device) * samples

    # Indices refer to rows of the packed tensor. All backends find the same ones.
    index, radius = pointgrad.farthest_point_sampling(points, samples, offsets=offsets, return_radius=True)
    centers = pointgrad.gather(points, index)  # (M, 3)
    found = pointgrad.knn(points, 16, centers, offsets=offsets, query_offsets=sample_offsets).index  # (M, 16)
    for name in ("reference", "triton" if device == "cuda" else "cpu"):
        with pointgrad.backend(name):
            again = pointgrad.knn(points, 16, centers, offsets=offsets, query_offsets=sample_offsets).index
            same = torch.equal(pointgrad.farthest_point_sampling(points, samples, offsets=offsets), index)
        print(f"backend {name}: same samples {same}, same neighbours {torch.equal(again, found)}")
    print("covering radii of the samples:", [round(r, 3) for r in radius.view(-1, samples)[:, -1].tolist()])

    # Average the heights of each sample's neighbours, then interpolate them at all points from the 3 nearest samples.
    heights = points[:, 2:].clone().requires_grad_()  # (N, 1)
    pooled = pointgrad.group(heights, found).mean(1)  # (M, 16, 1) -> (M, 1)
    smooth = pointgrad.interpolate(pooled, centers, points, offsets=sample_offsets, query_offsets=offsets)  # (N, 1)

    # Pooling and interpolation are weighted means, so the gradients of a cloud add up to its number of points.
    (grad,) = torch.autograd.grad(smooth.sum(), heights)
    total = pointgrad.segment(grad, offsets, "sum")[:, 0].tolist()
    print("sum of the gradient:", [round(number, 1) for number in total], "for clouds of", list(sizes), "points")

    figure = Figure(figsize=(12, 4), layout="constrained")
    parts = [values.detach().cpu().split(n) for values, n in ((points, sizes), (smooth, sizes), (centers, samples))]
    for axes, cloud, color, chosen in zip(figure.subplots(1, len(sizes)), *parts, strict=True):
        axes.scatter(*cloud[:, :2].T, c=color[:, 0], s=4)
        axes.scatter(*chosen[:, :2].T, s=20, color="#e07b39")
        axes.set(title=f"{len(cloud):,} points, {len(chosen)} samples", aspect="equal", xticks=[], yticks=[])
    Path("out").mkdir(exist_ok=True)
    figure.savefig("out/01_operators.png", dpi=100)
    return total


if __name__ == "__main__":
    main()

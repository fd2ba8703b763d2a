"""A scene of millions of points in one LAZ file, labelled tile by tile: memory does not grow with the scene.

python examples/08_large_scene.py [POINTS]    default: 2,000,000, in blocks of 100,000; another block is for training
Writes the predicted classes to out/08_labelled.laz, and out/08_large_scene.png.
"""

import resource
import sys
import time
from pathlib import Path

import laspy
import torch
from matplotlib.figure import Figure

from pointgrad import data, models, predict, train


def block(number, n=25000):  # ground, trees and walls on 60 m x 40 m; points (4n, 3) and classes (4n,)
    torch.manual_seed(number)
    place = (torch.rand(2, 12, 3) * torch.tensor([60, 40, 0]))[:, torch.randint(12, (n,))]
    trees, walls = torch.randn(n, 3) + torch.tensor([0, 0, 4]), torch.rand(n, 3) * torch.tensor([8, 0.2, 6])
    points = torch.cat([torch.rand(2 * n, 3) * torch.tensor([60, 40, 0.1]), place[0] + trees, place[1] + walls])
    corner = torch.tensor([60 * (number % 5), 40 * (number // 5), 0])
    return points + corner, torch.tensor([0, 0, 1, 2]).repeat_interleave(n)


def main(count=2_000_000, epochs=20, piece=1024, voxel=0.5, source="out/08_scene.laz", target="out/08_labelled.laz"):
    Path("out").mkdir(exist_ok=True)
    with laspy.open(source, "w", header=laspy.LasHeader(point_format=6, version="1.4")) as file:
        for number in range(max(1, -(-count // 100_000))):
            record, (points, classes) = laspy.ScaleAwarePointRecord.zeros(100_000, header=file.header), block(number)
            (record.x, record.y, record.z), record.classification = points.T.double().numpy(), classes.numpy()
            file.write_points(record)
    points, labels = block(1000)  # not part of the scene
    thin = data.VoxelSample(voxel)(data.Cloud(points, labels=labels), torch.Generator())
    loader = data.Loader([thin] * 64, batch_size=8, transform=data.Compose(data.Crop(piece), data.Normalize("center")))
    model = models.pointnet2("segmentation", 3, width=0.25, density=0.25, radius=voxel / 0.04, dropout=0.1)
    optimizer = torch.optim.AdamW(model.to("cuda" if torch.cuda.is_available() else "cpu").parameters(), 0.003)
    for epoch in range(epochs):
        loader.set_epoch(epoch)  # crops new pieces
        train.train_epoch(model, loader, optimizer, classes=3)
    prepare = data.Prepare(points=piece, normalize="center", voxel=voxel)
    trained, start = train.Trained(model, "segmentation", ("ground", "trees", "walls"), prepare), time.perf_counter()
    report = predict.label_file(trained, source, target, votes=1, evaluate=True, overwrite=True)
    speed = report.counts.sum() / (time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**10 if sys.platform == "linux" else 2**20)
    print(f"{report.counts.sum():,} points, {speed:,.0f} per second, peak memory {peak:.0f} MiB")
    print("IoU of ground, trees and walls:", [round(row["iou"], 2) for row in report.metrics.per_class()])
    cloud, figure = data.read(target), Figure(figsize=(10, 6), layout="constrained")
    axes = figure.add_subplot(title="prediction, from above", aspect="equal", xlabel="metres", ylabel="metres")
    axes.scatter(*cloud.points[::20, :2].T, c=cloud.labels[::20], s=0.2)
    figure.savefig("out/08_large_scene.png", dpi=100)
    return report.metrics.compute()["miou"], peak


if __name__ == "__main__":
    count = "".join(sys.argv[1:]) or "2000000"
    main(int(count)) if count.isdecimal() else sys.exit(f"POINTS must be an integer, got {count}")

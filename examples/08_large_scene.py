"""A scene of millions of points in one LAZ file, labelled tile by tile: memory does not grow with the scene.

    python examples/08_large_scene.py [POINTS]    2,000,000 without; rounded up to whole blocks of 100,000

Trains a small network on one block, and labels a scene of other blocks. Writes out/08_labelled.laz and a picture.
"""

import resource
import sys
import time
from pathlib import Path

import laspy
import numpy as np
import torch
from matplotlib.figure import Figure

from pointgrad import data, models, predict, train


def block(number, n=25000):  # ground, trees and walls on 60 m x 40 m; points (4n, 3) and classes (4n,)
    rng = np.random.default_rng(number)
    place = (rng.random((2, 12, 3)) * [60, 40, 0])[:, rng.integers(12, size=n)]
    trees, walls = rng.normal(size=(n, 3)) + [0, 0, 4], rng.random((n, 3)) * [8, 0.2, 6]
    points = np.concatenate([rng.random((2 * n, 3)) * [60, 40, 0.1], place[0] + trees, place[1] + walls])
    return points + [60 * (number % 5), 40 * (number // 5), 0], np.repeat([0, 0, 1, 2], n)


def main(count=2_000_000, epochs=20, piece=1024, voxel=0.5):
    torch.manual_seed(0)
    Path("out").mkdir(exist_ok=True)
    with laspy.open("out/08_scene.laz", "w", header=laspy.LasHeader(point_format=6, version="1.4")) as file:
        for number in range(max(1, -(-count // 100_000))):
            record, (points, classes) = laspy.ScaleAwarePointRecord.zeros(100_000, header=file.header), block(number)
            (record.x, record.y, record.z), record.classification = points.T, classes
            file.write_points(record)

    points, labels = map(torch.from_numpy, block(10**6))  # none of the scene
    thin = data.VoxelSample(voxel)(data.Cloud(points, labels=labels), torch.Generator())
    cut = data.Compose(data.Crop(piece), data.Normalize("center"))
    loader = data.Loader([thin] * 64, batch_size=8, transform=cut)
    model = models.pointnet2("segmentation", 3, width=0.25, density=0.25, radius=voxel / 0.04, dropout=0.1)
    optimizer = torch.optim.AdamW(model.to("cuda" if torch.cuda.is_available() else "cpu").parameters(), 0.003)
    for epoch in range(epochs):
        loader.set_epoch(epoch)  # other pieces
        train.train_epoch(model, loader, optimizer, classes=3)
    prepare = data.Prepare(points=piece, normalize="center", voxel=voxel)
    trained, began = train.Trained(model, "segmentation", ("ground", "trees", "walls"), prepare), time.perf_counter()
    report = predict.label_file(
        trained, "out/08_scene.laz", "out/08_labelled.laz", votes=1, evaluate=True, overwrite=True
    )
    speed = report.counts.sum() / (time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**10 if sys.platform == "linux" else 2**20)
    print(f"{report.counts.sum():,} points, {speed:,.0f} per second, at most {peak:.0f} MiB of memory")
    print("IoU:", {name: round(row["iou"], 2) for name, row in zip(trained.classes, report.metrics.per_class())})
    return report.metrics.compute()["miou"], peak


if __name__ == "__main__":
    wanted = "".join(sys.argv[1:]) or "2000000"
    main(int(wanted)) if wanted.isdecimal() else sys.exit(f"POINTS must be a whole number, got {wanted}")

"""Segmentation of a scan: a network is trained on its southern half and tested on its northern half.

python examples/04_segmentation.py [SCAN]    a file with labels, such as LAS, LAZ or PLY; default: a synthetic scan
Writes the northern half with predicted classes to out/04_labelled.laz, and out/04_segmentation.png.
"""

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

from pointgrad import data, knn, models, predict, train


def main(scan=None, epochs=20, pieces=128, size=1024):
    torch.manual_seed(0)
    Path("out").mkdir(exist_ok=True)
    if scan is None:  # ground, trees and walls, with their class codes in LAS
        scan, n = "out/04_scan.laz", 20000
        place = (torch.rand(2, 12, 3) * torch.tensor([60, 40, 0]))[:, torch.randint(12, (n,))]
        trees, walls = torch.randn(n, 3) + torch.tensor([0, 0, 4]), torch.rand(n, 3) * torch.tensor([8, 0.2, 6])
        points = torch.cat([torch.rand(n, 3) * torch.tensor([60, 40, 0.1]), place[0] + trees, place[1] + walls])
        data.write(scan, data.Cloud(points, labels=torch.tensor([2, 5, 6]).repeat_interleave(n)))
    cloud = data.read(scan)
    if cloud.labels is None:
        raise data.FileError(f"{scan}: expected a class for each point, found none")
    cloud = cloud.select(cloud.labels >= 0)  # -1: no class
    codes, cloud.labels = cloud.labels.unique(return_inverse=True)
    south, north = map(cloud.select, cloud.points[:, 1].argsort().chunk(2))  # by y coordinate
    voxel = 3 * knn(cloud.points, 2).distance2[:, 1].sqrt().median().item()  # one point per voxel is kept
    crop = data.Compose(data.Crop(size), data.Normalize("center"), data.Rotate("z"), data.Flip())
    loader = data.Loader([data.VoxelSample(voxel)(south, torch.Generator())] * pieces, batch_size=8, transform=crop)
    model = models.pointnet2("segmentation", len(codes), width=0.25, density=0.25, radius=voxel / 0.04, dropout=0.1)
    optimizer = torch.optim.AdamW(model.to("cuda" if torch.cuda.is_available() else "cpu").parameters(), 0.003)
    for epoch in range(epochs):
        loader.set_epoch(epoch)  # crops new pieces
        metrics = train.train_epoch(model, loader, optimizer, classes=len(codes))
        print(f"epoch {epoch + 1:2}: training mIoU {metrics.compute()['miou']:.2f}")
    trained = train.Trained(model, "segmentation", tuple(codes.tolist()), data.Prepare(size, "center", voxel))
    found = predict.label(trained, north)
    truth, north.labels = north.labels, codes[found.labels]
    data.write("out/04_labelled.laz", north)
    metrics, figure = train.Metrics(len(codes)), Figure(figsize=(12, 5), layout="constrained")
    metrics.add(torch.nn.functional.one_hot(found.labels, len(codes)), truth)
    for code, row in zip(codes.tolist(), metrics.per_class(), strict=True):
        print(f"class {code}: {row['count']:6} points in the north, IoU {row['iou']:.2f}")
    for axes, name, labels in zip(figure.subplots(1, 2), ("labels", "prediction"), (truth, found.labels), strict=True):
        axes.scatter(*(north.world() @ torch.tensor([[1, 0], [0.4, 0.5], [0, 1.0]]).double()).T, c=labels, s=1)
        axes.set(title=name, aspect="equal", xticks=[], yticks=[])
    figure.savefig("out/04_segmentation.png", dpi=100)
    return metrics.compute()["miou"]


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except data.FileError as error:
        sys.exit(str(error))

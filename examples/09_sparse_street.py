"""Sparse convolution: a MinkUNet segments a street, trained on other streets.

python examples/09_sparse_street.py [EPOCHS]    default: 10
Writes the street with predicted classes to out/09_labelled.laz, and out/09_sparse_street.png.
"""

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

from pointgrad import data, models, submanifold_map, train, voxelize


def main(epochs=10, streets=16, points=20_000, length=24.0, voxel=0.3):
    torch.manual_seed(0)
    Path("out").mkdir(exist_ok=True)
    classes = len(data.STREET_CLASSES)
    scenes = [data.street(points, length=length, seed=seed) for seed in range(1, streets + 1)]
    test = data.Normalize("center")(data.street(points, length=length, seed=0), torch.Generator())
    for size in (voxel, 2 * voxel, 4 * voxel):  # the inputs of a convolution on three levels of the network
        voxels = voxelize(test.points, size).coordinates
        neighbors = (submanifold_map(voxels, 3).sources >= 0).sum() / len(voxels)
        print(f"voxels of {size:.1f} m: {len(voxels):6,}, an output reads {neighbors:.1f} of 27 inputs on average")
    change = data.Compose(data.Normalize("center"), data.Flip())
    loader = data.Loader(scenes, batch_size=2, transform=change)
    model = models.minkunet("segmentation", classes, voxel=voxel, width=0.25)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    optimizer = torch.optim.AdamW(model.to(device).parameters(), 0.005)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.005, epochs=epochs, steps_per_epoch=1)
    for epoch in range(epochs):
        loader.set_epoch(epoch)  # flips other streets
        metrics = train.train_epoch(model, loader, optimizer, classes=classes)
        schedule.step()
        print(f"epoch {epoch + 1:2}: training mIoU {metrics.compute()['miou']:.2f}")

    with torch.inference_mode():
        logits = model.eval()(test.points.to(device)).cpu()
    metrics = train.Metrics(classes)
    metrics.add(logits, test.labels)
    for name, row in zip(data.STREET_CLASSES, metrics.per_class(), strict=True):
        print(f"{name:8} {row['count']:6} points, IoU {row['iou']:.2f}")
    figure = Figure(figsize=(12, 5), layout="constrained")
    shown = test.points @ torch.tensor([[1, 0], [0.4, 0.5], [0, 1.0]])
    for place, (name, labels) in enumerate({"labels": test.labels, "prediction": logits.argmax(1)}.items()):
        axes = figure.add_subplot(1, 2, place + 1, title=name, aspect="equal", xticks=[], yticks=[])
        axes.scatter(*shown.T, c=labels, s=1, cmap="tab10")
    figure.savefig("out/09_sparse_street.png", dpi=100)
    test.labels = logits.argmax(1)
    data.write("out/09_labelled.laz", test)
    miou = metrics.compute()["miou"]
    print(f"mIoU on a street that the network has not seen: {miou:.2f}")
    return miou


if __name__ == "__main__":
    epochs = "".join(sys.argv[1:]) or "10"
    main(int(epochs)) if epochs.isdecimal() else sys.exit(f"EPOCHS must be an integer, got {epochs}")

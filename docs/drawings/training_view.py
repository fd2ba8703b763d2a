"""Screenshot of the training view on a small run."""

import tempfile
from pathlib import Path

import torch

from . import photo
from .style import ROOT

OUT = ROOT / "docs" / "images" / "view_run.png"
EPOCHS, CLOUDS, POINTS = 14, 320, 1024


def draw() -> None:
    if why := photo.missing():
        print(f"  {why}")
        return
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "shapes-parts"
        train(run)
        photograph(run)


def photograph(run: Path) -> None:
    from pointgrad.view import RunViewer, server

    web = server.start("127.0.0.1", None, "pointgrad")
    viewer = RunViewer(web, run)
    try:
        viewer.wait()
        with photo.page(server.address(web)) as page:
            page.get_by_text("val loss", exact=True).wait_for()
            photo.save(page, OUT)
    finally:
        viewer.close()
        web.stop()


def train(run: Path) -> None:
    """Train on parts of synthetic objects for a few minutes."""
    from pointgrad import data, models, train

    torch.manual_seed(0)
    prepare = data.Prepare()
    loaders = [
        data.Loader(
            data.Shapes(split, "segmentation", size=size, points=POINTS),
            batch_size=16,
            transform=prepare,
            shuffle=split == "train",
        )
        for split, size in (("train", CLOUDS), ("val", 96))
    ]
    dataset = loaders[0].dataset
    network = models.build(
        "pointnet2", task="segmentation", classes=len(dataset.classes), categories=len(dataset.categories), width=0.25
    )
    config = train.TrainConfig(epochs=EPOCHS, lr=4e-3, accelerator="cpu", tensorboard=False)
    train.Trainer(network, *loaders, config, out=run, prepare=prepare).fit()

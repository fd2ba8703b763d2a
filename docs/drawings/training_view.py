"""The picture of the training view: a small run, opened in a real browser."""

import importlib.util
import io
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from style import ROOT

OUT = ROOT / "docs" / "images" / "view_run.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SOFTWARE = ("--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")  # 3D without a GPU
EPOCHS, CLOUDS, POINTS = 14, 320, 1024


def draw() -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    missing = [name for name in ("playwright", "viser") if importlib.util.find_spec(name) is None]
    if missing or browser is None:
        print(f"{OUT.name} is not drawn: that needs {missing[0] if missing else ' or '.join(BROWSERS)}")
        return
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "shapes-parts"
        train(run)
        photograph(run, browser)


def photograph(run: Path, browser: str) -> None:
    from playwright.sync_api import sync_playwright

    from pointgrad.view import RunViewer, server

    web = server.start("127.0.0.1", None, "pointgrad")
    viewer = RunViewer(web, run)
    try:
        viewer.wait()
        with sync_playwright() as play:
            chromium = play.chromium.launch(executable_path=browser, args=SOFTWARE)
            page = chromium.new_page(viewport={"width": 1280, "height": 800})
            page.goto(server.address(web))
            page.get_by_text("val loss", exact=True).wait_for()
            page.locator(".mantine-Notification-closeButton").first.click()  # that there is no GPU
            before = b""
            for _ in range(60):  # points fade in
                page.wait_for_timeout(1000)
                now = page.screenshot()
                if now == before and colourful(now):
                    break
                before = now
            else:
                raise RuntimeError("the points do not appear within a minute")
            OUT.write_bytes(now)
            chromium.close()
    finally:
        viewer.close()
        server.stop(web)


def colourful(picture: bytes) -> bool:
    """Whether points are drawn, left of the panel."""
    scene = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))[:, :860].astype(int)
    return int((np.ptp(scene, axis=2) > 60).sum()) > 5000


def train(run: Path) -> None:
    """Parts of made-up objects, for a few minutes."""
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

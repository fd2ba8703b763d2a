"""Screenshots of the viewer on a synthetic street, with and without predictions. Needs viser, playwright and Chromium.

The network is trained once, for some minutes, and kept under out/."""

import shutil
from typing import Any

import torch

from pointgrad import cli, data, train

from . import photo
from .style import ROOT

IMAGES = ROOT / "docs" / "images"
SCANS, NETWORK = ROOT / "out" / "streets", ROOT / "out" / "street_network"
TRAINING = (  # as on the start page
    "--epochs 6 --samples-per-cloud 16 --crop-points 2048 --batch-size 4 --lr 0.005 --options width=0.25"
)
TREE = (0.62, 0.25, 0.9)  # in the unit box of the street


def scans() -> None:
    for number in range(6):
        folder = SCANS / ("train" if number < 5 else "val")
        folder.mkdir(parents=True, exist_ok=True)
        data.write(folder / f"street{number}.ply", data.street(60_000, length=40, seed=number))
    (SCANS / "classes.txt").write_text("\n".join(data.STREET_CLASSES))


def network() -> train.Trained:
    if not (NETWORK / train.checkpoint.BEST).exists():
        shutil.rmtree(NETWORK, ignore_errors=True)
        assert cli.main(["train", "--data", str(SCANS), "--out", str(NETWORK), *TRAINING.split()]) == 0
    return train.load(NETWORK)


def photograph(name: str, trained: train.Trained | None, prepare: Any) -> None:
    from pointgrad.view import Viewer, server

    web = server.start("127.0.0.1", None, "pointgrad")
    viewer = Viewer(web, [SCANS / "val" / "street5.ply"], trained=trained)
    try:
        viewer.wait()
        with photo.page(server.address(web)) as page:
            page.get_by_text("Colour by").wait_for()
            prepare(viewer, page)
            photo.save(page, IMAGES / f"view_{name}.png")
    finally:
        viewer.close()
        web.stop()


def clicked(viewer: Any, page: Any) -> None:
    from pointgrad.view.framing import FOV
    from pointgrad.view.stage import HOME

    points = viewer.sample.cloud.points
    low, high = points.amin(0), points.amax(0)
    row = int((points - (low + torch.tensor(TREE) * (high - low))).norm(dim=1).argmin())
    place = viewer.stage.place(points[row : row + 1])[0]
    camera = viewer.stage.camera_pose(HOME, FOV, 1.2)[0]
    viewer.worker.submit("click", lambda: viewer._choose(camera, place - camera))
    viewer.wait()
    page.get_by_text("Values").wait_for()


def predicted(viewer: Any, page: Any) -> None:
    page.get_by_text("predicted 60,000 of 60,000 points").wait_for()


def errors(viewer: Any, page: Any) -> None:
    predicted(viewer, page)
    page.get_by_role("checkbox", name="Only errors").click()
    page.mouse.move(200, 700)  # closes the hint


def draw() -> None:
    if why := photo.missing():
        print(f"  {why}")
        return
    scans()
    photograph("street", None, clicked)
    trained = network()
    photograph("prediction", trained, predicted)
    photograph("errors", trained, errors)

"""Screenshots of the viewer's operator panels on a synthetic chair. Needs viser, playwright and Chromium.

The network of the last two panels is trained once, for some minutes, and kept under out/."""

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pointgrad import cli, data, train
from pointgrad.data.datasets.shapes.kinds import KINDS
from pointgrad.data.datasets.shapes.surface import Surface

from . import photo
from .style import ROOT

IMAGES = ROOT / "docs" / "images"
NETWORK = ROOT / "out" / "panels_network"
POINTS = 8192
SHOWN = 512  # points that the network is trained on
TRAINING = (
    "train --data shapes --model point_transformer --options width=0.25 --epochs 8 --lr 0.004 --smoothing 0 "
    f"--batch-size 16 --prepare.points {SHOWN} --augment.scale 0.9 1.1 --augment.translate 0.05 --no-tensorboard"
)


def chair() -> data.Cloud:
    surface, rng = Surface(), np.random.default_rng(5)
    KINDS["chair"].build(surface, rng.random(12).tolist())
    points, parts = surface.sample(POINTS, rng)
    return data.Cloud(torch.from_numpy(points.T.copy()), labels=torch.from_numpy(parts).long())


def network() -> train.Trained:
    if not (NETWORK / train.checkpoint.BEST).exists():
        shutil.rmtree(NETWORK, ignore_errors=True)
        assert cli.main([*TRAINING.split(), "--out", str(NETWORK)]) == 0
    return train.load(NETWORK)


class Session:
    """A viewer and a page that shows it."""

    def __init__(self, page: Any, viewer: Any) -> None:
        self.page, self.viewer = page, viewer

    def show(self, title: str, click: tuple[float, float, float] | None = None, **controls: Any) -> Any:
        """Show a panel with the given controls; `click` is a position in the unit box of the cloud."""
        from pointgrad.view.levels import Part
        from pointgrad.view.stage import HOME, Picked

        viewer = self.viewer
        panel = viewer.operators.panels[title]
        viewer.operators.choice.value = title
        self.run(viewer.operators.update)  # fits the ranges of the controls
        for name, value in controls.items():
            control = getattr(panel, f"_{name}")
            control.value = value
        viewer.picked = None
        if click is not None:
            points = viewer.sample.cloud.points
            low, high = points.amin(0), points.amax(0)
            row = int((points - (low + torch.tensor(click) * (high - low))).norm(dim=1).argmin())
            part = Part(viewer.sample.cloud.select(torch.tensor([row])), viewer.sample.number[row : row + 1])
            viewer.picked = Picked(viewer.stage.place(part.cloud.points)[0], part)
        self.run(lambda: viewer.framing.show_all(HOME))
        self.run(viewer.operators.update)
        return panel

    def closer(self, panel: Any, radius: float | None = None) -> None:
        if radius is not None:
            panel.reach = radius
        for client in self.viewer.server.get_clients().values():
            panel._zoom_in(client)

    def run(self, task: Callable[[], None]) -> None:
        self.viewer.worker.submit("picture", task)
        self.viewer.wait()

    def save(self, name: str) -> None:
        photo.save(self.page, IMAGES / f"view_{name}.png")


def take(session: Session) -> None:
    back = (0.5, 0.9, 0.75)  # back of the chair, which faces the camera
    session.show("farthest points", count=24, random=True, balls=True)
    session.save("farthest")
    session.show("voxel sampling", click=(0.9, 0.1, 0.5), edge=0.1)
    session.save("voxels")
    panel = session.show("neighbours", click=back, kind="ball", k=48, radius=0.07)
    session.closer(panel, 2.2 * panel._radius.value)
    session.save("neighbors")
    session.show("groups", click=back, count=48, k=64)
    session.save("groups")
    panel = session.show("interpolation", click=back, count=96)
    session.closer(panel, 2.2 * panel.reach)
    session.save("interpolation")
    panel = session.show("sparse convolution", click=(0.9, 0.1, 0.5), edge=0.06)
    session.closer(panel, 1.8 * panel.reach)
    session.save("sparse")
    session.show("space-filling curve", click=back, edge=0.1, patch=48)
    session.save("curves")
    panel = session.show("attention", click=(0.5, 0.9, 0.55), layer="blocks.2.0", channels="group 1")
    session.closer(panel, 1.6 * panel.reach)
    session.save("attention")
    session.show("saliency")
    session.save("saliency")


def draw() -> None:
    if why := photo.missing():
        print(f"  {why}")
        return
    from pointgrad.view import Viewer, server

    trained = network()
    path = ROOT / "out" / "chair.ply"
    data.write(path, chair())
    web = server.start("127.0.0.1", None, "pointgrad")
    viewer = Viewer(web, [path], trained=trained)
    try:
        viewer.wait()
        with photo.page(server.address(web)) as page:
            page.get_by_role("tab", name="Operators").click()
            take(Session(page, viewer))
    finally:
        viewer.close()
        web.stop()
